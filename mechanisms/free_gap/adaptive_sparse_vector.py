"""AdaptiveSparseVector: queries above a threshold with their gaps, where clear hits cost less."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import (
    GapLaw,
    IntegersOrReals,
    difference_tail,
    excess_quantile,
    lower_deviation,
    make_law,
    mean,
    noisy,
    upper_deviation,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack
from privstream.mechanisms.sparse_vector.query_mechanism import (
    WHOLE_RUN,
    QueryRun,
    query_labels,
)
from typing_extensions import override

_CHUNK = 2**16  # queries whose noise is drawn at once


@dataclass(frozen=True, kw_only=True)
class GapProgress:
    """State of a run: queries asked, hits, and what these cost in units of the cheapest hit. It is no secret."""

    asked: int = 0
    hits: int = 0
    units: int = 0


class GapAnswers(NamedTuple):
    """Hit or miss for the first queries of a step, in order, and for each hit its gap and branch.

    A gap estimates value - threshold without bias (before it is known that the query hits): a noisy integer plus a
    public constant for integer queries. Branch 0 costs the full price, branch j that price divided by 2^j.
    """

    hits: NDArray[np.bool_]
    gaps: NDArray[np.float64]
    branches: NDArray[np.int64]

    @property
    def answered(self) -> int:
        """Number of queries answered."""
        return len(self.hits)


@dataclass(frozen=True, kw_only=True)
class GapTests:
    """In each branch, the noisiest first: hit iff value + noise >= threshold + margin, all noises less their means.

    The noise of the i-th query is a function of the source, i and the query's value, that of the threshold of the
    source alone. So nothing secret is stored, and a vector is answered in pieces as it is at once.
    """

    threshold_scale: float
    query_scale: float  # of branch 0; doubled in each further branch
    min_hits: int
    branches: int
    margin: float  # of the branches from 1 on, in standard deviations of their query noise
    noise_law: str
    integer: bool

    @property
    def price(self) -> int:
        """Price of a hit in branch 0, in units."""
        return 1 << (self.branches - 1)

    @property
    def budget(self) -> int:
        """Price of the hits that are always paid for, in units."""
        return self.min_hits * self.price

    def halted(self, state: GapProgress) -> bool:
        """Return whether a hit at the full price could no longer be paid."""
        return state.units > self.budget - self.price

    def threshold_law(self) -> GapLaw:
        """Return the noise of the threshold."""
        return make_law(self.noise_law, self.threshold_scale, integer=self.integer)

    def query_law(self, branch: int) -> GapLaw:
        """Return the noise of a query in one branch."""
        return make_law(self.noise_law, math.ldexp(self.query_scale, branch), integer=self.integer)

    def least_gap(self, branch: int) -> float:
        """Return the least gap that hits in one branch."""
        return self.margin * math.sqrt(self.query_law(branch).variance) if branch else 0.0

    def test(
        self, state: GapProgress, values: IntegersOrReals, thresholds: IntegersOrReals, noise: NoiseSource
    ) -> tuple[GapProgress, GapAnswers]:
        """Return the next state and the answers up to the halt."""
        if len(values) and self.halted(state):
            raise BudgetSpent(
                f"hits must cost <= {self.min_hits} times the full price; the run has halted and answers no more"
            )
        source = noise.derive("gap tests", packed_parameters(self))
        barriers = thresholds + self.threshold_law().draw(source.derive("threshold"), 1)[0]
        asked, units, answers = state.asked, state.units, []
        for start in range(0, len(values), _CHUNK):
            stop = start + _CHUNK
            answer = self._answer(state.asked + start, values[start:stop], barriers[start:stop], source)
            spent = units + np.cumsum(self.price >> answer.branches)
            ends = np.flatnonzero(spent > self.budget - self.price)
            answers.append(_first_hits(answer, int(ends[0]) + 1) if len(ends) else answer)
            asked += answers[-1].answered
            units = int(spent[len(answers[-1].gaps) - 1]) if len(answers[-1].gaps) else units
            if len(ends):
                break
        whole = _join(answers)
        return GapProgress(asked=asked, hits=state.hits + len(whole.gaps), units=units), whole

    def _answer(self, first: int, values: IntegersOrReals, barriers: IntegersOrReals, noise: NoiseSource) -> GapAnswers:
        """Return the answers to queries first, first + 1, .. as if there were no halt."""
        branches = np.full(len(values), -1, dtype=np.int64)
        gaps = np.zeros(len(values))
        labels = query_labels(first, len(values))
        for branch in reversed(range(self.branches)):
            law = self.query_law(branch)
            centre = mean(law) - mean(self.threshold_law())
            raw = noisy(values, law, labels, noise.derive("branch", branch)) - barriers
            passed = np.flatnonzero(raw >= self._bar(centre + self.least_gap(branch)))
            passed = passed[branches[passed] < 0]
            branches[passed] = branch
            gaps[passed] = raw[passed] - centre
        hits = branches >= 0
        return GapAnswers(hits, gaps[hits], branches[hits])

    def _bar(self, bar: float) -> float | int:
        return math.ceil(bar) if self.integer else bar

    def accuracy(self, queries: int, beta: float) -> float:
        """Return alpha: with probability 1 - beta all hits are >= threshold - alpha, all misses <= threshold + alpha.

        A quarter of beta for each direction of the threshold's noise, a quarter for hits, a quarter for misses.
        """
        checks.integer("queries", queries, minimum=1)
        share = checks.probability("beta", beta) / 4
        threshold = self.threshold_law()
        missed = lower_deviation(self.query_law(0), share / queries) + upper_deviation(threshold, share)
        raised = max(
            upper_deviation(self.query_law(branch), share / queries / self.branches) - self.least_gap(branch)
            for branch in range(self.branches)
        )
        return max(missed, raised + lower_deviation(threshold, share))

    def variance(self, branch: int) -> float:
        """Return the variance of a gap in one branch."""
        return self.query_law(branch).variance + self.threshold_law().variance

    def excess(self, branch: int, beta: float) -> float:
        """Return by how much a gap in one branch exceeds value - threshold with probability at most beta."""
        return excess_quantile(self.query_law(branch), self.threshold_law(), beta)

    def hit_probability(self, difference: float) -> float:
        """Return the probability, or a bound a little above it, of a hit where value - threshold is so large.

        Each branch hits where the error of its gap makes up for what is missing. Their probabilities are added.
        """
        threshold, found = self.threshold_law(), 0.0
        for branch in range(self.branches):
            law = self.query_law(branch)
            bar = mean(law) - mean(threshold) + self.least_gap(branch) - difference
            found += difference_tail(law, threshold, math.ceil(bar) - 1 if self.integer else bar)
        return min(1.0, found)


def _first_hits(answers: GapAnswers, count: int) -> GapAnswers:
    """Return the answers up to and including a hit."""
    end = int(np.flatnonzero(answers.hits)[count - 1]) + 1
    return GapAnswers(answers.hits[:end], answers.gaps[:count], answers.branches[:count])


def _join(answers: list[GapAnswers]) -> GapAnswers:
    if not answers:
        return GapAnswers(np.zeros(0, dtype=np.bool_), np.zeros(0), np.zeros(0, dtype=np.int64))
    return GapAnswers(*(np.concatenate(column) for column in zip(*answers, strict=True)))


class ThresholdMechanism(QueryRun[GapProgress, GapAnswers]):
    """A mechanism that spends a part of epsilon on a hidden threshold, and the rest evenly on so many hits."""

    threshold_share: float | None
    branches: int = 1
    margin: float = 0.0
    proof = "docs/proofs/free_gap.md, section 2"
    state_type = GapProgress

    @property
    @abstractmethod
    def paid_hits(self) -> int:
        """Number of hits at the full price that epsilon pays for."""

    def _check_budget(self) -> None:
        """Check the parameters beside the number of hits."""
        checks.positive("epsilon", self.epsilon)
        if self.threshold_share is not None:
            checks.probability("threshold_share", self.threshold_share)
        scales = (self.tests.query_scale, math.ldexp(self.tests.query_scale, self.branches - 1))
        self._check_queries(self.tests.threshold_scale, *scales)

    @property
    def threshold_epsilon(self) -> float:
        """The part of epsilon that the threshold costs."""
        share = self.threshold_share
        return self.epsilon * (optimal_share(self.paid_hits, monotone=self.monotone) if share is None else share)

    @property
    def hit_epsilon(self) -> float:
        """The part of epsilon that one hit at the full price costs."""
        return (self.epsilon - self.threshold_epsilon) / self.paid_hits

    @cached_property
    def tests(self) -> GapTests:
        """The tests, with their noise."""
        return GapTests(
            threshold_scale=1 / self.threshold_epsilon,
            query_scale=(1 if self.monotone else 2) / self.hit_epsilon,
            min_hits=self.paid_hits,
            branches=self.branches,
            margin=self.margin if self.branches > 1 else 0.0,
            noise_law=self.noise_law,
            integer=self.integer,
        )

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return self.tests.accuracy(queries, beta)

    @override
    def step(
        self, state: GapProgress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[GapProgress, GapAnswers]:
        queries = self._vector(values)
        bars: NDArray[Any] = np.broadcast_to(self._bars(thresholds, len(queries)), queries.shape)
        return self.tests.test(state, queries, bars, noise)

    def halted(self, state: GapProgress) -> bool:
        """Return whether the run answers no more."""
        return self.tests.halted(state)

    def spent(self, state: GapProgress) -> float:
        """Return the epsilon that the run has really used so far: the answers given are so much private.

        What remains of `epsilon` may be spent otherwise if the run is not continued (docs/proofs/free_gap.md).
        """
        return self.threshold_epsilon + self.hit_epsilon * state.units / self.tests.price if state.asked else 0.0

    def costs(self, answers: GapAnswers) -> NDArray[np.float64]:
        """Return the epsilon that each hit cost."""
        return self.hit_epsilon * np.ldexp(1.0, -answers.branches)

    def variances(self, answers: GapAnswers) -> NDArray[np.float64]:
        """Return the variance of the gap of each hit. All gaps of a run share the threshold's noise."""
        return np.array([self.tests.variance(branch) for branch in answers.branches.tolist()], dtype=np.float64)

    def lower_bounds(self, answers: GapAnswers, confidence: float) -> NDArray[np.float64]:
        """Return lower confidence bounds of value - threshold for the hits: see `postprocess.gap_lower_bound`.

        For any one query, the probability that it hits and that its bound is wrong is at most 1 - confidence, of which
        each branch gets an equal part: a query that fails in one may be wrong in the next.
        """
        beta = (1 - checks.probability("confidence", confidence)) / self.tests.branches
        below = {branch: self.tests.excess(branch, beta) for branch in set(answers.branches.tolist())}
        return answers.gaps - np.array([below[branch] for branch in answers.branches.tolist()], dtype=np.float64)

    @cached_property
    @override
    def parameters(self) -> bytes:
        # What a snapshot must agree on: the noise has only the tests in its labels.
        shared: dict[str, int | float | bytes] = {"tests": packed_parameters(self.tests)}
        return pack(type(self).__name__, 1, shared | {"threshold": float(self.threshold) + 0.0})


