"""Noise and thresholds of the monitors: a test on an integer count is a hit iff count >= T, T random and hidden."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import mpmath
import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.discrete import LARGEST_TABLE, WORD_BITS, IntegerLaw
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy import noisy_counts
from privstream.mechanisms.privacy.accounting import (
    LARGEST_EPSILON,
    LARGEST_EXPONENT,
    ROUNDING,
    ComposedCurve,
    PrivacyCurve,
    SlackCurve,
    largest,
)
from privstream.mechanisms.privacy.clocks import LARGEST_CHARGES, ClockCurve, StatusCurve
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from typing_extensions import override

LARGEST_COUNT = 1 << 62
LAST_OCTAVE = 62
PRECISION = 400  # bits
LARGEST_ETA = 300.0
CLEAR = 1e-9  # people: a detection threshold is not missed by rounding

AnyCalibration = TypeVar("AnyCalibration", bound="Calibration")
AnyClock = TypeVar("AnyClock", bound="ClockCalibration")


@dataclass(frozen=True, kw_only=True)
class MonitorBudget:
    """What a monitor may spend, and on whom. All fields are public.

    Attributes:
        epsilon: finite and > 0; pays for hits and for noisy counts.
        delta: in (0, 1).
        max_hits: hits after which a person is dropped, >= 1.
        tests: number of tests in the whole run for which the accuracy statements are made, >= 1.
        beta: failure probability over all these tests, in (0, 1).
        domain: "known": every item of a public domain is tested at every step; "unknown": only items that somebody
            holds are tested, so being tested at all must be hidden.
        tests_per_person: unknown domain: tests that one person takes part in at most. None: no bound;
            thresholds then rise with the public step number, and `items_per_step` is used.
        items_per_step: tests of one step that one person takes part in at most.
        count_share: share of epsilon that pays for a noisy count of each hit, in [0, 1); 0 releases no counts.
    """

    epsilon: float
    delta: float
    max_hits: int
    tests: int
    beta: float
    domain: str = "known"
    tests_per_person: int | None = None
    items_per_step: int = 1
    count_share: float = 0.0

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon, largest=LARGEST_EPSILON)
        checks.probability("delta", self.delta)
        checks.probability("beta", self.beta)
        for name in ("max_hits", "tests", "items_per_step"):
            checks.integer(name, getattr(self, name), minimum=1)
        if self.tests_per_person is not None:
            checks.integer("tests_per_person", self.tests_per_person, minimum=1)
        checks.one_of("domain", self.domain, ("known", "unknown"))
        checks.probability("count_share", self.count_share, zero=True)

    @property
    def domain_delta(self) -> float:
        """The part of delta that hides whether an item of one person alone is tested."""
        return self.delta / 2 if self.domain == "unknown" else 0.0

    @property
    def hits_delta(self) -> float:
        """The part of delta that pays for hits and noisy counts."""
        return self.delta - self.domain_delta

    @property
    def hits_epsilon(self) -> float:
        """The epsilon that hits alone are calibrated to."""
        return self.epsilon * (1 - self.count_share)

    def domain_hazard(self, step: int = 1) -> float:
        """Return the largest hazard -ln(1 - Pr[hit]) of an item of one person, at public step 1, 2, ..

        Summed over all tests of one person it is -ln(1 - domain_delta): docs/proofs/clock.md, section 3. Infinite for a
        known domain.
        """
        if self.domain == "known":
            return math.inf
        total = -math.log1p(-self.domain_delta)
        if self.tests_per_person is not None:
            return total / self.tests_per_person
        octave = self.octave(step)
        steps = (1 << octave) * (octave + 1) * (octave + 2)
        return total / (steps * self.items_per_step)

    def octave(self, step: int) -> int:
        """Return the number of the stretch of steps 1, 2..3, 4..7, .. with one threshold; 0 if all have the same."""
        checks.integer("step", step, minimum=1)
        per_step = self.domain == "unknown" and self.tests_per_person is None
        return step.bit_length() - 1 if per_step else 0

    def limits(self, charged_for: str) -> tuple[str, ...]:
        """Return sentences that say what each person is limited to, and for what they are charged."""
        sentences = [
            f"Each person is charged for at most {_many(self.max_hits, charged_for)} and then no longer counted."
        ]
        if self.domain == "unknown" and self.tests_per_person is not None:
            sentences.append(f"Each person takes part in at most {_many(self.tests_per_person, 'test')}.")
        elif self.domain == "unknown":
            sentences.append(f"Each person counts with at most {_many(self.items_per_step, 'item')} per step.")
        return tuple(sentences)


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True, kw_only=True)
class Calibration(ABC):
    """The law of hidden thresholds, and of noise on the counts of hits, that `budget` pays for.

    Attributes:
        budget: what it was solved for.
        count_sigma: parameter of the discrete Gaussian noise on the gated count of each hit, or None.
    """

    budget: MonitorBudget
    count_sigma: float | None = None

    charged_for: ClassVar[str] = "hit"
    published: ClassVar[str] = "the items that were hits"

    @abstractmethod
    def threshold_at(self, step: int) -> float:
        """Return the threshold at a public step 1, 2, .."""

    @abstractmethod
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        """Return Pr[T > count] for each count, accurate also when tiny."""

    @abstractmethod
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        """Return Pr[T <= count] for each count, accurate also when tiny."""

    @abstractmethod
    def draw_thresholds(self, noise: NoiseSource, labels: Labels, *, step: int = 1) -> Integers:
        """Return hidden thresholds T given T >= 1, one per label, int64 (n,)."""

    @property
    @abstractmethod
    def hits_curve(self) -> PrivacyCurve:
        """The privacy curve of hits and misses alone, without noisy counts and without the domain."""

    @property
    @abstractmethod
    def proof(self) -> str:
        """Where the curve of hits and misses, with the domain, is proved."""

    @property
    def threshold(self) -> float:
        """The threshold at step 1."""
        return self.threshold_at(1)

    def absent_hit_probability(self) -> Fraction:
        """Return Pr[T <= 0], the chance that an item of nobody is a hit, as a multiple of 2^-128."""
        if self.budget.domain == "unknown":
            return Fraction(0)
        with mpmath.workprec(PRECISION):
            return Fraction(int(mpmath.nint(mpmath.ldexp(self._absent_hit(), WORD_BITS))), 1 << WORD_BITS)

    def _absent_hit(self) -> Any:
        """Return the same for a known domain, as exactly as it can be computed."""
        return mpmath.mpf(float(self.hit_probability(0)))

    def detection_threshold(self, tests: int, beta: float, *, step: int = 1) -> int:
        """Return the least count that is found with probability 1 - beta in each of `tests` tests at once.

        The other half of beta is left to items wrongly reported.
        """
        checks.integer("tests", tests, minimum=1)
        allowed = checks.probability("beta", beta) / (2 * tests)
        low, high = 0, 1
        while self.miss_probability(high, step=step) > allowed:
            low, high = high, 2 * high
            if high > LARGEST_COUNT:
                raise ValueError(f"beta must be reachable by a count below 2^62, got {beta}")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.miss_probability(middle, step=step) > allowed else (low, middle)
        return high

    @functools.cached_property
    def privacy_curve(self) -> PrivacyCurve:
        """The privacy curve of everything published."""
        curve: PrivacyCurve = self.hits_curve
        if self.count_sigma is not None:
            counts = noisy_counts.CountCurve(sigma=self.count_sigma, releases=self.budget.max_hits)
            interval = noisy_counts.grid(self.budget.epsilon, counts.releases)
            curve = ComposedCurve(curves=(curve, counts), interval=interval)
        return SlackCurve(curve=curve, slack=self.budget.domain_delta) if self.budget.domain_delta else curve

    @functools.cached_property
    def guarantee(self) -> PrivacyGuarantee:
        """The guarantee for one person over the whole run."""
        counts = "" if self.count_sigma is None else " and their noisy counts"
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring="add_remove",
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            limits=self.budget.limits(self.charged_for),
            public=("all parameters", f"the steps, {self.published}{counts}"),
            adaptivity="The adversary may choose all data of each step knowing everything published before it.",
            proof=self.proof + ("; docs/proofs/noisy_counts.md" if counts else ""),
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
            curve=self.privacy_curve,
        )


@dataclass(frozen=True, kw_only=True)
class ClockCalibration(Calibration):
    """Hit iff count >= T with Pr[T <= c] = 1 - exp(-H(c)), H growing by e^eta a person; see `clock`.

    Known domain: H(c) = e^{eta (c - t)}, Gumbel noise of scale 1/eta. Unknown domain: H(c) = h (r^c - 1)/(r - 1) with
    r = e^eta, zero for an item that nobody has.
    """

    eta: float

    @property
    def noise_scale(self) -> float:
        """Scale of the noise, in people."""
        return 1 / self.eta

    @override
    def threshold_at(self, step: int) -> float:
        # The count at which H is one, or would be.
        budget = self.budget
        if budget.domain == "known":
            return -math.log(-math.log1p(-budget.beta / (2 * budget.tests))) / self.eta
        return (math.log(math.expm1(self.eta)) - math.log(budget.domain_hazard(step))) / self.eta

    def hazard(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        """Return H(count), inf where it overflows."""
        count = np.asarray(counts, dtype=np.float64)
        exponent = np.minimum(self.eta * (count - self.threshold_at(step)), LARGEST_EXPONENT)
        known: Floats = np.exp(exponent)
        return known if self.budget.domain == "known" else known * -np.expm1(-self.eta * np.maximum(count, 0.0))

    @override
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        return np.exp(-self.hazard(counts, step=step))

    @override
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        return -np.expm1(-self.hazard(counts, step=step))

    @override
    def _absent_hit(self) -> Any:
        return -mpmath.expm1(-mpmath.exp(-mpmath.mpf(self.eta) * mpmath.mpf(self.threshold)))

    @property
    def reach(self) -> float:
        """About the largest hidden threshold: beyond it a miss is less likely than a table can say."""
        return self.threshold_at(1 << LAST_OCTAVE) + math.log(math.log(2) * WORD_BITS) / self.eta

    def threshold_law(self, *, step: int = 1) -> IntegerLaw:
        """Return the law of hidden thresholds given T >= 1 (of max(T, 1): unknown domain), exact to 128 bits."""
        return _threshold_law(self, self.budget.octave(step))

    @override
    def draw_thresholds(self, noise: NoiseSource, labels: Labels, *, step: int = 1) -> Integers:
        return self.threshold_law(step=step).draw(noise, labels)

    @property
    @override
    def proof(self) -> str:
        return f"docs/proofs/clock.md, Theorem {1 if self.budget.domain == 'known' else 2}"

    @functools.cached_property
    @override
    def hits_curve(self) -> PrivacyCurve:
        return ClockCurve(eta=self.eta, clocks=self.budget.max_hits)


@functools.lru_cache(maxsize=64)
def _threshold_law(calibration: ClockCalibration, octave: int) -> IntegerLaw:
    budget, step = calibration.budget, 1 << octave
    with mpmath.workprec(PRECISION):
        growth = mpmath.exp(mpmath.mpf(calibration.eta))
        if budget.domain == "known":
            unit = mpmath.exp(-mpmath.mpf(calibration.eta) * mpmath.mpf(calibration.threshold_at(step)))
        else:
            unit = mpmath.mpf(budget.domain_hazard(step)) / (growth - 1)
    return IntegerLaw.from_survival(1, lambda k: mpmath.exp(-unit * (growth**k - 1)))


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
        margin = math.log(4 * self.up_steps / self.budget.beta)  # -ln of the chance that one down-test goes wrong
        started = super().detection_threshold(self.budget.tests, self.budget.beta / 2) - CLEAR
        return max(started - margin / self.eta, math.log(margin) / self.eta)

    def end_hazard(self, counts: ArrayLike) -> Floats:
        """Return -ln of the chance that an up item with each count stays up, inf where it overflows."""
        exponent = self.eta * (self.end_threshold - np.asarray(counts, dtype=np.float64))
        return np.exp(np.minimum(exponent, LARGEST_EXPONENT))

    @property
    def end_law(self) -> IntegerLaw:
        """The law of max(T', 0), exact to 128 bits."""
        return _end_law(self.eta, self.end_threshold)

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
        return StatusCurve(eta=self.eta, charges=self.budget.max_hits)


@functools.lru_cache(maxsize=64)
def _end_law(eta: float, threshold: float) -> IntegerLaw:
    with mpmath.workprec(PRECISION):
        rate, place = mpmath.mpf(eta), mpmath.mpf(threshold)
    return IntegerLaw.from_survival(0, lambda k: -mpmath.expm1(-mpmath.exp(-rate * (k - place))))


def with_counts(calibration: AnyCalibration) -> AnyCalibration:
    """Return a calibration with noise for the counts of its hits, if `count_share` pays for any."""
    budget = calibration.budget
    if not budget.count_share:
        return calibration
    sigma = noisy_counts.solve_sigma(
        hits=calibration.hits_curve, charges=budget.max_hits, epsilon=budget.epsilon, delta=budget.hits_delta
    )
    return replace(calibration, count_sigma=sigma)


def _checked(calibration: AnyClock) -> AnyClock:
    """Return a calibration with noise for counts; refuse a budget whose hidden thresholds do not fit into a table."""
    if calibration.reach > LARGEST_TABLE:
        raise ValueError(
            f"epsilon must be large enough for thresholds of at most {LARGEST_TABLE:,} people, got "
            f"{calibration.budget.epsilon}: at this budget they reach {calibration.reach:,.0f}"
        )
    return with_counts(calibration)


def _largest_eta(budget: MonitorBudget, curve: type[ClockCurve | StatusCurve], charges: str) -> float:
    """Return the largest eta at which a curve, whose delta does not decrease with eta, meets `budget`."""
    goal = budget.hits_delta * (1 - ROUNDING)

    def accept(eta: float) -> bool:
        return curve(eta=eta, **{charges: budget.max_hits}).delta(budget.hits_epsilon) <= goal

    return largest(accept, 0.0, LARGEST_ETA)


@functools.lru_cache(maxsize=64)
def clock(budget: MonitorBudget) -> ClockCalibration:
    """Return the least noise for which tests that charge for hits meet `budget`.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; binary membership. Theorems 1 and 2 of
    docs/proofs/clock.md.

    Accuracy: `detection_threshold`; in a known domain no absent item is ever reported, with probability 1 - beta/2.

    Example:
        >>> budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=10**6, beta=0.01)
        >>> clock(budget).detection_threshold(10**6, 0.01)
        330
    """
    eta = _largest_eta(budget, ClockCurve, "clocks")
    return _checked(ClockCalibration(budget=budget, eta=eta))


@functools.lru_cache(maxsize=64)
def status(budget: MonitorBudget, up_steps: int) -> StatusCalibration:
    """Return the least noise for which tests that charge for changes of status meet `budget`.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; binary membership. Theorems 1 and 2 of
    docs/proofs/status_monitor.md.

    Raises:
        ValueError: `max_hits` is too large to be accounted for.

    Example:
        >>> budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=10**6, beta=0.01)
        >>> round(status(budget, up_steps=100_000).noise_scale, 2)
        15.24
    """
    if budget.max_hits > LARGEST_CHARGES:
        raise ValueError(f"max_hits must be <= {LARGEST_CHARGES:,} for statuses, got {budget.max_hits:,}")
    eta = _largest_eta(budget, StatusCurve, "charges")
    return _checked(StatusCalibration(budget=budget, eta=eta, up_steps=up_steps))
