"""Noise and thresholds of the monitors: a test on an integer count is a hit iff count >= T, T random and hidden."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.discrete import LARGEST_TABLE, PRECISE, WORD_BITS, DiscreteLaplace, IntegerLaw
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import (
    LARGEST_CHARGES,
    LARGEST_EPSILON,
    LARGEST_EXPONENT,
    ROUNDING,
    ClockCurve,
    PointCurve,
    PrivacyCurve,
    SlackCurve,
    StatusCurve,
    beside,
    gaussian_sigma,
    largest,
    shift_beside,
    shift_of_noise,
)
from typing_extensions import override

LARGEST_COUNT = 1 << 62
LARGEST_ETA = 300.0
LARGEST_HITS = 65_535
LEAST_SCALE = 2.0  # of b: Pr[v < -Delta] <= 1/4 needs it
CLEAR = 1e-9  # people: a detection threshold is not missed by rounding
REST = math.log(2) * WORD_BITS  # -ln of the least probability that a table has


@dataclass(frozen=True, kw_only=True)
class MonitorBudget:
    """What a monitor may spend, and on whom, by fields of `ThresholdMonitor`; all of them are public.

    The domain is "known": every item of a public domain is tested at every step; "rules": likewise, and each item
    brings thresholds of its own, to which those here are added; or "unknown": only items that somebody holds are
    tested, so being tested at all must be hidden.
    """

    epsilon: float
    delta: float
    max_hits: int
    tests: int
    beta: float
    domain: str = "known"
    tests_per_person: int | None = None  # of an unknown domain, that one person takes part in at most
    count_share: float = 0.0

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon, largest=LARGEST_EPSILON)
        checks.probability("delta", self.delta)
        checks.probability("beta", self.beta)
        checks.integer("tests", self.tests, minimum=1)
        checks.integer("max_hits", self.max_hits, minimum=1, maximum=LARGEST_HITS)
        if checks.one_of("domain", self.domain, ("known", "rules", "unknown")) == "unknown":
            checks.integer("tests_per_person", self.tests_per_person, minimum=1)
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

    @property
    def domain_hazard(self) -> float:
        """The largest hazard -ln(1 - Pr[hit]) of an item of one person: over all tests -ln(1 - domain_delta)."""
        return -math.log1p(-self.domain_delta) / (self.tests_per_person or 1)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The law of hidden thresholds, and of noise on the counts of hits, that `budget` pays for; see `calibrate`.

    Hit iff count >= T with Pr[T <= c] = 1 - exp(-H(c)), H growing by e^eta a person. Public items: H(c) = e^{eta
    (c - t)}, Gumbel noise of scale 1/eta. Unknown domain: H(c) = h (r^c - 1)/(r - 1) with r = e^eta, zero for an item
    that nobody has.

    With `up_steps` items have statuses: a hit takes an item up, and one that is up goes down iff count < T',
    Pr[T' <= c] = exp(-e^{-eta (c - t')}).

    Hits are charged, or with `up_steps` changes of status.
    """

    budget: MonitorBudget  # what it was solved for
    eta: float  # how much a person adds to the logarithm of a hazard
    up_steps: int | None = None  # at which an item is up, of all items together, for which the accuracy is stated
    count_sigma: float | None = None  # of the discrete Gaussian noise on the gated count of each hit

    @property
    def noise_scale(self) -> float:
        """Scale of the noise, in people."""
        return 1 / self.eta

    @property
    def threshold(self) -> float:
        """The count at which H is one, or would be; with rules, how far apart their thresholds are moved."""
        budget = self.budget
        if budget.domain == "unknown":
            return (math.log(math.expm1(self.eta)) - math.log(budget.domain_hazard)) / self.eta
        if budget.domain == "rules":
            surely = math.log(budget.tests / budget.beta)
            return (surely - math.log(surely)) / (2 * self.eta)
        return -math.log(-math.log1p(-budget.beta / (2 * budget.tests))) / self.eta

    def hazard(self, counts: ArrayLike) -> Floats:
        """Return H(count), inf where it overflows."""
        count = np.asarray(counts, dtype=np.float64)
        exponent = np.minimum(self.eta * (count - self.threshold), LARGEST_EXPONENT)
        public: Floats = np.exp(exponent)
        return public * -np.expm1(-self.eta * np.maximum(count, 0.0)) if self.budget.domain == "unknown" else public

    def miss_probability(self, counts: ArrayLike) -> Floats:
        """Return Pr[T > count] for each count, accurate also when tiny."""
        return np.exp(-self.hazard(counts))

    @property
    @functools.lru_cache(maxsize=64)  # noqa: B019 - equal calibrations share a table, which is costly
    def threshold_law(self) -> IntegerLaw:
        """The law of max(T, 0), of max(T, 1) in an unknown domain, or of T with rules, exact to 128 bits."""
        budget, rate = self.budget, PRECISE.mpf(self.eta)
        growth = PRECISE.exp(rate)
        if budget.domain == "unknown":
            unit = PRECISE.mpf(budget.domain_hazard) / (growth - 1)
            return IntegerLaw.from_survival(1, lambda k: PRECISE.exp(-unit * (growth**k - 1)))
        unit = PRECISE.exp(-rate * PRECISE.mpf(self.threshold))
        first = math.floor(self.threshold - REST / self.eta) if budget.domain == "rules" else 0
        return IntegerLaw.from_survival(first, lambda k: PRECISE.exp(-unit * growth**k))

    def draw_thresholds(self, noise: NoiseSource, labels: Labels) -> Integers:
        """Return hidden thresholds T, one per label, int64 (n,)."""
        return self.threshold_law.draw(noise, labels)

    @functools.cached_property
    def end_threshold(self) -> float:
        """t', where the hazard of going down is one: items that just went up stay, those of nobody go down."""
        if self.budget.domain == "rules":
            return -self.threshold
        margin = math.log(4 * (self.up_steps or 1) / self.budget.beta)  # -ln of the chance of one wrong down-test
        started = self._surely_hit(self.budget.beta / (4 * self.budget.tests)) - CLEAR
        return max(started - margin / self.eta, math.log(margin) / self.eta)

    @property
    @functools.lru_cache(maxsize=64)  # noqa: B019 - as above
    def end_law(self) -> IntegerLaw:
        """The law of max(T', 0), or of T' with rules, exact to 128 bits."""
        rate, place = PRECISE.mpf(self.eta), PRECISE.mpf(self.end_threshold)
        lowest = math.floor(self.end_threshold - math.log(REST) / self.eta)
        first = lowest if self.budget.domain == "rules" else 0
        return IntegerLaw.from_survival(first, lambda k: -PRECISE.expm1(-PRECISE.exp(-rate * (k - place))))

    @property
    def reach(self) -> float:
        """About the number of integers between the ends of a table, beyond which it has no probability."""
        if self.budget.domain == "rules":
            return (REST + math.log(REST)) / self.eta
        highest = self.threshold + math.log(REST) / self.eta
        return highest if self.up_steps is None else max(highest, self.end_threshold + REST / self.eta)

    def detection_threshold(self, tests: int, beta: float) -> int:
        """Return the least count that is found with probability 1 - beta in each of `tests` tests at once.

        Half of beta is left to items wrongly reported. With statuses an item with this count starts at once and does
        not end. With rules: the margin by which a threshold must be passed, or missed, for all tests to go right.
        """
        tests, beta = checks.integer("tests", tests, minimum=1), checks.probability("beta", beta)
        if self.budget.domain == "rules":
            surely, moved = math.log(tests / beta), self.threshold
            return math.ceil(max(math.log(surely) / self.eta + moved, surely / self.eta - moved))
        if self.up_steps is None:
            return self._surely_hit(beta / (2 * tests))
        stays = math.ceil(self.end_threshold + math.log(4 * self.up_steps / beta) / self.eta)
        return max(self._surely_hit(beta / (4 * tests)), stays)

    def _surely_hit(self, allowed: float) -> int:
        """Return the least count that is missed with this probability at most."""
        counts = range(1, LARGEST_COUNT)
        place = bisect_left(counts, True, key=lambda count: bool(self.miss_probability(count) <= allowed))
        if place == len(counts):
            raise ValueError("beta must be reachable by a count below 2^62")
        return counts[place]

    @functools.cached_property
    def hits_curve(self) -> PrivacyCurve:
        """The privacy curve of hits and misses alone."""
        if self.up_steps is None:
            return ClockCurve(eta=self.eta, clocks=self.budget.max_hits)
        return StatusCurve(eta=self.eta, charges=self.budget.max_hits)

    def with_counts(self) -> Self:
        """Return the same with noise for the counts of hits, if `count_share` pays for any."""
        budget = self.budget
        if not budget.count_share:
            return self
        shift = shift_beside(self.hits_curve, budget.epsilon, budget.hits_delta)
        return replace(self, count_sigma=gaussian_sigma(shift, math.sqrt(budget.max_hits), budget.max_hits))

    @property
    def proof(self) -> str:
        """Where the curve of hits and misses, with the domain, is proved."""
        page = "clock" if self.up_steps is None else "status_monitor"
        return f"docs/proofs/{page}.md, Theorem {2 if self.budget.domain == 'unknown' else 1}"

    @functools.cached_property
    def privacy_curve(self) -> PrivacyCurve:
        """The privacy curve of everything published."""
        curve: PrivacyCurve = self.hits_curve
        if self.count_sigma is not None:
            shift = shift_of_noise(self.count_sigma, self.budget.max_hits)
            curve = beside(curve, shift, self.budget.epsilon)
        return SlackCurve(curve=curve, slack=self.budget.domain_delta) if self.budget.domain_delta else curve