def optimal_share(hits: int, *, monotone: bool) -> float:
    """Return the part of epsilon for the threshold that gives the gaps of hits at the full price the least variance.

    The variance is proportional to 1 / s^2 + c^2 / (1 - s)^2 with c = hits, twice that if not monotone, for continuous
    noise, and nearly so for discrete noise.

    Source: Ding et al. (2022), section 5.1, after Lyu, Su and Li (2017), section 4.2.
    """
    return 1 / (1 + math.cbrt((hits if monotone else 2 * hits) ** 2))


MOST_BRANCHES = 32


@dataclass(frozen=True, kw_only=True)
class AdaptiveSparseVector(ThresholdMechanism):
    """Answers sensitivity-1 queries with a noisy gap to the threshold or a miss, and pays less for clear hits.

    Each query is tested in several branches, the noisiest first: branch j has 2^j times the noise of branch 0, demands
    a margin of two standard deviations of it, and a hit in it costs hit_epsilon / 2^j. Branch 0 has no margin. The run
    halts when a hit at the full price could no longer be paid: after `min_hits` hits at least, and at most
    2^(branches - 1) times as many.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP however many queries are asked; queries and thresholds may depend on all earlier answers. Gaps and
        branches are published and cost nothing more. What a run has really used is `spent`; the rest may be spent on
        something else once the run is over. Public: the parameters, the thresholds and the number of queries.

    Accuracy:
        Over so many queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss
        value <= threshold + alpha, alpha = `accuracy(queries, beta)`. A gap estimates value - threshold; the variance
        of its noise depends on its branch (see `variances`).

    Attributes:
        min_hits: number of hits that are paid for whatever their branch, >= 1.
        branches: number of branches, from 1 (which is `SparseVectorWithGap`) to 32.
        margin: what branches from 1 on demand, in standard deviations of their query noise, >= 0.
        threshold_share: part of epsilon for the threshold, in (0, 1); None for that of least gap variance in branch 0.

    All other attributes are those of `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = AdaptiveSparseVector(epsilon=1.0, min_hits=2, threshold=500, integer=True, monotone=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))
        >>> answers.hits.tolist(), answers.branches.tolist(), round(mechanism.spent(state), 2)
        ([False, True, False, True, False], [1, 1], 0.69)

    Source: Ding et al., Free gap estimates (2022), Algorithm 1 and section 5.2; docs/proofs/free_gap.md, with errata.
    """

    epsilon: float
    min_hits: int = 1
    branches: int = 2
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    margin: float = 2.0
    threshold_share: float | None = None
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        checks.integer("min_hits", self.min_hits, minimum=1)
        checks.integer("branches", self.branches, minimum=1, maximum=MOST_BRANCHES)
        checks.non_negative("margin", self.margin)
        self._check_budget()

    @property
    @override
    def paid_hits(self) -> int:
        return self.min_hits

    @property
    def most_hits(self) -> int:
        """Number of hits after which the run halts even if all of them are clear."""
        return (self.min_hits - 1) * self.tests.price + 1

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return (f"{WHOLE_RUN}, which halts when hits have cost as much as {self.min_hits} at the full price.",)
