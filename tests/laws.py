"""What tables of laws say, and how many draws tell one law from another: the fewest that a test needs."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms.noise.discrete import ONE
from privstream.pipelines.audit.evidence import at_least, at_most
from scipy import stats

FALSE_ALARM = 1e-10
"""Probability with which a test may reject the law that is right."""

MISS = 1e-4
"""Probability with which a test, with a seed drawn by chance, may accept the wrong law that it names."""


def cdf(law, k):
    """Return Pr[X <= k] of an `IntegerLaw`."""
    return np.array([0.0, *(word / ONE for word in words(law)), 1.0])[_places(law, k)]


def survival(law, k):
    """Return Pr[X > k], at full relative precision."""
    return np.array([1.0, *((ONE - word) / ONE for word in words(law)), 0.0])[_places(law, k)]


def mass(law, k):
    """Return Pr[X = k] for one k, at full relative precision."""
    numbers, place = [0, *words(law), ONE], k - law.first
    return (numbers[place + 1] - numbers[place]) / ONE if 0 <= place < len(numbers) - 1 else 0.0


def words(law):
    """Return the cumulative numbers of a table, in multiples of 2^-128."""
    return [high << 64 | low for high, low in zip(law.high.tolist(), law.low.tolist(), strict=True)]


def _places(law, k):
    return np.clip(np.asarray(k, np.int64) - law.first + 1, 0, len(law.high) + 1)


def samples_to_tell(true: ArrayLike, wrong: ArrayLike, *, false_alarm: float = FALSE_ALARM, miss: float = MISS) -> int:
    """Return how many draws a chi-square test needs that accepts the masses `true` and rejects draws from `wrong`.

    For two probabilities of one event, give the masses of the event and of its complement.
    """
    true, wrong = np.asarray(true, float), np.asarray(wrong, float)
    degrees, distance = len(true) - 1, float(np.sum((wrong - true) ** 2 / true))
    limit = stats.chi2.isf(false_alarm, degrees)
    spread = max(1.0, float(np.max(wrong / true)))  # the wrong law's counts may vary more than those of the true one
    return fewest(lambda draws: stats.ncx2.cdf(limit / spread, degrees, draws * distance / spread) <= miss)


def trials_to_refute(likely: float, unlikely: float, epsilon: float, delta: float = 0.0, *, miss: float = MISS) -> int:
    """Return how many trials of each world prove that a mechanism breaks its claim, by an event with these chances.

    Proofs are the bounds of Clopper and Pearson, of which a false alarm is as rare as `FALSE_ALARM`; trials that choose
    the event are not counted.
    """

    def enough(trials: int) -> bool:
        hits, false_hits = stats.binom.ppf(miss / 2, trials, likely), stats.binom.isf(miss / 2, trials, unlikely)
        low, high = at_least(hits, trials, FALSE_ALARM / 2), at_most(false_hits, trials, FALSE_ALARM / 2)
        return bool(low - delta > math.exp(epsilon) * high)

    return fewest(enough)


def fewest(enough: Callable[[int], bool]) -> int:
    """Return about the least number, up to a percent, that is enough; more than enough is enough."""
    high = 1
    while not enough(high):
        high *= 2
        if high > 1 << 40:
            raise ValueError("no number of draws is enough")
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
