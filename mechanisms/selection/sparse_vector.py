"""Integer queries of sensitivity 1, and SparseVector: they are tested one by one, and hits alone cost anything."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import (
    ComposedCurve,
    PointCurve,
    PrivacyCurve,
    PureComposition,
    PureDp,
    smallest,
)
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from typing_extensions import override

LARGEST = 2**60
"""Of values and thresholds: their sums with noise stay within 64 bits."""

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e11  # what the laws draw exactly, and fits into 64-bit integers
HITS, VALUES, GAPS = PUBLISHED = ("hits", "values", "gaps")
PROOFS = {HITS: "sparse_vector.md, section Sparse", VALUES: "sparse_vector.md, section NumericSparse"}
MOST_BRANCHES = 32
SHARE_OF_VALUES = 1 / 9  # of epsilon, as in the source for delta = 0
_MOST_GAIN = 1e4  # less noise by more than this is not looked for


class QueryMechanism(ABC):
    """A mechanism on integer queries, none of which one unit that is added or removed moves by more than 1.

    A parameter that a subclass does not have is as it is here.
    """

    epsilon: float  # privacy loss of the whole run, or of one selection, > 0
    delta: float = 0.0
    monotone: bool = False
    """Whether one change of the data moves all queries in one direction, as adding a person does: half the noise."""

    proof: ClassVar[str] = ""
    public: ClassVar[tuple[str, ...]] = ("all parameters", "the number of queries and their order")
    adaptivity: ClassVar[str] = "The queries may depend on everything published before."
    caveats: ClassVar[tuple[str, ...]] = (KEYED_NOISE,)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run, or of one selection."""
        return PrivacyGuarantee(
            unit=self.unit,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=self.limits,
            public=self.public,
            adaptivity=self.adaptivity,
            proof=str(self.proof),
            caveats=self.caveats,
            curve=self.curve,
        )

    @property
    def unit(self) -> PrivacyUnit:
        """What the guarantee protects."""
        return PrivacyUnit(what="query", same_direction=self.monotone)

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of what the guarantee covers."""
        return PureDp(self.epsilon)

    def _check_queries(self, *scales: float) -> None:
        """Check the parameters that these mechanisms share, and the noise scales that they give."""
        checks.positive("epsilon", self.epsilon)
        for scale in scales:
            if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
                raise ValueError(f"epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of {scale:g}")
        checks.boolean("monotone", self.monotone)


def composed(curves: tuple[PrivacyCurve, ...], epsilon: float, delta: float, interval: float = 1e-4) -> PrivacyCurve:
    """Return what curves make together; (epsilon, delta), which they add up to, where the grid of losses has more."""
    found = ComposedCurve(curves=curves, interval=interval)
    return found if found.delta(epsilon) <= delta else PointCurve(at_epsilon=epsilon, at_delta=delta)


def integers(name: str, values: ArrayLike, *, single: bool = False) -> Integers:
    """Return a row of integers within range, or perhaps a single one, as a fresh int64 array; quotes no value."""
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 and not (single and array.ndim == 0):
        raise ValueError(f"{name} must be one-dimensional, got {array.ndim} dimensions")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.size and (array.max() > LARGEST or array.min() < -LARGEST):
        raise ValueError(f"{name} must be between -2**60 and 2**60")
    return array.astype(np.int64)


def noisy(values: Integers, law: Geometric | DiscreteLaplace, labels: Labels, noise: NoiseSource) -> Integers:
    """Return values with noise that depends on label and value: see `NoiseSource.bind`."""
    return values + law.draw(noise.derive("noise"), noise.derive("value").bind(labels, values))


def leaders(totals: NDArray[Any], count: int) -> Integers:
    """Return the indices of the `count` largest values in descending order, of equal ones the lower index first."""
    if count < len(totals):
        bar = np.partition(totals, len(totals) - count)[len(totals) - count]
        above = np.flatnonzero(totals > bar)
        chosen = np.concatenate([above, np.flatnonzero(totals == bar)[: count - len(above)]])
    else:
        chosen = np.arange(len(totals))
    return chosen[np.lexsort((chosen, -totals[chosen]))]


def excess_quantile(query: Geometric | DiscreteLaplace, threshold: Geometric | DiscreteLaplace, beta: float) -> float:
    """Return a t such that a gap exceeds the truth by more than t with probability <= beta, the least up to about 1/2.

    The error of a gap is the query's noise A minus the threshold's B, each less its mean: docs/proofs/free_gap.md,
    section 5.
    """
    a, c = 1 / query.scale, 1 / threshold.scale
    ahead = math.expm1(-c) / math.expm1(-a - c)  # Pr[A >= B]
    return max(-1, math.ceil(math.log(ahead / beta) / a) - 1) - query.mean + threshold.mean


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a run: queries asked, hits, and what these cost in units of the cheapest hit. It is no secret."""

    asked: int = 0
    hits: int = 0
    units: int = 0


