"""The target charging calibration: discrete Laplace noise on every test, and only hits are charged."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.monitor.calibration import (
    LAST_OCTAVE,
    MonitorBudget,
    TableCalibration,
    check_reach,
)
from privstream.mechanisms.noise.discrete import WORD_BITS
from privstream.mechanisms.privacy.accounting import ROUNDING, PairCurve, excess, largest
from scipy import special
from typing_extensions import override

LARGEST_EPSILON_PER_TEST = 300.0
NEGLIGIBLE = 1e-30


@dataclass(frozen=True, kw_only=True)
class ResponseCurve(PairCurve):
    """Privacy of randomised responses of `epsilon_per_test` each, until the `hits`-th one.

    Source: docs/proofs/target_charging.md.
    """

    epsilon_per_test: float
    hits: int
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        checks.positive("epsilon_per_test", self.epsilon_per_test)
        checks.integer("hits", self.hits, minimum=1)
        checks.one_of("neighbouring", self.neighbouring, ("add_remove", "replace_one"))

    @override
    def one_way(self, epsilon: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        k, low, high = self.hits, *self._odds()
        late = np.floor(k + epsilon / self.epsilon_per_test)
        early = np.ceil(k - epsilon / self.epsilon_per_test) - 1
        within = excess(scipy.stats.nbinom.cdf(early, k, high), epsilon, scipy.stats.nbinom.cdf(early, k, low))
        without = excess(scipy.stats.nbinom.sf(late, k, low), epsilon, scipy.stats.nbinom.sf(late, k, high))
        return within, without

    @override
    def replaced(self, epsilon: float) -> float:
        # A difference of two negative binomials.
        k, low, high = self.hits, *self._odds()
        lead = math.floor(epsilon / self.epsilon_per_test)
        misses = np.arange(int(scipy.stats.nbinom.isf(NEGLIGIBLE, k, high)) + 1)
        forwards = scipy.stats.nbinom.pmf(misses, k, high) * scipy.stats.nbinom.sf(misses + lead, k, low)
        backwards = scipy.stats.nbinom.pmf(misses, k, low) * scipy.stats.nbinom.sf(misses + lead, k, high)
        left_out = scipy.stats.nbinom.sf(misses[-1], k, high)
        return float(left_out + excess(forwards.sum(), np.asarray(epsilon), backwards.sum()))

    def _odds(self) -> tuple[float, float]:
        """Return the chances of a hit without and with the person."""
        return float(special.expit(-self.epsilon_per_test)), float(special.expit(self.epsilon_per_test))


@dataclass(frozen=True, kw_only=True)
class TargetChargingCalibration(TableCalibration):
    """Hit iff count + discrete Laplace noise of scale `noise_scale` >= threshold, an integer; see `calibrate`."""

    @override
    def threshold_at(self, step: int) -> float:
        return float(_threshold(self, self.budget.octave(step)))

    @override
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        return self._tail(np.asarray(counts, dtype=np.float64) - self.threshold_at(step) + 1)

    @override
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        count = np.asarray(counts, dtype=np.float64)
        hit = self._tail(self.threshold_at(step) - count)
        return hit if self.budget.domain == "known" else np.where(count >= 1, hit, 0.0)

    def _tail(self, least: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Pr[noise >= least] for integers."""
        rate = 1 / self.noise_scale
        above = np.exp(-rate * np.maximum(least, 0)) / (1 + math.exp(-rate))
        return np.where(least >= 1, above, 1 - np.exp(-rate * np.maximum(1 - least, 0)) / (1 + math.exp(-rate)))

    @override
    def _absent_hit(self) -> Any:
        return 1 - _survival(self.noise_scale, int(self.threshold))(0)

    @override
    def survival(self, octave: int) -> Callable[[int], Any]:
        survival = _survival(self.noise_scale, _threshold(self, octave))
        present = survival(0) if self.budget.domain == "known" else mpmath.mpf(1)
        return lambda k: survival(k) / present

    @property
    @override
    def proof(self) -> str:
        theorem = 1 if self.budget.neighbouring == "add_remove" else 2
        domain = "" if self.budget.domain == "known" else " and Theorem 3"
        return f"docs/proofs/target_charging.md, Theorem {theorem}{domain}"

    @functools.cached_property
    @override
    def hits_curve(self) -> ResponseCurve:
        budget = self.budget
        rate = 1 / self.noise_scale
        return ResponseCurve(epsilon_per_test=rate, hits=budget.charges, neighbouring=budget.neighbouring)


def _threshold(calibration: TargetChargingCalibration, octave: int) -> int:
    """Return the least integer threshold that keeps items of nobody, or of one person, out of sight."""
    budget, scale = calibration.budget, calibration.noise_scale
    if budget.domain == "known":
        shift, allowed = 0, budget.beta / (2 * budget.tests)
    else:
        shift, allowed = 1, -math.expm1(-budget.domain_hazard(1 << octave)) * (1 - ROUNDING)
    return shift + max(1, math.ceil(-scale * (math.log(allowed) + math.log1p(math.exp(-1 / scale)))))


def _survival(scale: float, threshold: int) -> Callable[[int], Any]:
    """Return k -> Pr[T > k] for T = threshold - discrete Laplace noise."""
    ratio = mpmath.exp(-1 / mpmath.mpf(scale))

    def survival(k: int) -> Any:
        if k < threshold:
            return 1 - ratio ** (threshold - k) / (1 + ratio)
        return ratio ** (k + 1 - threshold) / (1 + ratio)

    return survival


@functools.lru_cache(maxsize=64)
def calibrate(budget: MonitorBudget) -> TargetChargingCalibration:
    """Return the least noise for which the target charging monitor meets `budget`.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; binary membership. Theorems 1 to 3 of
    docs/proofs/target_charging.md.

    Accuracy: `detection_threshold`; in a known domain no absent item is ever reported, with probability 1 - beta/2.

    Example:
        >>> budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=10**6, beta=0.01)
        >>> calibrate(budget).detection_threshold(10**6, 0.01)
        793

    Source: Cohen and Lyu (2023); exact form in docs/proofs/target_charging.md.
    """
    goal = budget.hits_delta * (1 - ROUNDING)

    def accept(rate: float) -> bool:
        curve = ResponseCurve(epsilon_per_test=rate, hits=budget.charges, neighbouring=budget.neighbouring)
        return curve.delta(budget.hits_epsilon) <= goal

    rate = largest(accept, 0.0, LARGEST_EPSILON_PER_TEST)
    calibration = TargetChargingCalibration(budget=budget, noise_scale=1 / rate)
    check_reach(budget, _threshold(calibration, budget.octave(1 << LAST_OCTAVE)) + math.log(2) * WORD_BITS / rate)
    return replace(calibration, count_sigma=budget.count_sigma(calibration.hits_curve))
