"""How many draws tell one law from another: the fewest that a test needs, for its false alarm rate and its power."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from privstream.pipelines.audit.evidence import at_least, at_most
from scipy import stats

FALSE_ALARM = 1e-10
"""Probability with which a test may reject the law that is right."""

MISS = 1e-4
"""Probability with which a test, with a seed drawn by chance, may accept the wrong law that it names."""


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
