"""NoisyTopK and related selections: the largest queries by noisy value, how far each is ahead, how large they are."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.mechanism import described
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, Geometric, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.postprocess import Estimates, blue_from_gaps
from privstream.mechanisms.privacy.accounting import (
    PrivacyCurve,
    PureComposition,
    PureDp,
    beside,
    gaussian_sigma,
    largest,
    shift_beside,
    shift_of_noise,
)
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PUBLISHED_FLOATS
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit
from privstream.mechanisms.selection.sparse_vector import LARGEST, QueryMechanism, composed, integers, leaders, noisy
from scipy import special
from typing_extensions import override

ONE_SELECTION = "It covers one selection: those of several add up."
MOST_MEASURES = 1_000_000  # of one person: what is accounted for within a minute


def gaps_between(totals: Integers, order: Integers) -> Integers:
    """Return how far each leader but the last is ahead of the next one.

    The last gap, to a runner-up who stays secret, is the margin to the least value that would still have been selected:
    one less than the difference where the runner-up would win a tie. The plain difference would not be private.
    """
    gaps: Integers = -np.diff(totals[order])
    if len(gaps):
        gaps[-1] -= int(order[-1] < order[-2])
    return gaps


class TopSelection(NamedTuple):
    """What `NoisyTopK.select` returns."""

    indices: Integers  # of the selected queries, the largest first
    gaps: Integers  # of each to the next best one, or to the threshold that ended the list
    threshold_gap: int | None  # of that threshold to the best query below it
    spent: float  # of epsilon


@dataclass(frozen=True, kw_only=True)
class NoisyTopK(QueryMechanism):
    """Selects the `top` queries whose noisy values are largest, with the gaps between them; `top` = 1 is noisy max.

    The last gap is to the best query that was not selected, whose index stays secret (`gaps_between`). Ties go to the
    lower index. With a `threshold` (hybrid) the list ends where it is reached: it competes as a query of its own.

    Privacy:
        Unit: one change of the data that moves no query by more than 1.
        epsilon-DP for each call of `select`; the gaps are free. Public: the parameters, the number of queries, and
        their order, which must not depend on the data (not by descending count). One that stops at the threshold after
        m queries has used (m + 1) / top of epsilon only, `spent`.

    Accuracy:
        With probability 1 - beta no query that was not selected exceeds a selected one, or the threshold if that was
        reached, by more than `accuracy(queries, beta)`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> hybrid = NoisyTopK(epsilon=1.0, top=4, threshold=500, monotone=True)
        >>> selection = hybrid.select([30, 900, 40, 700, 50], SeededNoise(1))
        >>> selection.indices.tolist(), selection.spent
        ([1, 3], 0.75)

    Source: Ding et al. (2022), Algorithms 3 and 4; docs/proofs/free_gap.md, section 3.
    """

    epsilon: float
    top: int = 1  # queries to select
    threshold: int | None = None  # public
    monotone: bool = False  # see `QueryMechanism`
    proof = "docs/proofs/free_gap.md, section 3"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.integer("top", self.top, minimum=1)
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, minimum=-LARGEST, maximum=LARGEST)
        self._check_queries(self.noise_scale)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        stops = f"One that stops after m < {self.top} queries has used (m + 1) / {self.top} of epsilon."
        return (ONE_SELECTION,) if self.threshold is None else (ONE_SELECTION, stops)

    @property
    def noise_scale(self) -> float:
        """Scale of the noise on each query, and on the threshold."""
        return (1 if self.monotone else 2) * self.top / self.epsilon

    @property
    def law(self) -> Geometric:
        """The noise on each query."""
        return Geometric(self.noise_scale)

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for a number of queries."""
        contestants = checks.integer("queries", queries, minimum=1) + (self.threshold is not None)
        return float(self.law.tail_quantile(checks.probability("beta", beta) / contestants))

    def select(self, values: ArrayLike, noise: NoiseSource) -> TopSelection:
        """Select queries by their true values, integers (n,), private, more than `top`, the threshold being one.

        Each selection needs noise of its own, which is bound to indices and values.
        """
        queries = integers("values", values)
        if self.threshold is not None:  # last, so that queries win ties against it
            queries = np.append(queries, self.threshold)
        if len(queries) <= self.top:
            raise ValueError(f"values must contain more than {self.top} queries, the threshold being one")
        totals = noisy(queries, self.law, len(queries), noise.derive("top-k", described(self)))
        order = leaders(totals, self.top + 1)
        last = len(queries) - 1 if self.threshold is not None else -1
        reached = np.flatnonzero(order[: self.top] == last)
        if not len(reached):
            return TopSelection(order[: self.top], gaps_between(totals, order), None, self.epsilon)
        found = int(reached[0])
        gaps = gaps_between(totals, order[: found + 2])
        return TopSelection(order[:found], gaps[:found], int(gaps[found]), self.epsilon * (found + 1) / self.top)


