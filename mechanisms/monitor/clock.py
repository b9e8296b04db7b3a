"""The clock calibration: a test with count c is a hit with probability 1 - exp(-H(c)), H growing by e^eta a person."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.monitor.calibration import (
    LAST_OCTAVE,
    MonitorBudget,
    TableCalibration,
    check_reach,
)
from privstream.mechanisms.noise.discrete import WORD_BITS
from privstream.mechanisms.privacy.accounting import (
    LARGEST_EXPONENT,
    ROUNDING,
    PrivacyCurve,
    connect_dots,
    excess,
    largest,
    least_epsilon,
    losses,
)
from scipy import special
from typing_extensions import override

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LARGEST_ETA = 300.0


@dataclass(frozen=True, kw_only=True)
class ClockCurve:
    """Privacy of `clocks` exponential clocks whose rate one person multiplies by e^eta.

    Source: docs/proofs/clock.md, section 2.
    """

    eta: float
    clocks: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("clocks", self.clocks, minimum=1)

    def one_way(self, epsilon: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the divergences (with, without) and (without, with) for real epsilon, shape (n,)."""
        k, rate, growth = self.clocks, math.exp(self.eta), math.expm1(self.eta)
        late = np.maximum(0.0, epsilon + k * self.eta) / growth
        early = np.maximum(0.0, k * self.eta - epsilon) / growth
        within = excess(special.gammainc(k, rate * early), epsilon, special.gammainc(k, early))
        without = excess(special.gammaincc(k, late), epsilon, special.gammaincc(k, rate * late))
        return within, without

    def delta(self, epsilon: float) -> float:
        """Return a delta for which the mechanism is (epsilon, delta)-differentially private."""
        checks.non_negative("epsilon", epsilon)
        return float(min(1.0, max(0.0, *(side[0] for side in self.one_way(np.array([float(epsilon)]))))))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, rounded up, for which the mechanism is (epsilon, delta)-differentially private."""
        return least_epsilon(self.delta, delta)

    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Return the pessimistic privacy loss distribution that connects the dots (Doroshenko et al. 2022)."""
        return losses().PrivacyLossDistribution(*connect_dots(self.one_way, interval))


@dataclass(frozen=True, kw_only=True)
class ClockCalibration(TableCalibration):
    """Hit iff count >= T with Pr[T <= c] = 1 - exp(-H(c)); see `calibrate`.

    Known domain: H(c) = e^{eta (c - t)}, Gumbel noise of scale 1/eta. Unknown domain: H(c) = h (r^c - 1)/(r - 1) with
    r = e^eta, zero for an item that nobody has.
    """

    eta: float

    @override
    def threshold_at(self, step: int) -> float:
        # The count at which H is one, or would be.
        budget = self.budget
        if budget.domain == "known":
            return -math.log(-math.log1p(-budget.beta / (2 * budget.tests))) / self.eta
        return (math.log(math.expm1(self.eta)) - math.log(budget.domain_hazard(step))) / self.eta

    def hazard(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        """Return H(count), inf where it overflows."""
        count = np.asarray(counts, dtype=np.float64)
        exponent = np.minimum(self.eta * (count - self.threshold_at(step)), LARGEST_EXPONENT)
        known = np.exp(exponent)
        return known if self.budget.domain == "known" else known * -np.expm1(-self.eta * np.maximum(count, 0.0))

    @override
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        return np.exp(-self.hazard(counts, step=step))

    @override
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        return -np.expm1(-self.hazard(counts, step=step))

    @override
    def _absent_hit(self) -> Any:
        return -mpmath.expm1(-mpmath.exp(-mpmath.mpf(self.eta) * mpmath.mpf(self.threshold)))

    @property
    def reach(self) -> float:
        """About the largest hidden threshold: beyond it a miss is less likely than a table can say."""
        return self.threshold_at(1 << LAST_OCTAVE) + math.log(math.log(2) * WORD_BITS) / self.eta

    @override
    def survival(self, octave: int) -> Callable[[int], Any]:
        step, growth = 1 << octave, mpmath.exp(mpmath.mpf(self.eta))
        if self.budget.domain == "known":
            unit = mpmath.exp(-mpmath.mpf(self.eta) * mpmath.mpf(self.threshold_at(step)))
        else:
            unit = mpmath.mpf(self.budget.domain_hazard(step)) / (growth - 1)
        return lambda k: mpmath.exp(-unit * (growth**k - 1))

    @property
    @override
    def proof(self) -> str:
        return f"docs/proofs/clock.md, Theorem {1 if self.budget.domain == 'known' else 2}"

    @functools.cached_property
    @override
    def hits_curve(self) -> PrivacyCurve:
        return ClockCurve(eta=self.eta, clocks=self.budget.max_hits)


def largest_eta(budget: MonitorBudget, curve: Callable[[float], PrivacyCurve]) -> float:
    """Return the largest eta at which a curve, whose delta does not decrease with eta, meets `budget`."""
    goal = budget.hits_delta * (1 - ROUNDING)
    return largest(lambda eta: curve(eta).delta(budget.hits_epsilon) <= goal, 0.0, LARGEST_ETA)


@functools.lru_cache(maxsize=64)
def calibrate(budget: MonitorBudget) -> ClockCalibration:
    """Return the least noise for which the clock monitor meets `budget`.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; binary membership. Theorems 1 and 2 of
    docs/proofs/clock.md.

    Accuracy: `detection_threshold`; in a known domain no absent item is ever reported, with probability 1 - beta/2.

    Example:
        >>> budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=10**6, beta=0.01)
        >>> calibrate(budget).detection_threshold(10**6, 0.01)
        330

    Source: docs/proofs/clock.md.
    """

    def curve(eta: float) -> ClockCurve:
        return ClockCurve(eta=eta, clocks=budget.max_hits)

    eta = largest_eta(budget, curve)
    calibration = ClockCalibration(budget=budget, noise_scale=1 / eta, eta=eta)
    check_reach(budget, calibration.reach)
    return replace(calibration, count_sigma=budget.count_sigma(calibration.hits_curve))
