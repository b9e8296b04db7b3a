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


def left_out_shares(histogram: NoisyHistogram) -> tuple[list[tuple[int, int]], Floats]:
    """Return limits to choose from, each with its cell, and the share that each leaves out."""
    limits = histogram.open_limits() if histogram.total > 0 else []
    found = [min(1.0, histogram.left_out(limit) / histogram.total) for limit, _ in limits]
    return limits, np.array(found)


def best_limit(histogram: NoisyHistogram, noise_of: Callable[[int], float], *, row: float) -> tuple[int, int] | None:
    """Return the best limit, and the cell that it lies in; None if nobody can be seen who has at least 1.

    Args:
        histogram: of what people contribute.
        noise_of: from a limit, a whole number, to the mean absolute noise of a row.
        row: the number in a row without limits.
    """
    limits, left = left_out_shares(histogram)
    if not limits:
        return None
    noise = np.array([noise_of(limit) for limit, _ in limits])
    return limits[int(np.argmin(predicted_errors(left, noise, row=row)))]


def best_pair(
    first: NoisyHistogram, second: NoisyHistogram, noise_of: Callable[[int], float], *, row: float
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the best two limits, each with its cell, where noise grows with their product; None as above.

    What both leave out is taken to be what each leaves out by itself.

    Args:
        first, second: of what people contribute, on whole numbers.
        noise_of: from the product of two limits to the mean absolute noise of a row.
        row: the number in a row without limits.
    """
    (ones, of_one), (others, of_other) = left_out_shares(first), left_out_shares(second)
    if not ones or not others:
        return None
    noise = np.array([[noise_of(one * other) for other, _ in others] for one, _ in ones])
    left = 1.0 - np.outer(1.0 - of_one, 1.0 - of_other)
    place = int(np.argmin(predicted_errors(left, noise, row=row)))
    return ones[place // len(others)], others[place % len(others)]