class RankedCounts(NamedTuple):
    """The selected counts, the largest first: index, gap to the next best, estimate, and its own 95% interval."""

    indices: Integers
    gaps: Integers
    estimates: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, kw_only=True)
class MeasuredTopK(QueryMechanism):
    """Publishes the `top` largest of many counts in each release: which they are, their gaps, and how large they are.

    Part of the budget selects by `NoisyTopK`, which gives the gaps too; the rest measures what was selected. The
    estimates are the best linear unbiased ones from measures and gaps.

    Privacy:
        Unit: one person over all releases, who changes each count of a release by at most 1, all in one direction, and
        at most `items_per_release` of them, in at most `releases` releases. Public: the parameters, the number and
        order of the counts, and when there are releases.

    Accuracy:
        With probability 95% no count of a release that was not selected exceeds a selected one by more than
        `selection.accuracy(counts, 0.05)`, and, each alone, an interval contains the true count: that of the measure,
        widened to contain the estimate. Where noise decides what is selected, gaps and estimates are biased upwards.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> MeasuredTopK(epsilon=1.0, top=2).release([30, 900, 40, 700, 50], SeededNoise(1)).indices.tolist()
        [1, 3]

    Source: Ding et al. (2022), Algorithm 3 and section 6.3; docs/proofs/top_k_windows.md.
    """

    epsilon: float
    delta: float = 0.0  # in [0, 1); above 0 many releases need less noise
    top: int = 1  # counts to select in each release
    releases: int = 1  # that one person takes part in at most; times the smaller of both others at most 1,000,000
    items_per_release: int = 1  # counts of a release that one person changes at most
    measure_share: float = 0.25  # of epsilon, for measuring, in (0, 1)
    proof = "docs/proofs/top_k_windows.md, section 2"
    unit = PERSON
    adaptivity = "The counts of each release may depend on everything published before it."

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("top", self.top, minimum=1)
        checks.integer("releases", self.releases, minimum=1)
        checks.integer("items_per_release", self.items_per_release, minimum=1)
        if self._charges > MOST_MEASURES:
            raise ValueError(f"releases times measures in each must be <= {MOST_MEASURES:,}, got {self._charges:,}")
        checks.probability("measure_share", self.measure_share)
        _ = self.measurement

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        releases = f"{self.releases:,} release{'s' * (self.releases > 1)}"
        return (
            f"Each person takes part in at most {releases} and changes at most {self.items_per_release:,} of its "
            "counts, each by at most 1, all up or all down.",
        )

    @functools.cached_property
    @override
    def curve(self) -> PrivacyCurve:
        if self.delta == 0:
            return PureDp(self.epsilon)
        selections = self._selections(self.selection.epsilon)
        if isinstance(self.measurement, DiscreteGaussian):
            return beside(selections, shift_of_noise(self.measurement.sigma, self._charges), self.epsilon)
        pure = PureDp(self.epsilon * self.measure_share)
        return composed((selections, pure), self.epsilon, self.delta, min(1e-2, self.epsilon / 1000))

    @functools.cached_property
    def selection(self) -> NoisyTopK:
        """How each release selects. Its epsilon is that of adding or removing a person in one release."""
        goal = self.epsilon * (1 - self.measure_share)
        each = goal / self.releases
        if self.delta > 0 and self.releases > 1:
            each = largest(lambda one: self._selections(one).delta(goal) <= self.delta / 2, each, goal)
        return NoisyTopK(epsilon=each, top=self.top, monotone=True)  # one person moves all counts in one direction

    @functools.cached_property
    def measurement(self) -> SymmetricNoise:
        """The noise on each measure: of the two kinds that delta allows the one with less variance."""
        laplace = DiscreteLaplace(self._charges / (self.epsilon * self.measure_share))
        if self.delta == 0 or self._charges == 1:
            return laplace
        try:
            shift = shift_beside(self._selections(self.selection.epsilon), self.epsilon, self.delta)
            gaussian = DiscreteGaussian(gaussian_sigma(shift, math.sqrt(self._charges), self._charges))
        except ValueError:  # no sigma that the sampler draws is large enough
            return laplace
        return gaussian if gaussian.variance < laplace.variance else laplace

    @property
    def estimate_variance(self) -> float:
        """Variance of an estimate, as if the selection did not depend on the noise."""
        return float(self._improved([0.0] * self.top, [0.0] * (self.top - 1)).variance)

    def _improved(self, measures: ArrayLike, gaps: ArrayLike) -> Estimates:
        variances = {"measure_variance": self.measurement.variance, "noise_variance": self.selection.law.variance}
        return blue_from_gaps(measures, gaps, **variances)

    def release(self, counts: ArrayLike, noise: NoiseSource) -> RankedCounts:
        """Select and measure the largest counts of one release; estimates and intervals in tenths.

        True counts come in a public order, integers (n,), n > `top`; each release needs noise of its own.
        """
        source = noise.derive("measured top-k", described(self))
        selected = self.selection.select(counts, source.derive("selection"))
        values = np.asarray(counts)[selected.indices].astype(np.int64)
        labels = source.derive("value").bind(selected.indices.astype(np.uint64), values)
        measures = values + self.measurement.draw(source.derive("measure"), labels)
        rounded = np.round(self._improved(measures, selected.gaps[:-1]).values, 1)
        sure = self.measurement.tail_quantile(OUTSIDE / 2)
        ends = np.minimum(rounded, measures - sure), np.maximum(rounded, measures + sure)
        lower, upper = (np.maximum(end, 0.0) for end in ends)
        return RankedCounts(selected.indices, selected.gaps, rounded, lower, upper)

    @property
    def _charges(self) -> int:
        """Measures that one person changes at most, by 1 each."""
        return self.releases * min(self.top, self.items_per_release)

    def _selections(self, epsilon: float) -> PureComposition:
        """Return the composition of all selections of one person, each `epsilon`-DP."""
        return PureComposition(rounds=self.releases, round_epsilon=epsilon)