@functools.lru_cache(maxsize=64)
def calibrate(budget: MonitorBudget, up_steps: int | None = None) -> Calibration:
    """Return the least noise for which tests meet `budget` that charge for hits, or with `up_steps` for changes.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run: `Calibration.proof`.

    Accuracy: `detection_threshold`; in a known domain no absent item is ever reported, with probability 1 - beta/2.

    Raises:
        ValueError: epsilon is so small that the law has no table, or `max_hits` too large for statuses.
    """
    if up_steps is not None and budget.max_hits > LARGEST_CHARGES:
        raise ValueError(f"max_hits must be <= {LARGEST_CHARGES:,} for statuses, got {budget.max_hits:,}")

    def accept(eta: float) -> bool:  # delta does not decrease with eta
        curve = Calibration(budget=budget, eta=eta, up_steps=up_steps).hits_curve
        return curve.delta(budget.hits_epsilon) <= budget.hits_delta * (1 - ROUNDING)

    found = Calibration(budget=budget, eta=largest(accept, 0.0, LARGEST_ETA), up_steps=up_steps)
    if found.reach > LARGEST_TABLE:
        raise ValueError(
            f"epsilon must be large enough for thresholds of at most {LARGEST_TABLE:,} people, got "
            f"{budget.epsilon}: at this budget they reach {found.reach:,.0f}"
        )
    return found.with_counts()


