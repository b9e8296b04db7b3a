"""ThresholdMechanism: what tests of queries in order share: how they divide epsilon, step, and what they spent."""

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.gap_tests import GapAnswers, GapProgress, GapTests
from privstream.mechanisms.mechanism import Mechanism, packed_parameters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold
from privstream.mechanisms.sparse_vector.query_mechanism import QueryMechanism


class ThresholdMechanism(QueryMechanism, Mechanism[GapProgress]):
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

    def least_threshold(self, tail: float) -> int:
        """Return the least whole threshold, >= 0, that a query with the value 0 passes with at most this probability.

        Or one a little larger: probabilities of the branches are added.
        """
        low, high = -1, 1
        while self.tests.hit_probability(-high) > tail:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tests.hit_probability(-middle) <= tail else (middle, high)
        return high

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
        queries = self._vector(values)
        bars: NDArray[Any] = np.asarray(self.threshold if thresholds is None else thresholds)
        HiddenThreshold(scale=1.0, max_hits=1, integer=self.integer).gaps(queries, bars)  # checks them
        return self.tests.test(state, queries, self._vector(np.broadcast_to(bars, queries.shape)), noise)

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
    def parameters(self) -> bytes:
        """What a snapshot must agree on: the noise has only the tests in its labels."""
        shared: dict[str, int | float | bytes] = {"tests": packed_parameters(self.tests)}
        return pack(type(self).__name__, 1, shared | {"threshold": float(self.threshold) + 0.0})


def optimal_share(hits: int, *, monotone: bool) -> float:
    """Return the part of epsilon for the threshold that gives the gaps of hits at the full price the least variance.

    The variance is proportional to 1 / s^2 + c^2 / (1 - s)^2 with c = hits, twice that if not monotone, for continuous
    noise, and nearly so for discrete noise.

    Source: Ding et al. (2022), section 5.1, after Lyu, Su and Li (2017), section 4.2.
    """
    return 1 / (1 + math.cbrt((hits if monotone else 2 * hits) ** 2))
