"""The limits that show most: what they leave out, what is found, and the noise of the question; post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.limits.noisy_histogram import NoisyHistogram
from privstream.mechanisms.limits.person_histograms import WHOLE_NUMBERS
from privstream.mechanisms.numeric_quantiles import NumericQuantiles

MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of normal noise, in standard deviations."""

HALF = 0.5
"""The largest items are taken to hold such a part of all contributions; under Zipf's law the first ten of 200 do."""

MOVES = 0.05
"""Numbers are taken to move by such a part of themselves from a window to the next; in what is simulated and in flights
it was 0.02 to 0.08 (docs/decisions/0069-limits-for-the-columns-that-are-read.md)."""

ENOUGH_FOUND, ENOUGH_ERROR = 0.8, 0.5
"""A run shows enough if it finds such a part of the largest items, and errors of their rows are at most so large."""

LARGEST_EPSILON = 64.0
"""Larger ones are not proposed."""


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


class Needed(NamedTuple):
    """What it takes in a run over files that an item is found, with an even chance, which nobody knew before.

    Attributes:
        people: in each window, where it lasts all of them.
        others: the same, if they are others in each window, so that a list of different people may find it.
        listed: for how many items a person counts on that list; 0 without one.
    """

    people: float
    others: float
    listed: int


@cache
def people_needed(
    epsilon: float, delta: float, windows: int, contributions: int, max_value: int | None = None
) -> Needed:
    """Return how many people an item needs; arguments as above."""
    made = FoundKeys(epsilon=epsilon, delta=delta, horizon=windows, contributions=contributions, max_value=max_value)
    return Needed(made.people_needed(windows), made.people_needed(windows, others=True), made.listed)


@cache
def rank_noise(epsilon: float, delta: float, windows: int, contributions: int) -> float:
    """Return the mean absolute noise of the number of values below a quantile of a window; arguments as above."""
    made = NumericQuantiles(
        epsilon=epsilon, delta=delta, low=0.0, high=1.0, horizon=windows, contributions=contributions
    )
    return MEAN_OF_NORMAL * float(made.accuracy.numbers["rank_stddev"])


class Prediction(NamedTuple):
    """What a run with some limits is predicted to show.

    Attributes:
        error: mean absolute error of a row, as a part of it: by the share that limits leave out of it, and by what
            smoothing leaves of the noise, as a part of what limits keep, which is independent.
        found: share of the largest items that are found, in [0, 1].
    """

    error: float
    found: float

    @property
    def worth(self) -> float:
        """What of the largest items is shown: those that are found, each as exp(-error)."""
        return min(1.0, self.found / ENOUGH_FOUND) * math.exp(-self.error)

    @property
    def enough(self) -> bool:
        """Whether most of the largest items are found, with errors of at most a half."""
        return self.found >= ENOUGH_FOUND and self.error <= ENOUGH_ERROR


