"""The privacy curve of Gaussian noise, and the discrete Gaussian parameters that stay within it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.accounting import FUNCTION_ERROR, ROUNDING, largest, least_epsilon
from scipy import special

SMALLEST_SIGMA = 3.0
SMOOTHING = 4.0  # variance that turns continuous Gaussian noise into discrete (docs/proofs/counters.md, Lemma 1)
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1e-9, 1e3


@dataclass(frozen=True, kw_only=True)
class GaussianCurve:
    """Telling N(0, 1) from N(shift, 1), in one look or in any number of adaptive ones (Balle and Wang 2018)."""

    shift: float

    def __post_init__(self) -> None:
        checks.positive("shift", self.shift)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which the mechanism is (epsilon, delta)-differentially private."""
        middle = checks.non_negative("epsilon", epsilon) / self.shift
        likely = float(special.log_ndtr(self.shift / 2 - middle))
        unlikely = float(special.log_ndtr(-self.shift / 2 - middle))
        rounded = math.exp(likely) * (1 + FUNCTION_ERROR) - math.exp(epsilon + unlikely) * (1 - FUNCTION_ERROR)
        return min(1.0, max(0.0, rounded))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, rounded up, for which the mechanism is (epsilon, delta)-differentially private."""
        return least_epsilon(self.delta, delta)

    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Return a pessimistic privacy loss distribution on multiples of `interval`."""
        return privacy_loss_distribution.from_gaussian_mechanism(
            1 / self.shift, value_discretization_interval=interval, use_connect_dots=True
        )


@functools.lru_cache(maxsize=256)
def largest_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift, rounded down, that is (epsilon, delta)-differentially private.

    >>> round(1 / largest_shift(1.0, 1e-6), 4)
    4.2247
    """
    checks.positive("epsilon", epsilon)
    checks.probability("delta", delta)

    def accept(shift: float) -> bool:
        return GaussianCurve(shift=shift).delta(epsilon) <= delta * (1 - ROUNDING)

    if not accept(_SMALLEST_SHIFT):
        raise ValueError(f"epsilon must be larger at delta {delta:g}, got {epsilon}")
    return largest(accept, _SMALLEST_SHIFT, _LARGEST_SHIFT)


def counting_sigma(epsilon: float, delta: float, changes: int) -> float:
    """Return sigma for discrete Gaussian noise on integers of which at most `changes` change, by 1 each."""
    shift = largest_shift(epsilon, delta)
    return max(SMALLEST_SIGMA, math.sqrt(changes / shift**2 + SMOOTHING / changes))


def sensitivity_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return sigma for discrete Gaussian noise on integer vectors of that L2 sensitivity."""
    return max(SMALLEST_SIGMA, math.sqrt((sensitivity / largest_shift(epsilon, delta)) ** 2 + SMOOTHING))
