"""Privacy curves: delta as a function of epsilon, how curves compose, and the scale of Gaussian noise."""

from __future__ import annotations

import functools
import importlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from scipy import special
from typing_extensions import override

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

TAIL = 1e-15  # privacy losses less likely than this are counted as infinite
LARGEST_EPSILON = 1e4
MAX_GRID = 4_000_000
LARGEST_EXPONENT = 600.0  # e^600 is still a float
ROUNDING = 1e-9  # relative; solvers stay so far below their goal, for rounded parameters
SUM_ERROR = 1e-6  # relative, of delta summed over a privacy loss distribution
FUNCTION_ERROR = 1e-12  # relative, of tail probabilities from scipy; tested against mpmath
SMALLEST_SIGMA = 3.0
SMOOTHING = 4.0  # variance that turns continuous Gaussian noise into discrete (docs/proofs/counters.md, Lemma 1)
LARGEST_CHARGES = 1 << 14
LEAST_DELTA = 1e-13  # what compositions cut off, and their rounding, is far below

_SERIES_ERROR = 1e-9  # relative, of the sums of `StatusCurve`; tested against mpmath
_SIGMA_BITS = 16
_SHIFT_PRECISION = 1e-3
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1e-9, 1e3
_NEAR = 1e-12  # relative; losses within it of the largest one count as the largest


class PrivacyCurve(ABC):
    """All (epsilon, delta) pairs that a mechanism satisfies, never better than the truth."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return a delta for which the mechanism is (epsilon, delta)-differentially private."""

    def epsilon(self, delta: float) -> float:
        """Return an epsilon, rounded up, for which the mechanism is (epsilon, delta)-differentially private."""
        return least_epsilon(self.delta, delta)

    @abstractmethod
    def to_pld(self, interval: float) -> PrivacyLossDistribution:
        """Return a pessimistic privacy loss distribution on multiples of `interval`."""


class DivergenceCurve(PrivacyCurve):
    """A curve that is known in closed form."""

    @abstractmethod
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        """Return the divergences with against without, and without against with, unless equal; real epsilon, (n,)."""

    @override
    def delta(self, epsilon: float) -> float:
        at = np.array([checks.non_negative("epsilon", epsilon)])
        return float(min(1.0, max(0.0, *(side[0] for side in self.one_way(at)))))

    @override
    def to_pld(self, interval: float) -> PrivacyLossDistribution:
        # Divergences on the grid are joined by chords (Doroshenko et al. 2022).
        checks.positive("interval", interval)
        reach = 1.0
        while max(side[0] for side in self.one_way(np.array([reach]))) > TAIL and reach < LARGEST_EPSILON:
            reach *= 1.25
        steps = math.ceil(reach / interval)
        if steps > MAX_GRID:
            raise ValueError(
                f"epsilon must be nearer to 1: losses up to {reach:g} in steps of {interval:g} are too many"
            )
        connected = _losses("pld_pmf").create_pmf_pessimistic_connect_dots_fixed_gap
        sides = self.one_way(np.linspace(-steps * interval, steps * interval, 2 * steps + 1))
        falling = (np.minimum.accumulate(np.clip(side, 0.0, 1.0)) for side in sides)
        return _losses().PrivacyLossDistribution(*(connected(interval, -steps, steps, side) for side in falling))


def _losses(module: str = "privacy_loss_distribution") -> Any:
    """Return a module of `dp_accounting.pld`, which takes long to load: plans do without."""
    return importlib.import_module(f"dp_accounting.pld.{module}")