class Answers(NamedTuple):
    """Hit or miss for the first queries of a step, in order, and for each hit what is published of it."""

    hits: NDArray[np.bool_]  # (n,): fewer than asked if the run halted
    numbers: Floats  # (m,): noisy values, or gaps, which estimate value - threshold; none if only hits are published
    branches: Integers  # (m,): branch 0 costs the full price, branch j that price divided by 2^j


class Selection(NamedTuple):
    """Indices of the selected queries, the largest first, the gap of each to the threshold, and the epsilon spent."""

    indices: Integers
    gaps: Floats
    spent: float


@dataclass(frozen=True, kw_only=True)
class SparseVector(QueryMechanism, Mechanism[Progress]):
    """Answers integer queries of sensitivity 1 with hit or miss, and pays for hits alone, until the budget is spent.

    What is published of a hit:
      hits: nothing more. With `max_hits` = 1 this is AboveThreshold, else Sparse: the threshold is drawn anew after
        each hit, and epsilons compose exactly.
      values: its value with noise of its own, for a ninth of epsilon: NumericSparse.
      gaps: by how much it passed the threshold, for free. The threshold is drawn once, and the halt is when a hit at
        the full price could no longer be paid. With several `branches` clear hits cost less (adaptive): branch j has
        2^j times the noise of branch 0, demands `margin` standard deviations of it, and a hit in it costs a part 2^-j.
        `select` tests in noisy order (hybrid): the largest queries above the threshold.

    Privacy:
        Unit: one change of the data that moves no query by more than 1.
        (epsilon, delta)-DP however many queries are asked; queries and thresholds may depend on all earlier answers.
        Public: the parameters, the thresholds and the number of queries.

    Accuracy:
        Over all these queries, with probability 1 - beta, each hit has value >= threshold - alpha, each miss
        value <= threshold + alpha, and each published value is off by alpha at most: `accuracy(queries, beta)`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = SparseVector(epsilon=1.0, max_hits=2, threshold=500)
        >>> mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))[1].hits.tolist()
        [False, True, False, True]

    Source: Dwork and Roth (2014), Algorithms 1 to 3, docs/proofs/sparse_vector.md; Ding et al. (2022), Algorithms 1, 2
    and 5, docs/proofs/free_gap.md.
    """

    epsilon: float
    delta: float = 0.0  # in [0, 1); 0 with gaps
    max_hits: int = 1  # hits at the full price that are paid for
    threshold: int = 0  # of the queries that bring none of their own; public
    publish: str = HITS  # or "values" or "gaps"
    monotone: bool = False  # see `QueryMechanism`; for gaps alone
    branches: int = 1  # from 1 to 32; 1 without gaps
    margin: float = 2.0  # what branches from 1 on demand, in standard deviations of their query noise
    noise_label = "sparse vector"
    state_type = Progress
    public = ("all parameters", "the thresholds", "the number of queries")
    adaptivity = "Queries and thresholds may depend on all earlier answers."

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("max_hits", self.max_hits, minimum=1)
        checks.integer("threshold", self.threshold, minimum=-LARGEST, maximum=LARGEST)
        checks.one_of("publish", self.publish, PUBLISHED)
        checks.integer("branches", self.branches, minimum=1, maximum=MOST_BRANCHES)
        checks.non_negative("margin", self.margin)
        if self.publish == GAPS and self.delta > 0:
            raise ValueError(f"delta must be 0 with gaps, got {self.delta}")
        if self.publish != GAPS and (self.monotone or self.branches > 1):
            raise ValueError("monotone and branches must be given with gaps alone")
        self._check_queries(self.threshold_scale, self.query_scale, math.ldexp(self.query_scale, self.branches - 1))
        if self.publish == VALUES:
            _ = DiscreteLaplace(self.value_scale)

    @property
    def proof(self) -> str:  # type: ignore[override]
        """Where the guarantee is proved."""
        return f"docs/proofs/{PROOFS.get(self.publish, 'free_gap.md, section 2')}"

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        what = "hits have cost as much as" if self.publish == GAPS else "there are"
        return (f"It covers the whole run, which halts when {what} {self.max_hits:,} at the full price.",)

    @property
    @override
    def curve(self) -> PrivacyCurve:
        if self.publish == GAPS or (self.publish == VALUES and self.delta == 0):
            return PureDp(self.epsilon)
        tests = PureComposition(rounds=self.max_hits, round_epsilon=2 / self.threshold_scale)
        if self.publish == HITS:
            return tests
        values = PureComposition(rounds=self.max_hits, round_epsilon=1 / self.value_scale)
        return composed((tests, values), self.epsilon, self.delta)

    @property
    def threshold_epsilon(self) -> float:
        """The part of epsilon that the threshold costs, with gaps: that of least variance (Ding et al., 5.1)."""
        return self.epsilon / (1 + math.cbrt(((1 if self.monotone else 2) * self.max_hits) ** 2))

    @property
    def hit_epsilon(self) -> float:
        """The part of epsilon that one hit at the full price costs, with gaps."""
        return (self.epsilon - self.threshold_epsilon) / self.max_hits

    @cached_property
    def threshold_scale(self) -> float:
        """Scale of the threshold's noise."""
        if self.publish == GAPS:
            return 1 / self.threshold_epsilon
        if self.publish == HITS:
            return noise_scale(self.epsilon, self.delta, self.max_hits, 2)
        return noise_scale(self.epsilon * (1 - SHARE_OF_VALUES), self.delta / 2, self.max_hits, 2)

    @property
    def query_scale(self) -> float:
        """Scale of the noise of a query in branch 0; doubled in each further branch."""
        if self.publish == GAPS:
            return (1 if self.monotone else 2) / self.hit_epsilon
        return 2 * self.threshold_scale

    @cached_property
    def value_scale(self) -> float:
        """Scale of the noise on each published value."""
        return noise_scale(self.epsilon * SHARE_OF_VALUES, self.delta / 2, self.max_hits, 1)

    @property
    def threshold_law(self) -> Geometric | DiscreteLaplace:
        """The noise of the threshold: geometric with gaps, else discrete Laplace."""
        return (Geometric if self.publish == GAPS else DiscreteLaplace)(self.threshold_scale)

    def query_law(self, branch: int = 0) -> Geometric | DiscreteLaplace:
        """Return the noise of a query in one branch."""
        return (Geometric if self.publish == GAPS else DiscreteLaplace)(math.ldexp(self.query_scale, branch))

    def least_gap(self, branch: int) -> float:
        """Return the least gap that hits in one branch."""
        return self.margin * math.sqrt(self.query_law(branch).variance) if branch else 0.0

    def gap_variance(self, branch: int = 0) -> float:
        """Return the variance of the noise of a gap. All gaps of a run share the threshold's noise."""
        return self.query_law(branch).variance + self.threshold_law.variance

    @property
    def most_hits(self) -> int:
        """Number of hits after which the run halts even if all of them are clear."""
        return (self.max_hits - 1) * self._price + 1

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for a number of queries."""
        checks.integer("queries", queries, minimum=1)
        if self.publish == GAPS:
            return self._gap_accuracy(queries, checks.probability("beta", beta) / 4)
        tests = beta / 2 if self.publish == VALUES else beta
        number = min(self.max_hits, queries)
        thresholds = math.lgamma(number + 1) + math.lgamma(0.5) - math.lgamma(number + 0.5)
        logs = math.log(queries / (2 * checks.probability("beta", tests))) + thresholds
        values = self.value_scale * math.log(2 * self.max_hits / beta) if self.publish == VALUES else 0.0
        return max(2 * self.threshold_scale * logs, values) + 1

    def _gap_accuracy(self, queries: int, share: float) -> float:
        """Return alpha where each direction of the threshold's noise, hits and misses each fail with `share`."""
        threshold, query = self.threshold_law, self.query_law()
        missed = query.mean + threshold.tail_quantile(share) - threshold.mean
        raised = max(
            law.tail_quantile(share / queries / self.branches) - law.mean - self.least_gap(branch)
            for branch, law in enumerate(map(self.query_law, range(self.branches)))
        )
        return max(missed, raised + threshold.mean)

    def halted(self, state: Progress) -> bool:
        """Return whether the run answers no more: a hit at the full price could no longer be paid."""
        return state.units > (self.max_hits - 1) * self._price

    def spent(self, state: Progress) -> float:
        """Return the epsilon that the run has used so far; with delta > 0 the first query spends all."""
        if not state.asked or self.delta > 0:
            return self.epsilon if state.asked else 0.0
        if self.publish == GAPS:
            return self.threshold_epsilon + self.hit_epsilon * state.units / self._price
        test, value = 1 / self.threshold_scale, 1 / self.value_scale if self.publish == VALUES else 0.0
        return min(self.epsilon, state.hits * (2 * test + value) + (0.0 if self.halted(state) else test))

    def lower_bounds(self, answers: Answers, confidence: float) -> Floats:
        """Return lower confidence bounds of value - threshold for the hits.

        For any one query, the probability that it hits and that its bound is wrong is at most 1 - confidence. This is
        not so among hits alone: of queries far below their threshold that hit nevertheless, every bound is wrong.
        """
        wrong = (1 - checks.probability("confidence", confidence)) / self.branches
        laws = map(self.query_law, range(self.branches))
        below = np.array([excess_quantile(law, self.threshold_law, wrong) for law in laws])
        return np.asarray(answers.numbers - below[answers.branches])

    def step(
        self, state: Progress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[Progress, Answers]:
        """Answer queries in order, up to and including the last hit that is paid for.

        True values are integers (n,), private; public thresholds, one or n, may take the place of `threshold`. There
        are fewer than n answers if the run halts before the last query. A vector is answered in pieces as it is at
        once. Every run needs noise of its own, which is bound to positions, and to values where they are published.

        Raises:
            BudgetSpent: the run had halted before.
        """
        queries = integers("values", values)
        bars = integers("thresholds", self.threshold if thresholds is None else thresholds, single=True)
        if bars.shape not in {(), queries.shape}:
            raise ValueError(f"thresholds must be one number or {len(queries)} numbers, got shape {bars.shape}")
        if len(queries) and self.halted(state):
            raise BudgetSpent(f"hits must stay <= {self.max_hits} at the full price; the run has halted")
        return self._answer(state, queries, np.broadcast_to(bars, queries.shape), self._source(noise))

    def select(self, values: ArrayLike, noise: NoiseSource) -> Selection:
        """Select up to `max_hits` of the largest queries above the threshold, in noisy order, with their gaps.

        The guarantee holds for each call by itself; one that selects m queries has used the epsilon of the threshold
        and of m hits. The order of the queries must not depend on the data. Needs gaps, and one branch.
        """
        queries = integers("values", values)
        if self.publish != GAPS or self.branches > 1 or not len(queries):
            raise ValueError("publish must be gaps, branches 1, and values at least one query to select from")
        source = self._source(noise).derive("in noisy order")
        totals = noisy(queries, self.query_law(), len(queries), source)
        barrier = self.threshold + int(self.threshold_law.draw(source.derive("threshold"), 1)[0])
        order = leaders(totals, self.max_hits)
        gaps = np.asarray(totals[order] - barrier - self._centre(0), np.float64)
        found = int(np.count_nonzero(gaps >= 0))
        return Selection(order[:found], gaps[:found], self.threshold_epsilon + self.hit_epsilon * found)

    def _answer(
        self, state: Progress, values: Integers, bars: Integers, noise: NoiseSource
    ) -> tuple[Progress, Answers]:
        """Return the state after some queries, and their answers."""
        labels, gaps = np.uint64(state.asked) + np.arange(len(values), dtype=np.uint64), values - bars
        raws = []
        for branch in range(self.branches):
            source = noise.derive("query", branch)  # a test alone needs no noise of its own for each value
            own = source.derive("value").bind(labels, values) if self.publish == GAPS else labels
            raws.append(gaps + self.query_law(branch).draw(source, own))
        start, end, hits, units, barrier = 0, len(values), state.hits, state.units, 0
        rows, branches = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while start < end and not self.halted(Progress(units=units)):
            place = np.array([0 if self.publish == GAPS else hits], np.uint64)  # drawn anew after each hit, or never
            barrier = int(self.threshold_law.draw(noise.derive("threshold"), place)[0])
            found, where = self._passed([raw[start:] - barrier for raw in raws])
            costs = units + np.cumsum(self._price >> where)
            paid = int(np.searchsorted(costs, (self.max_hits - 1) * self._price, side="right")) + 1
            number = min(len(found), paid if self.publish == GAPS else 1)
            rows.append(found[:number] + start)
            branches.append(where[:number])
            hits, units = hits + number, int(costs[number - 1]) if number else units
            start = end if self.publish == GAPS or not number else int(rows[-1][-1]) + 1
        chosen, passed = np.concatenate(rows), np.concatenate(branches)
        end = int(chosen[-1]) + 1 if self.halted(Progress(units=units)) else end
        hit = np.zeros(end, np.bool_)
        hit[chosen] = True
        numbers = np.zeros(0)
        if self.publish == GAPS and len(chosen):
            centres = np.array([self._centre(each) for each in range(self.branches)])
            numbers = np.stack(raws)[passed, chosen] - barrier - centres[passed]
        if self.publish == VALUES:
            published = DiscreteLaplace(self.value_scale)
            numbers = noisy(values[chosen], published, labels[chosen], noise.derive("published")).astype(float)
        return Progress(asked=state.asked + end, hits=hits, units=units), Answers(hit, numbers, passed)

    def _passed(self, raws: list[Integers]) -> tuple[Integers, Integers]:
        """Return which queries pass the threshold, and in which branch: the noisiest one in which they do."""
        branches = np.full(len(raws[0]), -1, dtype=np.int64)
        for branch, raw in enumerate(raws):
            branches[raw >= math.ceil(self._centre(branch) + self.least_gap(branch))] = branch
        found = np.flatnonzero(branches >= 0)
        return found, branches[found]

    def _centre(self, branch: int) -> float:
        """Return the mean of the noise of a gap."""
        return self.query_law(branch).mean - self.threshold_law.mean

    @property
    def _price(self) -> int:
        """Price of a hit in branch 0, in units."""
        return 1 << (self.branches - 1)


@functools.lru_cache(maxsize=1024)
def noise_scale(epsilon: float, delta: float, max_hits: int, changes: int) -> float:
    """Return the least scale with which these hits are (epsilon, delta)-DP together, each by `changes` / scale."""
    pure = changes * max_hits / epsilon
    if delta == 0:
        return pure

    def private(scale: float) -> bool:
        return PureComposition(rounds=max_hits, round_epsilon=changes / scale).delta(epsilon) <= delta

    return smallest(private, pure / (_MOST_GAIN * max_hits), pure, precision=1e-9)
