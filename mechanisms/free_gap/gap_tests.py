"""The engine of sparse vector with gaps: tests against one hidden threshold that publish by how much they passed."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.errors import BudgetSpent
from privstream.mechanisms.free_gap.gap_noise import lower_deviation, make_law, noisy, upper_deviation
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import GapLaw, difference_tail, excess_quantile, mean
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.hidden_threshold import IntegersOrReals, query_labels

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
