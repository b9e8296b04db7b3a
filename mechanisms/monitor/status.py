"""The status calibration: down items are tested by the clock, up items by its mirror image, and changes are charged."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.monitor.calibration import PRECISION, MonitorBudget, check_reach
from privstream.mechanisms.monitor.clock import ClockCalibration, largest_eta
from privstream.mechanisms.noise.discrete import WORD_BITS, IntegerLaw
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import (
    LARGEST_EXPONENT,
    PrivacyCurve,
    connect_dots,
    least_epsilon,
    losses,
)
from scipy import special
from typing_extensions import override

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


LARGEST_CHARGES = 1 << 14
SERIES_ERROR = 1e-9  # relative, of the sums below; tested against mpmath
CLEAR = 1e-9  # people: a detection threshold is not missed by rounding


@dataclass(frozen=True, kw_only=True)
class StatusCurve:
    """Privacy of one person's `charges` when an adversary chooses before each moment which of two clocks runs.

    One clock has rate 1 without the person and e^eta with, the other one the other way round; each ring is a charge.

    Source: docs/proofs/status_monitor.md, Theorem 1.
    """

    eta: float
    charges: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("charges", self.charges, minimum=1, maximum=LARGEST_CHARGES)

    def delta(self, epsilon: float) -> float:
        """Return the least delta for which the monitor is (epsilon, delta)-differentially private, rounded up."""
        return float(min(1.0, self.divergence(np.array([checks.non_negative("epsilon", epsilon)]))[0]))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, rounded up, for which the monitor is (epsilon, delta)-differentially private."""
        return least_epsilon(self.delta, delta)

    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Return the pessimistic privacy loss distribution that connects the dots (Doroshenko et al. 2022)."""
        return losses().PrivacyLossDistribution(connect_dots(self._both_ways, interval)[0])

    def divergence(self, epsilon: Floats) -> Floats:
        """Return the largest P(E) - e^epsilon Q(E), for real epsilon, shape (n,); P is either of the worlds."""
        distance = np.abs(epsilon)
        found = np.zeros_like(distance)
        for rings in range(self.charges):
            found += self._rings(distance, np.array(float(rings))) * self._at_zero[self.charges - rings]
        found *= 1 + SERIES_ERROR
        return np.where(epsilon >= 0, found, np.exp(-distance) * found - np.expm1(-distance))

    def _both_ways(self, epsilon: Floats) -> tuple[Floats, Floats]:
        found = self.divergence(epsilon)
        return found, found

    def _rings(self, distance: Floats, rings: Floats) -> Floats:
        """Return the chance of so many rings, each of which adds eta to the distance, before it is used up."""
        whole = distance + rings * self.eta
        mean = whole / math.expm1(self.eta)
        poisson = np.exp(special.xlogy(rings, mean) - mean - special.gammaln(rings + 1))
        return np.asarray(poisson * np.where(rings == 0, 1.0, distance / np.where(whole > 0, whole, 1.0)))

    @functools.cached_property
    def _at_zero(self) -> Floats:
        """The divergence at epsilon = 0 for 0, 1, .., `charges` charges."""
        sure, open_ = math.tanh(self.eta / 2), 2 * float(special.expit(-self.eta))
        back = self._rings(np.array(self.eta), np.arange(float(self.charges)))
        found = np.zeros(self.charges + 1)
        for charges in range(1, self.charges + 1):
            found[charges] = sure + open_ * (back[:charges] @ found[charges - 1 :: -1])
        return found


@dataclass(frozen=True, kw_only=True)
class StatusCalibration(ClockCalibration):
    """Down items go up as the clock hits; up items go down iff count < T', Pr[T' <= c] = exp(-e^{-eta (c - t')}).

    Attributes:
        up_steps: steps at which an item is up, of all items together, for which the accuracy is stated.
    """

    up_steps: int

    charged_for: ClassVar[str] = "change"
    published: ClassVar[str] = "the changes of status"

    @functools.cached_property
    def end_threshold(self) -> float:
        """t': the count at which the hazard of going down is one.

        So low that an item with the detection threshold stays up, and so high that an item of nobody goes down.
        """
        started = super().detection_threshold(self.budget.tests, self.budget.beta / 2) - CLEAR
        return max(started - self._stay_margin / self.eta, math.log(self._stay_margin) / self.eta)

    @property
    def _stay_margin(self) -> float:
        """-ln of the chance that one down-test goes wrong, for all together to go wrong with beta / 4."""
        return math.log(4 * self.up_steps / self.budget.beta)

    def end_hazard(self, counts: ArrayLike) -> Floats:
        """Return -ln of the chance that an up item with each count stays up, inf where it overflows."""
        exponent = self.eta * (self.end_threshold - np.asarray(counts, dtype=np.float64))
        return np.exp(np.minimum(exponent, LARGEST_EXPONENT))

    def stay_probability(self, counts: ArrayLike) -> Floats:
        """Return Pr[T' <= count] for each count, accurate also when tiny."""
        return np.exp(-self.end_hazard(counts))

    def end_probability(self, counts: ArrayLike) -> Floats:
        """Return Pr[T' > count] for each count, accurate also when tiny."""
        return -np.expm1(-self.end_hazard(counts))

    def ends_with(self, beta: float) -> int:
        """Return the largest count with which an up item goes down at once with probability 1 - beta; -1 if none."""
        hazard = -math.log(checks.probability("beta", beta))
        return max(-1, math.floor(self.end_threshold - math.log(hazard) / self.eta))

    def draw_end_thresholds(self, noise: NoiseSource, labels: Labels) -> NDArray[np.int64]:
        """Return hidden thresholds T' >= 0, one per label, int64 (n,)."""
        return self.end_law.draw(noise, labels)

    @property
    def end_law(self) -> IntegerLaw:
        """The law of max(T', 0), exact to 128 bits."""
        return _end_law(self)

    @property
    @override
    def reach(self) -> float:
        return max(super().reach, self.end_threshold + math.log(2) * WORD_BITS / self.eta)

    @override
    def detection_threshold(self, tests: int, beta: float, *, step: int = 1) -> int:
        # A quarter of beta is for `tests` up-tests, a quarter for `up_steps` down-tests; the rest is left to items
        # wrongly reported. So an item with this count starts at once and does not end.
        starts = super().detection_threshold(tests, beta / 2, step=step)
        return max(starts, math.ceil(self.end_threshold + math.log(4 * self.up_steps / beta) / self.eta))

    @property
    @override
    def proof(self) -> str:
        return f"docs/proofs/status_monitor.md, Theorem {1 if self.budget.domain == 'known' else 2}"

    @functools.cached_property
    @override
    def hits_curve(self) -> PrivacyCurve:
        return _curve(self.budget, self.eta)


def _curve(budget: MonitorBudget, eta: float) -> StatusCurve:
    return StatusCurve(eta=eta, charges=budget.max_hits)


@functools.lru_cache(maxsize=64)
def _end_law(calibration: StatusCalibration) -> IntegerLaw:
    with mpmath.workprec(PRECISION):
        eta, threshold = mpmath.mpf(calibration.eta), mpmath.mpf(calibration.end_threshold)
    return IntegerLaw.from_survival(0, _end_survival(eta, threshold))


def _end_survival(eta: Any, threshold: Any) -> Callable[[int], Any]:
    """Return k -> 1 - exp(-e^{-eta (k - threshold)}), the chance to go down with k people."""
    return lambda k: -mpmath.expm1(-mpmath.exp(-eta * (k - threshold)))


@functools.lru_cache(maxsize=64)
def calibrate(budget: MonitorBudget, up_steps: int) -> StatusCalibration:
    """Return the least noise for which the status monitor meets `budget`.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; binary membership. Theorems 1 and 2 of
    docs/proofs/status_monitor.md.

    Accuracy: `detection_threshold` and `end_probability`; in a known domain no absent item is ever reported, with
    probability 1 - beta/2.

    Raises:
        ValueError: `max_hits` is too large to be accounted for.

    Example:
        >>> budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=10**6, beta=0.01)
        >>> round(calibrate(budget, up_steps=100_000).noise_scale, 2)
        15.24

    Source: docs/proofs/status_monitor.md.
    """
    if budget.max_hits > LARGEST_CHARGES:
        raise ValueError(f"max_hits must be <= {LARGEST_CHARGES:,} for statuses, got {budget.max_hits:,}")
    eta = largest_eta(budget, functools.partial(_curve, budget))
    calibration = StatusCalibration(budget=budget, noise_scale=1 / eta, eta=eta, up_steps=up_steps)
    check_reach(budget, calibration.reach)
    return replace(calibration, count_sigma=budget.count_sigma(calibration.hits_curve))