@dataclass(frozen=True)
class LaterRun:
    """The run that limits are for, as far as it is public.

    Attributes:
        epsilon, delta, windows: of that run.
        items: number of its items, the largest ones, about which it is to be right.
        question: "counts" of items that nobody knew, "sums" of their values beside counts, or "ranks" of values.
    """

    epsilon: float
    delta: float
    windows: int
    items: int
    question: Literal["counts", "sums", "ranks"] = "counts"

    def noise(self, contributions: int) -> float:
        """Return the mean absolute noise of a count, or of a rank."""
        if self.question == "ranks":
            return rank_noise(self.epsilon, self.delta, self.windows, contributions)
        return count_noise(self.epsilon, self.delta, self.windows, contributions, self._least_value)

    def noise_of_sums(self, contributions: int) -> float:
        """Return the mean absolute noise of a sum of values up to 1; it is as many times as large for larger ones."""
        return count_noise(self.epsilon, self.delta, self.windows, contributions, 1, "sum")

    def needed(self, contributions: int) -> Needed:
        """Return how many people an item needs to be found."""
        return people_needed(self.epsilon, self.delta, self.windows, contributions, self._least_value)

    @property
    def _least_value(self) -> int | None:
        """Which of all largest values pays for sums, does not change the noise of counts."""
        return 1 if self.question == "sums" else None

    def predict(self, contributions: Floats, left_out: Floats, row: float, *, by_list: bool = True) -> list[Prediction]:
        """Return what is predicted of some limits.

        Items are taken to have as many people as Zipf's law gives them, with `row` as the mean of the largest ones.

        Args:
            contributions: of one person, at most, under each limit; whole numbers, shape (n,).
            left_out: share of all contributions that each limit leaves out, in [0, 1], shape (n,).
            row: mean number in a row about one of these items, or about a window, without limits; > 0.
            by_list: whether a list of different people may find items too; it keeps of a person what a limit would
                that is as large as the list, so `left_out` must be a function of `contributions`.
        """
        kept = 1.0 - left_out
        windows = 1 if self.question == "ranks" else self.windows
        errors = predicted_errors(left_out, _on_grid(self.noise, contributions), row=row, windows=windows)
        found = self._found(contributions, kept, row, by_list) if self.question != "ranks" else np.ones(len(kept))
        return [Prediction(*each) for each in zip(errors.tolist(), found.tolist(), strict=True)]

    def _found(self, contributions: Floats, kept: Floats, row: float, by_list: bool) -> Floats:
        """Return the share of the largest items that is found, by blocks of windows or by a list of people."""
        of_largest = row / float(np.sum(1.0 / np.arange(1, self.items + 1)))
        shares = kept / _on_grid(lambda number: self.needed(number).people, contributions)
        if by_list:
            edges = np.array(WHOLE_NUMBERS)[np.searchsorted(WHOLE_NUMBERS, contributions, side="right") - 1]
            _, others, listed = np.array([self.needed(int(edge)) for edge in edges]).T
            order = np.argsort(contributions)
            on_list = np.interp(listed, [0.0, *contributions[order]], [0.0, *kept[order]])
            shares = np.maximum(shares, on_list / others)
        return np.minimum(1.0, of_largest * shares)


def _on_grid(function: Callable[[int], float], limits: Floats) -> Floats:
    """Return a function of limits, a power of them from one number of the public grid to the next."""
    edges = np.array(WHOLE_NUMBERS)
    low, high = (np.searchsorted(edges, end, side="left") for end in (limits.min(), limits.max()))
    used = edges[max(0, low - 1) : high + 1]
    at = [function(int(edge)) for edge in used]
    found: Floats = np.exp(np.interp(np.log(limits), np.log(used), np.log(at)))
    beyond = limits > edges[-1]
    return np.where(beyond, found * np.sqrt(limits / edges[-1]), found)


def predicted_errors(left_out: Floats, noise: Floats, *, row: float, windows: int = 1) -> Floats:
    """Return a predicted error of a row for each of some limits, as a part of its number.

    It is the root of two squares: the share that the limit leaves out, and what smoothing over windows leaves of the
    noise, in relation to what the limit keeps.

    Args:
        left_out: share of all contributions that each limit leaves out, in [0, 1].
        noise: mean absolute noise of a row under each limit.
        row: the number in a row without limits, > 0.
        windows: in which rows are smoothed, all of them together; 1 where they are not.

    Returns:
        float64, of the same shape; infinite where nothing is kept.
    """
    kept = 1.0 - left_out
    with np.errstate(divide="ignore"):
        relative = noise / (row * np.maximum(kept, 0.0))
    return np.where(kept > 0, np.hypot(left_out, relative * smoothed_part(relative, windows)), math.inf)


def smoothed_part(noise: Floats, windows: int) -> Floats:
    """Return which part of the noise of a number remains when it is smoothed over windows before and after it.

    A level that moves by steps of standard deviation d, seen with noise of n much larger than d, is known with the
    variance n d / 2 from all windows, and with n^2 / windows where it does not move; the sum of both is taken, and
    `MOVES` for d.

    Args:
        noise: mean absolute noise as a part of the number.
        windows: of the run.

    Source: the steady state of the smoother of a local level, Harvey (1989), section 4.6.
    """
    if windows == 1:
        return np.ones_like(noise)
    with np.errstate(divide="ignore"):
        part: Floats = np.sqrt(np.minimum(1.0, 1 / windows + MOVES * MEAN_OF_NORMAL / (2 * noise)))
    return part


def left_out_shares(histogram: NoisyHistogram) -> tuple[list[tuple[int, int]], Floats]:
    """Return limits to choose from, each with its cell, and the share that each leaves out."""
    limits = histogram.open_limits() if histogram.total > 0 else []
    found = [min(1.0, histogram.left_out(limit) / histogram.total) for limit, _ in limits]
    return limits, np.array(found)