def largest(accept: Callable[[float], bool], low: float, high: float, precision: float = 1e-12) -> float:
    """Return a point of [low, high] that `accept` accepts, near the last one; needs accept(low)."""
    if accept(high):
        return high
    while high - low > precision * high:
        middle = math.sqrt(low * high) if high > 4 * low > 0 else (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if accept(middle) else (low, middle)
    return low


def smallest(accept: Callable[[float], bool], low: float, high: float, precision: float = 1e-12) -> float:
    """Return a point of [low, high] that `accept` accepts, near the first one; needs accept(high)."""
    while high - low > precision * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if accept(middle) else (middle, high)
    return high


def least_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """Return the least epsilon, rounded up, with curve(epsilon) <= delta; inf if there is none below 10,000."""
    checks.probability("delta", delta)
    if curve(0.0) <= delta:
        return 0.0
    if curve(LARGEST_EPSILON) > delta:
        return math.inf
    return smallest(lambda epsilon: curve(epsilon) <= delta, 0.0, LARGEST_EPSILON)


def excess(likely: Floats, epsilon: Floats, unlikely: Floats) -> Floats:
    """Return likely - e^epsilon unlikely, at least zero, rounded up by what the tail probabilities may be wrong."""
    weight = np.exp(np.minimum(epsilon, LARGEST_EXPONENT)) * (1 - FUNCTION_ERROR)
    return np.maximum(0.0, likely * (1 + FUNCTION_ERROR) - weight * unlikely)


@dataclass(frozen=True)
class PointCurve(PrivacyCurve):
    """What (epsilon, delta)-differential privacy at one point implies at all others (Kairouz et al. 2015)."""

    at_epsilon: float
    at_delta: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("at_epsilon", self.at_epsilon)
        checks.probability("at_delta", self.at_delta, zero=True)

    @override
    def delta(self, epsilon: float) -> float:
        response = 1 / (1 + math.exp(-self.at_epsilon))
        excess = response * -math.expm1(min(0.0, checks.non_negative("epsilon", epsilon) - self.at_epsilon))
        return self.at_delta + (1 - self.at_delta) * excess

    @override
    def epsilon(self, delta: float) -> float:
        return self.at_epsilon if delta == self.at_delta else least_epsilon(self.delta, delta)

    @override
    def to_pld(self, interval: float) -> PrivacyLossDistribution:
        # Randomised response that fails with `at_delta`, rounded up.
        parameters = _losses("common").DifferentialPrivacyParameters(self.at_epsilon, self.at_delta)
        return _losses().from_privacy_parameters(parameters, value_discretization_interval=interval)


class PureDp(PointCurve):
    """What (epsilon, 0)-differential privacy implies: `PureDp(0.5)`."""


@dataclass(frozen=True, kw_only=True)
class GaussianCurve(DivergenceCurve):
    """Telling N(0, 1) from N(shift, 1), in one look or in any number of adaptive ones (Balle and Wang 2018)."""

    shift: float

    def __post_init__(self) -> None:
        checks.positive("shift", self.shift)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        half, middle = self.shift / 2, epsilon / self.shift
        unlikely = np.exp(epsilon + special.log_ndtr(-half - middle))
        found = special.ndtr(half - middle) * (1 + FUNCTION_ERROR) - unlikely * (1 - FUNCTION_ERROR)
        return (np.maximum(0.0, found),)


@dataclass(frozen=True, kw_only=True)
class PureComposition(DivergenceCurve):
    """The adaptive composition of `rounds` mechanisms, each `round_epsilon`-DP; exact for the worst of them.

    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3: nothing is worse than as many randomised responses.
    """

    rounds: int
    round_epsilon: float

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, minimum=1)
        checks.positive("round_epsilon", self.round_epsilon)

    @override
    def epsilon(self, delta: float) -> float:
        return self.rounds * self.round_epsilon if delta == 0 else super().epsilon(delta)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        # Pr[loss > epsilon] - e^epsilon Pr'[loss > epsilon] for the loss (2 B - rounds) round_epsilon, where B counts
        # the true answers among `rounds` randomised responses.
        largest = self.rounds * self.round_epsilon * (1 - _NEAR)
        needed = np.minimum(np.floor((self.rounds + epsilon / self.round_epsilon) / 2), self.rounds)
        with np.errstate(divide="ignore"):
            likely, unlikely = (
                np.log(special.bdtrc(needed, self.rounds, special.expit(sign * self.round_epsilon))) for sign in (1, -1)
            )
        difference = np.exp(likely) - np.exp(np.minimum(epsilon + unlikely, likely))
        return (np.where(epsilon >= largest, 0.0, difference),)


@dataclass(frozen=True, kw_only=True)
class ClockCurve(DivergenceCurve):
    """Privacy of `clocks` exponential clocks whose rate one person multiplies by e^eta.

    Source: docs/proofs/clock.md, section 2.
    """

    eta: float
    clocks: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("clocks", self.clocks, minimum=1)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        k, rate, growth = self.clocks, math.exp(self.eta), math.expm1(self.eta)
        late = np.maximum(0.0, epsilon + k * self.eta) / growth
        early = np.maximum(0.0, k * self.eta - epsilon) / growth
        within = excess(special.gammainc(k, rate * early), epsilon, special.gammainc(k, early))
        without = excess(special.gammaincc(k, late), epsilon, special.gammaincc(k, rate * late))
        return within, without