class CandidateSelection(NamedTuple):
    """The selected candidate's index, and its gap in units of `utility_scale`."""

    candidate: int
    gap: float


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanismWithGap(QueryMechanism):
    """Selects a candidate with probability proportional to e^(utility / `utility_scale`), and publishes a noisy gap.

    Privacy:
        Unit: one change of the data that moves no utility by more than `sensitivity`. epsilon-DP for each call of
        `select`, or for index and gap together if any exact sampler of the exponential mechanism selects on the same
        data and `gap` draws the rest. Noise is of floating-point numbers: round the gap (Mironov 2012).

    Accuracy:
        With probability 1 - beta the selected utility is within `utility_scale` ln(candidates / beta) of the best.
        `postprocess.gap_p_value` is how unlikely so large a gap is if another candidate is better.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> ExponentialMechanismWithGap(epsilon=1.0).select([3.0, 90.0, 40.0], SeededNoise(1)).candidate
        1

    Source: Ding et al. (2022), Algorithms 6 and 7, Theorems 6 and 10; docs/proofs/free_gap.md, section 4.
    """

    epsilon: float
    sensitivity: float = 1.0  # most that one change of the data can move any utility, > 0
    monotone: bool = False  # see `QueryMechanism`
    proof = "docs/proofs/free_gap.md, section 4"
    limits = (ONE_SELECTION,)
    public = ("all parameters", "the number of candidates and their order")
    caveats = (KEYED_NOISE, PUBLISHED_FLOATS)

    def __post_init__(self) -> None:
        checks.positive("sensitivity", self.sensitivity)
        self._check_queries()
        if not 0 < self.utility_scale < math.inf:
            raise ValueError(f"epsilon must give a finite utility scale > 0, got {self.epsilon}")

    @property
    def utility_scale(self) -> float:
        """The difference of utilities that multiplies probabilities by e."""
        return (1 if self.monotone else 2) * self.sensitivity / self.epsilon

    @property
    @override
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(what="utility", bound=self.sensitivity, same_direction=self.monotone)

    def select(self, utilities: ArrayLike, noise: NoiseSource) -> CandidateSelection:
        """Select a candidate by Gumbel noise (Algorithm 7): utilities are finite numbers, (n,), n >= 2; private."""
        scaled = self._scaled(utilities)
        source = noise.derive("exponential mechanism", described(self))
        labels = source.derive("value").bind(np.arange(len(scaled), dtype=np.uint64), scaled.view(np.int64))
        # log1p keeps the upper tail, which decides, at full relative precision.
        totals = scaled - np.log(-np.log1p(-uniforms(source.derive("noise").words(labels)[:, 0])))
        first, second = leaders(totals, 2)
        return CandidateSelection(int(first), float(totals[first] - totals[second]))

    def gap(self, utilities: ArrayLike, index: int, noise: NoiseSource) -> CandidateSelection:
        """Draw the gap of a candidate that another sampler of the same exponential mechanism selected (Algorithm 6).

        It is drawn by inverse CDF: a rejection loop would take time that depends on the data.
        """
        scaled = self._scaled(utilities)
        if not 0 <= checks.integer("index", index, minimum=0) < len(scaled):
            raise ValueError(f"index must be < {len(scaled)}, got {index}")
        theta = float(scaled[index] - special.logsumexp(np.delete(scaled, index)))
        source = noise.derive("gap of exponential mechanism", described(self))
        bound = source.derive("value").bind(np.array([index], dtype=np.uint64), np.array([theta + 0.0]).view(np.int64))
        uniform = float(uniforms(source.derive("noise").words(bound)[:, 0])[0])
        return CandidateSelection(index, truncated_logistic(theta, uniform))

    def _scaled(self, utilities: ArrayLike) -> Floats:
        values = np.asarray(utilities, dtype=np.float64)
        if values.ndim != 1 or len(values) < 2:
            raise ValueError(f"utilities must be one-dimensional and at least 2, got shape {values.shape}")
        scaled: Floats = values / self.utility_scale + 0.0  # one zero of the two floating-point ones
        if not np.all(np.isfinite(scaled)):
            raise ValueError("utilities must be finite, also in units of utility_scale")
        return scaled


def uniforms(words: Words) -> Floats:
    """Return floats in the open interval (0, 1) from words (n, 2); finely spaced towards zero (2^-64)."""
    return np.minimum((words[..., 0].astype(np.float64) + 0.5) * 2.0**-64, 1 - 2.0**-53)


def truncated_logistic(theta: float, uniform: float) -> float:
    """Return the positive g with survival (1 + e^theta) / (e^theta + e^g) = uniform, for uniform in (0, 1)."""
    return float(np.logaddexp(0.0, theta + math.log1p(-uniform)) - math.log(uniform))
