"""The engine of sparse vector with gaps: tests against one hidden threshold that publish by how much they passed."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.errors import BudgetSpent, SnapshotError
from privstream.mechanisms.free_gap.gap_noise import lower_deviation, make_law, noisy, upper_deviation, vector
from privstream.mechanisms.noise.gaps import GapLaw, excess_quantile, mean
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sparse_vector.hidden_threshold import (
    HiddenThreshold,
    IntegersOrReals,
    parameters,
    query_labels,
)

_VERSION = 1
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
        source = noise.derive("gap tests", parameters(self))
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


class GapMechanism(ABC):
    """What sparse vector mechanisms with gaps share: how they step, and what their answers cost and tell."""

    epsilon: float
    threshold: float
    integer: bool

    @property
    @abstractmethod
    def tests(self) -> GapTests:
        """The tests, with their noise."""

    @property
    @abstractmethod
    def threshold_epsilon(self) -> float:
        """The part of epsilon that the threshold costs."""

    @property
    @abstractmethod
    def hit_epsilon(self) -> float:
        """The part of epsilon that one hit at the full price costs."""

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return self.tests.accuracy(queries, beta)

    def initial_state(self) -> GapProgress:
        """Return the state before the first query."""
        return GapProgress()

    def step(
        self, state: GapProgress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[GapProgress, GapAnswers]:
        """Answer queries in order, up to and including the last hit that is paid for.

        A vector is answered in pieces as it is at once. The noise of a query depends on its position and its true
        value: a replay repeats the answer, a replay with other data does not repeat the noise.

        Args:
            state: where the run stands.
            values: true values of the queries, shape (n,); private.
            noise: the noise of this run; give every run a source of its own.
            thresholds: one threshold or n, in place of `threshold`; public.

        Returns:
            The next state, and the answers: fewer than n if the run halted before the last query.

        Raises:
            BudgetSpent: the run had halted before.
        """
        queries = vector(values, integer=self.integer)
        bars: NDArray[Any] = np.asarray(self.threshold if thresholds is None else thresholds)
        HiddenThreshold(scale=1.0, max_hits=1, integer=self.integer).gaps(queries, bars)  # checks them
        return self.tests.test(
            state, queries, vector(np.broadcast_to(bars, queries.shape), integer=self.integer), noise
        )

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

    def snapshot(self, state: GapProgress) -> bytes:
        """Return `state` as bytes."""
        fields: dict[str, int | float | bytes | NDArray[np.float64]] = {"parameters": self._identity()}
        fields |= {"asked": state.asked, "hits": state.hits, "units": state.units}
        return pack(f"{type(self).__name__} state", _VERSION, fields)

    def restore(self, data: bytes) -> GapProgress:
        """Return the state in a snapshot of a mechanism with equal parameters, else raise SnapshotError."""
        fields = unpack(f"{type(self).__name__} state", _VERSION, data)
        if fields["parameters"] != self._identity():
            raise SnapshotError(f"snapshot must be made by {type(self).__name__} with equal parameters")
        return GapProgress(asked=int(fields["asked"]), hits=int(fields["hits"]), units=int(fields["units"]))

    def _identity(self) -> bytes:
        """Return what a snapshot must agree on, as bytes."""
        shared: dict[str, int | float | bytes | NDArray[np.float64]] = {"tests": parameters(self.tests)}
        return pack(type(self).__name__, _VERSION, shared | {"threshold": float(self.threshold) + 0.0})


def optimal_share(min_hits: int, *, monotone: bool, branch: int = 0) -> float:
    """Return the part of epsilon for the threshold that gives the gaps of one branch the least variance.

    The variance is proportional to 1 / s^2 + c^2 / (1 - s)^2 with c = min_hits 2^branch, twice that if not monotone,
    for continuous noise, and nearly so for discrete noise.

    Source: Ding et al. (2022), section 5.1, after Lyu, Su and Li (2017), section 4.2.
    """
    ratio = math.ldexp(checks.integer("min_hits", min_hits, minimum=1), branch + (0 if monotone else 1))
    return 1 / (1 + math.cbrt(ratio**2))


def _first_hits(answers: GapAnswers, count: int) -> GapAnswers:
    """Return the answers up to and including a hit."""
    end = int(np.flatnonzero(answers.hits)[count - 1]) + 1
    return GapAnswers(answers.hits[:end], answers.gaps[:count], answers.branches[:count])


def _join(answers: list[GapAnswers]) -> GapAnswers:
    if not answers:
        return GapAnswers(np.zeros(0, dtype=np.bool_), np.zeros(0), np.zeros(0, dtype=np.int64))
    return GapAnswers(*(np.concatenate(column) for column in zip(*answers, strict=True)))