@dataclass(frozen=True, kw_only=True)
class StatusCurve(DivergenceCurve):
    """Privacy of one person's `charges` when an adversary chooses before each moment which of two clocks runs.

    One clock has rate 1 without the person and e^eta with, the other one the other way round; each ring is a charge.

    Source: docs/proofs/status_monitor.md, Theorem 1.
    """

    eta: float
    charges: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("charges", self.charges, minimum=1, maximum=LARGEST_CHARGES)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        distance = np.abs(epsilon)
        found = np.zeros_like(distance)
        for rings in range(self.charges):
            found += self._rings(distance, np.array(float(rings))) * self._at_zero[self.charges - rings]
        found *= 1 + _SERIES_ERROR
        return (np.where(epsilon >= 0, found, np.exp(-distance) * found - np.expm1(-distance)),)

    def _rings(self, distance: Floats, rings: Floats) -> Floats:
        """Return the chance of this number of rings, each of which adds eta to the distance, before it is spent."""
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
class SlackCurve(PrivacyCurve):
    """Another curve, with `slack` added to every delta."""

    curve: PrivacyCurve
    slack: float

    def __post_init__(self) -> None:
        checks.probability("slack", self.slack, zero=True)

    @override
    def delta(self, epsilon: float) -> float:
        return min(1.0, self.curve.delta(epsilon) + self.slack)

    @override
    def epsilon(self, delta: float) -> float:
        checks.probability("delta", delta)
        return self.curve.epsilon(delta - self.slack) if delta > self.slack else math.inf

    @property
    def catastrophe(self) -> float:
        """The probability p of a catastrophe that covers the slack: p + (1 - p) delta >= delta + slack for all deltas.

        Raises:
            ValueError: the curve leaves nothing for the slack at epsilon 0.
        """
        rest = 1 - self.curve.delta(0.0)
        if self.slack >= rest:
            raise ValueError(f"slack must be < {rest:g}, which the curve leaves at epsilon 0, got {self.slack:g}")
        return self.slack / rest

    @override
    def to_pld(self, interval: float) -> PrivacyLossDistribution:
        if (point := point_of(self)) is not None:
            return point.to_pld(interval)
        lost = PointCurve(at_epsilon=0.0, at_delta=self.catastrophe)
        return self.curve.to_pld(interval).compose(lost.to_pld(interval))


@dataclass(frozen=True, kw_only=True)
class ComposedCurve(PrivacyCurve):
    """The adaptive composition of several curves, through pessimistic privacy loss distributions."""

    curves: tuple[PrivacyCurve, ...]
    interval: float = 1e-4

    def __post_init__(self) -> None:
        checks.positive("interval", self.interval)

    @functools.cached_property
    def _pld(self) -> PrivacyLossDistribution:
        return self.to_pld(self.interval)

    @override
    def delta(self, epsilon: float) -> float:
        return float(min(1.0, self._pld.get_delta_for_epsilon(checks.non_negative("epsilon", epsilon))))

    @override
    def epsilon(self, delta: float) -> float:
        return float(self._pld.get_epsilon_for_delta(checks.probability("delta", delta) * (1 - SUM_ERROR)))

    @override
    def to_pld(self, interval: float) -> PrivacyLossDistribution:
        parts = [_of_each(curve, interval, times) for curve, times in Counter(self.curves).items()]
        return functools.reduce(lambda one, other: one.compose(other), parts)


@functools.lru_cache(maxsize=16)
def _of_each(curve: PrivacyCurve, interval: float, times: int) -> PrivacyLossDistribution:
    found = curve.to_pld(interval)
    return found if times == 1 else found.self_compose(times)


def point_of(curve: PrivacyCurve) -> PointCurve | None:
    """Return what is known of one point alone; None of other curves."""
    if isinstance(curve, SlackCurve) and isinstance(curve.curve, PointCurve):
        return PointCurve(at_epsilon=curve.curve.at_epsilon, at_delta=curve.curve.at_delta + curve.slack)
    return curve if isinstance(curve, PointCurve) else None


