"""Noisy counts of hits: discrete Gaussian noise on the gated count of each hit, accounted with the hits themselves."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy  # its parts are loaded when they are used
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.accounting import ROUNDING, PrivacyCurve, losses
from typing_extensions import override

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SIGMA_PRECISION = 1e-3
SIGMA_BITS = 16
SMALLEST_SIGMA = 0.5
LARGEST_SIGMA = 1e6  # of the sampler
TOO_LITTLE = f"count_share must leave enough for counts with sigma <= {LARGEST_SIGMA:g} at this budget"
LEAST_DELTA = 1e-13  # what compositions cut off, and their rounding, is far below


@dataclass(frozen=True, kw_only=True)
class CountCurve(PrivacyCurve):
    """`releases` counts, each changed by one person by at most 1, with discrete Gaussian noise of parameter `sigma`."""

    sigma: float
    releases: int

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.integer("releases", self.releases, minimum=1)

    @functools.cached_property
    def _pld(self) -> PrivacyLossDistribution:
        return self.to_pld(grid(math.sqrt(self.releases) / self.sigma, self.releases))

    @override
    def delta(self, epsilon: float) -> float:
        return float(min(1.0, self._pld.get_delta_for_epsilon(checks.non_negative("epsilon", epsilon))))

    @override
    def epsilon(self, delta: float) -> float:
        return float(self._pld.get_epsilon_for_delta(checks.probability("delta", delta)))

    @override
    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        one = losses().from_discrete_gaussian_mechanism(
            self.sigma, value_discretization_interval=interval, use_connect_dots=True
        )
        return one.self_compose(self.releases)


def grid(epsilon: float, releases: int) -> float:
    """Return a grid of privacy losses on which `releases` of them lose well under one percent of epsilon."""
    return min(1e-2, epsilon / (100 * math.sqrt(releases)))


def rounded_up(sigma: float) -> float:
    """Return the next number of `SIGMA_BITS` bits.

    Privacy: processors compute exponentials with other last bits, from which the search makes other digits. Noise of
    one label at two scales would differ in few counts, and show those.
    """
    fraction, exponent = math.frexp(sigma)
    return math.ldexp(math.ceil(math.ldexp(fraction, SIGMA_BITS)), exponent - SIGMA_BITS)


def solve_sigma(*, hits: PrivacyCurve, charges: int, epsilon: float, delta: float) -> float:
    """Return the smallest sigma (within 0.1%, rounded up) so that hits and counts are (epsilon, delta)-private.

    Privacy: the whole transcript is post-processing of one clock (or run of responses) and one count per charge,
    all independent, so that the convolution of their losses dominates (docs/proofs/noisy_counts.md).

    Raises:
        ValueError: no sigma that can be drawn suffices: the hits leave nothing of (epsilon, delta), or too little; or
            delta is smaller than what accounts can resolve.
    """
    if delta < LEAST_DELTA:
        raise ValueError(f"delta must leave at least {LEAST_DELTA:g} for noisy counts, got {delta:g}")
    start = SMALLEST_SIGMA + math.sqrt(charges) / epsilon
    if start > LARGEST_SIGMA:
        raise ValueError(TOO_LITTLE)
    interval = grid(epsilon, charges)
    spent = hits.to_pld(interval)

    @functools.cache
    def excess(log_sigma: float) -> float:
        """Return the logarithm of delta over its goal."""
        curve = CountCurve(sigma=math.exp(log_sigma), releases=charges)
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(spent.get_delta_for_epsilon_for_composed_pld(curve.to_pld(interval), epsilon))
        found = 1.0 if math.isnan(found) else found  # losses too large to tell: far too little noise
        return math.log(max(found, sys.float_info.min)) - math.log(delta * (1 - ROUNDING))

    high = math.log(start)
    if hits.delta(epsilon) < delta:
        while excess(high) > 0 and high < math.log(LARGEST_SIGMA):
            high += 1
    if hits.delta(epsilon) >= delta or excess(high) > 0:
        raise ValueError(TOO_LITTLE)
    low = high
    while excess(low) <= 0:
        high, low = low, low - 1
        if low < math.log(SMALLEST_SIGMA):
            return rounded_up(math.exp(high))
    found = float(scipy.optimize.brentq(excess, low, high, xtol=SIGMA_PRECISION / 4))
    tried = (rounded_up(math.exp(log)) for log in itertools.count(found, SIGMA_PRECISION / 4))
    sigma = next(sigma for sigma in tried if excess(math.log(sigma)) <= 0)
    if sigma > LARGEST_SIGMA:
        raise ValueError(TOO_LITTLE)
    return sigma