@dataclass(frozen=True, kw_only=True)
class PaperCalibration(Calibration):
    """Hit iff count + w + min(v, Delta) >= threshold, w and v discrete Laplace of scales 10 Delta and b; see `paper`.

    Attributes:
        inner_scale: b; Delta = b ln b, rounded up where v is cut off, and eta = 1 / (10 Delta).
    """

    inner_scale: float

    @property
    def cut_off(self) -> int:
        """Delta, rounded up."""
        return math.ceil(self.inner_scale * math.log(self.inner_scale))

    @functools.cached_property
    @override
    def threshold(self) -> float:
        return float(math.ceil(self.noise_scale * math.log(self.budget.tests / self.budget.beta)))

    @override
    def _surely_hit(self, allowed: float) -> int:
        # Neither noise is so low, but with half of this probability each.
        lowest = (DiscreteLaplace(scale).tail_quantile(allowed / 2) for scale in (self.noise_scale, self.inner_scale))
        return int(self.threshold) + sum(lowest)

    @override
    def draw_thresholds(self, noise: NoiseSource, labels: Labels) -> Integers:
        outer = DiscreteLaplace(self.noise_scale).draw(noise.derive("w"), labels)
        inner = DiscreteLaplace(self.inner_scale).draw(noise.derive("v"), labels)
        return int(self.threshold) - outer - np.minimum(inner, self.cut_off)

    @property
    @override
    def proof(self) -> str:
        return "docs/proofs/kaplan_mansour_stemmer.md, Theorem 3.2 and section 4"

    @functools.cached_property
    @override
    def hits_curve(self) -> PrivacyCurve:
        # The (epsilon, delta) of the paper's theorem.
        return PointCurve(self.budget.hits_epsilon, _hits_delta(self.budget))


def _hits_delta(budget: MonitorBudget) -> float:
    """Return the delta of hits alone: counts get the same share of delta as of epsilon."""
    return budget.hits_delta * (1 - budget.count_share)


@functools.lru_cache(maxsize=64)
def paper(budget: MonitorBudget) -> PaperCalibration:
    """Return the noise of the paper's Theorem 3.2 for `budget`; Theorem 3.8 needs more up to hundreds of hits.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run.

    Accuracy: `detection_threshold`, about twice the threshold 10 Delta ln(tests / beta).

    Raises:
        ValueError: epsilon is so large that b < 2, where the paper's proof does not hold.

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5, Theorem 3.2;
    docs/proofs/kaplan_mansour_stemmer.md.
    """
    if budget.domain != "known":
        raise ValueError("domain_size must be given with the constants of the paper")
    log = math.log(3 / _hits_delta(budget))
    scale = log * (75 * (budget.max_hits + 1) / log + 25) / budget.hits_epsilon
    if scale < LEAST_SCALE:
        raise ValueError(f"epsilon must be small enough for an inner noise scale >= {LEAST_SCALE:g}, got {scale:g}")
    return PaperCalibration(budget=budget, eta=0.1 / (scale * math.log(scale)), inner_scale=scale).with_counts()