@functools.lru_cache(maxsize=4096)
def group_point(curve: PrivacyCurve, epsilon: float, delta: float, changes: int) -> PointCurve | None:
    """Return what a mechanism promises for several changes in a row, if it is anything.

    Its curve says all that it promises for one change, which is stated at one point. Where another point allows it,
    delta stays what it is. Proof: docs/proofs/units.md, Theorem 2.
    """

    def of_group(at: float) -> float:
        one, exponent = curve.delta(at), (changes - 1) * at
        if one == 0 or exponent > LARGEST_EXPONENT:
            return 0.0 if one == 0 else math.inf
        return one * math.fsum(math.exp(change * at) for change in range(changes)) * (1 + FUNCTION_ERROR)

    if delta > 0:
        found = least_epsilon(of_group, delta)
        epsilon, delta = (found, delta) if math.isfinite(found) else (epsilon, of_group(epsilon))
    return PointCurve(at_epsilon=changes * epsilon, at_delta=delta) if delta < 1 else None


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


def shift_beside(other: PrivacyCurve, epsilon: float, delta: float) -> float:
    """Return the largest shift (within 0.1%) of Gaussian noise that fits into a budget together with another mechanism.

    Raises:
        ValueError: the other one leaves nothing; or delta is smaller than what accounts can resolve.
    """
    if delta < LEAST_DELTA:
        raise ValueError(f"delta must leave at least {LEAST_DELTA:g} for noisy counts, got {delta:g}")

    def accept(shift: float) -> bool:
        return beside(other, shift, epsilon).delta(epsilon) <= delta * (1 - ROUNDING)

    high = largest_shift(epsilon, delta)
    if other.delta(epsilon) >= delta or not accept(low := high / 1e4):
        raise ValueError("count_share must leave enough for noisy counts at this budget")
    return largest(accept, low, high, _SHIFT_PRECISION)


def beside(other: PrivacyCurve, shift: float, epsilon: float) -> ComposedCurve:
    """Return the curve of a mechanism together with a Gaussian shift, with losses on a grid that suits this epsilon."""
    return ComposedCurve(curves=(other, GaussianCurve(shift=shift)), interval=min(1e-2, epsilon / 1000))


def gaussian_sigma(shift: float, norm: float, changes: int = 1) -> float:
    """Return sigma for discrete Gaussian noise on integer vectors that move by this L2 norm at most.

    Where at most `changes` integers change, by 1 each, less is enough (docs/proofs/keyed_counts.md, Theorem 1). It is
    rounded up to 16 bits: processors compute exponentials with other last bits, from which searches make other digits,
    and noise of one label at two scales would differ in few counts, and show those.
    """
    sigma = math.sqrt((norm * (1 + FUNCTION_ERROR) / shift) ** 2 + SMOOTHING / changes)
    fraction, exponent = math.frexp(max(SMALLEST_SIGMA, sigma))
    return math.ldexp(math.ceil(math.ldexp(fraction, _SIGMA_BITS)), exponent - _SIGMA_BITS)


def shift_of_noise(sigma: float, changes: int) -> float:
    """Return the shift that such noise shows where `changes` integers change by 1 each, rounded up."""
    return math.sqrt(changes / (sigma**2 - SMOOTHING / changes)) * (1 + FUNCTION_ERROR)


def noise_curve(epsilon: float, delta: float) -> PrivacyCurve:
    """Return the curve of noise that just meets a budget: pure with delta = 0, Gaussian otherwise."""
    return PureDp(epsilon) if delta == 0 else GaussianCurve(shift=largest_shift(epsilon, delta))


def joint_curve(curves: Sequence[PrivacyCurve], interval: float = 1e-4) -> PrivacyCurve:
    """Return the curve of mechanisms, at least one, for the same unit, that run at once and may feed each other.

    Losses of parts that are not Gaussian are on a grid of `interval`. A slack of a Gaussian curve is covered by a
    catastrophe of its own, and the probabilities of these add up. Privacy: docs/proofs/monitor.md, Theorem 1.

    Raises:
        ValueError: a slack is larger than what its curve leaves at epsilon 0.
    """
    slacks = [one for one in curves if isinstance(one, SlackCurve) and isinstance(one.curve, GaussianCurve)]
    bare = [*(one for one in curves if one not in slacks), *(one.curve for one in slacks)]
    shifts = [one.shift for one in bare if isinstance(one, GaussianCurve)]
    parts: list[PrivacyCurve] = [GaussianCurve(shift=math.hypot(*shifts) * (1 + FUNCTION_ERROR))] if shifts else []
    parts += [one for one in bare if not isinstance(one, GaussianCurve)]
    together = parts[0] if len(parts) == 1 else ComposedCurve(curves=tuple(parts), interval=interval)
    slack = math.fsum(one.catastrophe for one in slacks) * (1 + FUNCTION_ERROR)
    return SlackCurve(curve=together, slack=slack) if slack else together