class Chosen(NamedTuple):
    """The best limits, each with its cell, and what is predicted of a run with them."""

    limits: tuple[tuple[int, int], ...]
    prediction: Prediction


def best_limit(histogram: NoisyHistogram, run: LaterRun, *, row: float) -> Chosen | None:
    """Return the limit with which most is shown; None if nobody can be seen who has at least 1.

    Args:
        histogram: of what people contribute.
        run: that the limit is for.
        row: the number in a row without limits.
    """
    limits, left = left_out_shares(histogram)
    if not limits:
        return None
    found = run.predict(np.array([limit for limit, _ in limits], np.float64), left, row)
    best = _best(found)
    return Chosen((limits[best],), found[best])


def best_pair(first: NoisyHistogram, second: NoisyHistogram, run: LaterRun, *, row: float) -> Chosen | None:
    """Return the best two limits, where noise grows with their product; None as above, or if a row has nothing.

    What both leave out is taken to be what each leaves out by itself.

    Args:
        first, second: of what people contribute, on whole numbers.
        run, row: as above.
    """
    (ones, of_one), (others, of_other) = left_out_shares(first), left_out_shares(second)
    if not ones or not others or not row > 0:  # without a row all limits would be equally good
        return None
    products = np.outer([one for one, _ in ones], [other for other, _ in others]).astype(np.float64)
    left = 1.0 - np.outer(1.0 - of_one, 1.0 - of_other)
    found = run.predict(products.ravel(), left.ravel(), row, by_list=False)
    best = _best(found)
    return Chosen((ones[best // len(others)], others[best % len(others)]), found[best])


class ChosenForSums(NamedTuple):
    """The best limits of contributions and of values, each with its cell, and what is predicted of counts and sums."""

    contributions: tuple[int, int]
    value: tuple[int, int]
    counts: Prediction
    sums: Prediction


def best_for_sums(
    contributions: NoisyHistogram, values: NoisyHistogram, run: LaterRun, *, row: float
) -> ChosenForSums | None:
    """Return the limits with which counts and sums of values together show most; None as above.

    Args:
        contributions: of people.
        values: of what contributions have.
        run, row: as above; the mean of all values is that of the histogram.
    """
    (limits, left), (largest, clipped) = left_out_shares(contributions), left_out_shares(values)
    people = float(values.people.sum())
    if not limits or not largest or not people > 0:
        return None
    numbers = np.array([limit for limit, _ in limits], np.float64)
    counts, noise = run.predict(numbers, left, row), _on_grid(run.noise_of_sums, numbers)
    left_of_sums = 1.0 - np.outer(1.0 - left, 1.0 - clipped)
    noises = np.outer(noise, [value for value, _ in largest])
    errors = predicted_errors(left_of_sums, noises, row=row * values.total / people)
    worth = np.array([count.worth for count in counts])[:, None]
    found = np.array([min(1.0, count.found / ENOUGH_FOUND) for count in counts])[:, None]
    best = int(np.argmax(worth + found * np.exp(-errors)))
    one, other = divmod(best, len(largest))
    sums = Prediction(float(errors[one, other]), counts[one].found)
    return ChosenForSums(limits[one], largest[other], counts[one], sums)


def enough_epsilon(predicted: Callable[[float], Sequence[Prediction] | None], epsilon: float) -> float | None:
    """Return the least epsilon, with two digits, of a run that shows enough under the limits that suit it best.

    Args:
        predicted: from an epsilon to what is predicted of a run with it; None where nothing can be.
        epsilon: below which none is looked for.

    Returns:
        None where none up to `LARGEST_EPSILON` is enough.
    """

    def enough(at: float) -> bool:
        found = predicted(at)
        return found is not None and all(one.enough for one in found)

    low, high = epsilon, LARGEST_EPSILON
    if low >= high or not enough(high):
        return None
    while high > 1.05 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return float(f"{math.ceil(high / unit * (1 - 1e-12)) * unit:.2g}")


def _best(found: Sequence[Prediction]) -> int:
    """Return the place of the prediction with which most is shown, the first of several."""
    return int(np.argmax([one.worth for one in found]))
