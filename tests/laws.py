"""What tables of laws say, and how sure tests of them and attacks with samples are."""

import numpy as np
from privstream.mechanisms.noise.discrete import ONE
from privstream.mechanisms.privacy.accounting import LARGEST_EXPONENT

FALSE_ALARM = 1e-10
"""Probability with which a test may reject the law that is right."""


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


def end_hazard(calibrated, counts):
    """Return -ln of the chance that an up item with each count stays up."""
    return np.exp(np.minimum(calibrated.eta * (calibrated.end_threshold - np.asarray(counts)), LARGEST_EXPONENT))


def words(law):
    """Return the cumulative numbers of a table, in multiples of 2^-128."""
    return [high << 64 | low for high, low in zip(law.high.tolist(), law.low.tolist(), strict=True)]


def _places(law, k):
    return np.clip(np.asarray(k, np.int64) - law.first + 1, 0, len(law.high) + 1)
