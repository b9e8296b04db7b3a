"""The limits that minimise a predicted error: what they leave out, and the noise of the question; post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.limits.noisy_histogram import Floats, NoisyHistogram
from privstream.mechanisms.numeric_quantiles import NumericQuantiles

MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of normal noise, in standard deviations."""

HALF = 0.5
"""The largest items are taken to hold such a part of all contributions; under Zipf's law the first ten of 200 do."""


@cache
def count_noise(
    epsilon: float,
    delta: float,
    windows: int,
    contributions: int,
    max_value: int | None = None,
    answer: Literal["count", "sum"] = "count",
) -> float:
    """Return the mean absolute noise of a count, or of a sum of values, of keys that nobody knew before.

    Args:
        epsilon, delta: of the run that counts.
        windows: of that run.
        contributions: of one person in it, at most.
        max_value: the largest value where there are sums, which half of the budget pays for; else None.
        answer: which of both.
    """
    made = KeyedCounts(epsilon=epsilon, delta=delta, horizon=windows, contributions=contributions, max_value=max_value)
    return MEAN_OF_NORMAL * made.stddev(1, answer)


@cache
def rank_noise(epsilon: float, delta: float, windows: int, contributions: int) -> float:
    """Return the mean absolute noise of the number of values below a quantile of a window; arguments as above."""
    made = NumericQuantiles(
        epsilon=epsilon, delta=delta, low=0.0, high=1.0, horizon=windows, contributions=contributions
    )
    return MEAN_OF_NORMAL * float(made.accuracy.numbers["rank_stddev"])


def predicted_errors(left_out: Floats, noise: Floats, *, row: float) -> Floats:
    """Return a predicted error of a row for each of some limits, as a part of its number.

    It is the share that the limit leaves out, and the noise in relation to what it keeps.

    Args:
        left_out: share of all contributions that each limit leaves out, in [0, 1].
        noise: mean absolute noise of a row under each limit.
        row: the number in a row without limits, > 0.

    Returns:
        float64, of the same shape; infinite where nothing is kept.
    """
    kept = 1.0 - left_out
    with np.errstate(divide="ignore"):
        return np.where(kept > 0, left_out + noise / (row * np.maximum(kept, 0.0)), math.inf)


def left_out_shares(histogram: NoisyHistogram) -> Floats:
    """Return the share that a limit at each edge leaves out, float64 (edges,)."""
    found = np.array([histogram.left_out(cell) for cell in range(len(histogram.edges))])
    return np.minimum(1.0, found / histogram.total) if histogram.total > 0 else np.ones(len(found))


def best_limit(histogram: NoisyHistogram, noise_of: Callable[[int], float], *, row: float) -> int | None:
    """Return the cell whose upper edge is the best limit.

    Args:
        histogram: of what people contribute.
        noise_of: from a limit, a whole number, to the mean absolute noise of a row.
        row: the number in a row without limits.

    Returns:
        None if nobody can be seen who has at least 1. Edges beyond the last cell with people, and those below 1, are no
        limits.
    """
    if not histogram.seen or not histogram.total > 0:
        return None
    last = min(histogram.seen[-1], len(histogram.edges) - 1)
    open_to = [cell for cell in range(last + 1) if histogram.edges[cell] >= 1]
    if not open_to:
        return None
    noise = np.array([noise_of(int(histogram.edges[cell])) for cell in open_to])
    return open_to[int(np.argmin(predicted_errors(left_out_shares(histogram)[open_to], noise, row=row)))]


def best_pair(
    first: NoisyHistogram, second: NoisyHistogram, noise_of: Callable[[int], float], *, row: float
) -> tuple[int, int] | None:
    """Return the cells whose upper edges are the best two limits where noise grows with their product.

    What both leave out is taken to be what each leaves out by itself.

    Args:
        first, second: of what people contribute, on whole numbers.
        noise_of: from the product of two limits to the mean absolute noise of a row.
        row: the number in a row without limits.
    """
    if not first.seen or not second.seen:
        return None
    shares = left_out_shares(first), left_out_shares(second)
    ends = [min(each.seen[-1], len(each.edges) - 1) + 1 for each in (first, second)]
    left = 1.0 - np.outer(1.0 - shares[0][: ends[0]], 1.0 - shares[1][: ends[1]])
    noise = np.array(
        [[noise_of(int(one * other)) for other in second.edges[: ends[1]]] for one in first.edges[: ends[0]]]
    )
    place = int(np.argmin(predicted_errors(left, noise, row=row)))
    return place // ends[1], place % ends[1]
