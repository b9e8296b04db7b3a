"""What the calibrations of a threshold monitor have in common: the budget they solve for, and what they answer."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.noise.discrete import LARGEST_TABLE, WORD_BITS, IntegerLaw
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy import noisy_counts
from privstream.mechanisms.privacy.accounting import (
    LARGEST_EPSILON,
    ComposedCurve,
    PrivacyCurve,
    SlackCurve,
)
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from typing_extensions import override

LARGEST_COUNT = 1 << 62
LAST_OCTAVE = 62
PRECISION = 400  # bits


@dataclass(frozen=True, kw_only=True)
class MonitorBudget:
    """What a threshold monitor may spend, and on whom. All fields are public.

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

    Raises:
        ValueError: a field is out of range.
        TypeError: a field is of the wrong type.
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

    def count_sigma(self, hits: PrivacyCurve) -> float | None:
        """Return sigma of noisy counts after hits with this curve, or None if no counts are released."""
        if not self.count_share:
            return None
        return noisy_counts.solve_sigma(hits=hits, charges=self.max_hits, epsilon=self.epsilon, delta=self.hits_delta)

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
    """Return a number of things in words."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def check_reach(budget: MonitorBudget, largest: float) -> None:
    """Refuse a budget so small that hidden thresholds, of at most `largest` people, do not fit into a table."""
    if largest > LARGEST_TABLE:
        raise ValueError(
            f"epsilon must be large enough for thresholds of at most {LARGEST_TABLE:,} people, got {budget.epsilon}: "
            f"at this budget they reach {largest:,.0f}"
        )


@dataclass(frozen=True, kw_only=True)
class Calibration(ABC):
    """Noise and threshold of a threshold monitor: a test on an integer count is a hit iff count >= T, T random.

    Attributes:
        budget: what it was solved for.
        noise_scale: scale of the noise, in people.
        count_sigma: parameter of the discrete Gaussian noise on the gated count of each hit, or None.
    """

    budget: MonitorBudget
    noise_scale: float
    count_sigma: float | None = None

    charged_for: ClassVar[str] = "hit"
    published: ClassVar[str] = "the items that were hits"

    @property
    def threshold(self) -> float:
        """The threshold at step 1."""
        return self.threshold_at(1)

    @abstractmethod
    def threshold_at(self, step: int) -> float:
        """Return the threshold at a public step 1, 2, .."""

    @abstractmethod
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        """Return Pr[T > count] for each count, accurate also when tiny."""

    @abstractmethod
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> NDArray[np.float64]:
        """Return Pr[T <= count] for each count, accurate also when tiny."""

    @abstractmethod
    def draw_thresholds(self, noise: NoiseSource, labels: Labels, *, step: int = 1) -> NDArray[np.int64]:
        """Return hidden thresholds T given T >= 1, one per label, int64 (n,)."""

    @property
    @abstractmethod
    def hits_curve(self) -> PrivacyCurve:
        """The privacy curve of hits and misses alone, without noisy counts and without the domain."""

    @property
    @abstractmethod
    def proof(self) -> str:
        """Where the curve of hits and misses, with the domain, is proved."""

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
            budget = self.budget
            counts = noisy_counts.CountCurve(sigma=self.count_sigma, releases=budget.max_hits)
            interval = noisy_counts.grid(budget.epsilon, counts.releases)
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


class TableCalibration(Calibration):
    """A calibration whose hidden thresholds come from tables."""

    @abstractmethod
    def survival(self, octave: int) -> Callable[[int], Any]:
        """Return k -> Pr[T > k] given T >= 1 (of max(T, 1) for an unknown domain), with `PRECISION` bits."""

    def threshold_law(self, *, step: int = 1) -> IntegerLaw:
        """Return the law of hidden thresholds, exact to 128 bits."""
        return _threshold_law(self, self.budget.octave(step))

    @override
    def draw_thresholds(self, noise: NoiseSource, labels: Labels, *, step: int = 1) -> NDArray[np.int64]:
        return self.threshold_law(step=step).draw(noise, labels)


@functools.lru_cache(maxsize=64)
def _threshold_law(calibration: TableCalibration, octave: int) -> IntegerLaw:
    with mpmath.workprec(PRECISION):
        survival = calibration.survival(octave)
    return IntegerLaw.from_survival(1, survival)
