"""The nearest points below and above a query, while points are inserted and deleted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.continual.ranges import (
    PointMechanism,
    RangeCounter,
    RangeState,
    Updates,
    checked_points,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from typing_extensions import override

NO_POINT = 0
NO_DISTANCE = -1


@dataclass(frozen=True, eq=False)
class PredecessorStep:
    """Input of a step: updates, and the queries to be answered after them.

    Attributes:
        updates: insertions and, where they are allowed, deletions, in order; private.
        queries: integers, shape (n,), in 1 .. universe; public.
    """

    updates: Updates
    queries: ArrayLike = ()


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Answers to queries q, int64 (n,) each.

    Attributes:
        predecessors: some x <= q with a point in [x, q] and few of them; 0 if there are few points up to q.
        successors: some x >= q with a point in [q, x] and few of them; 0 if there are few points from q on.
        distances: from q to the nearer of both, which is no less than to the nearest point; -1 if there is neither.
        errors: how many points are "few", on either side, with the probability that the mechanism states; no secret.
    """

    predecessors: Integers
    successors: Integers
    distances: Integers
    errors: Integers

    @classmethod
    def of(cls, queries: Integers, predecessors: Integers, successors: Integers, errors: Integers) -> Neighbours:
        """Add the distances."""
        far = np.iinfo(np.int64).max
        before = np.where(predecessors == NO_POINT, far, queries - predecessors)
        after = np.where(successors == NO_POINT, far, successors - queries)
        nearest = np.minimum(before, after)
        return cls(predecessors, successors, np.where(nearest == far, NO_DISTANCE, nearest), errors)


@dataclass(frozen=True, kw_only=True)
class DynamicPredecessor(PointMechanism[RangeState]):
    """Finds points near to queries, below and above, while points are inserted and deleted, by counting in ranges.

    The answer to q is an x at which the noisy count of [x, q] passes alpha, the error of this count: it is above its
    alpha for x and not for x + 1. It is found by bisection; where the count of [1, q] is not above, there is none.

    Privacy: of `RangeCounter` with the same parameters, of whose answers this is a function.

    Accuracy:
        With probability 1 - beta, for updates and queries that do not depend on answers: an answer x to q has a point
        between x and q, and at most `errors` of them; where there is no answer there are at most as many on that side.
        `error(step)` is no less, whatever the answer.

    Attributes: see `RangeCounter`; `queries`: number of queries in the whole run that the accuracy is stated for, or
        None for all points at all steps; `beta`: failure probability of the accuracy.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = DynamicPredecessor(epsilon=1.0, universe=1 << 20, horizon=10)
        >>> step = PredecessorStep(Updates(np.arange(200001, 500001)), queries=[100, 10**6])
        >>> state, near = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> bool(near.predecessors[0] == 0), bool(400000 < near.predecessors[1] < 500000)
        (True, True)

    Source: Henzinger, Sricharan, Steiner (2023), Lemma 14; docs/proofs/range_counting.md, section 5.
    """

    epsilon: float
    delta: float = 0.0
    universe: int
    horizon: int | None = None
    queries: int | None = None
    beta: float = 0.05
    noise_label = "dynamic predecessor"
    state_type = RangeState

    def __post_init__(self) -> None:
        checks.probability("beta", self.beta)
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1)
        _ = self.counter  # checks the rest

    @cached_property
    def counter(self) -> RangeCounter:
        """What counts in ranges."""
        return RangeCounter(
            epsilon=self.epsilon,
            delta=self.delta,
            universe=self.universe,
            horizon=self.horizon,
        )

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return replace(self.counter.guarantee, proof="docs/proofs/range_counting.md, section 5")

    @property
    def _ranges(self) -> dict[str, Any]:
        """How many ranges begin or end at a query, at each step or in the whole run."""
        number = 2 * self.universe * (self.universe if self.queries is None else self.queries)
        return {"answers": number, "every_step": self.queries is None}

    def alphas(self, step: int, low: ArrayLike, high: ArrayLike) -> Integers:
        """Return the error of the counts of each of these ranges, which begin or end at a query."""
        return self.counter.errors_at(step, low, high, self.beta, **self._ranges)

    def error(self, step: int) -> int:
        """Return the error of the class docstring at steps 1 .. `step`."""
        return 2 * self.counter.error_at(step, self.beta, **self._ranges) + 1

    def step(self, state: RangeState, given: PredecessorStep, noise: NoiseSource) -> tuple[RangeState, Neighbours]:
        """Make the updates of one step, then answer its queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points or queries have another type or shape, or are outside of the universe.
        """
        checked_points("queries", given.queries, self.universe)
        after = self.counter.update(state, given.updates)
        return after, self.answer(after, given.queries, noise)

    def answer(self, state: RangeState, queries: ArrayLike, noise: NoiseSource) -> Neighbours:
        """Answer queries after the last step; asking again gives the same answers."""
        asked = checked_points("queries", queries, self.universe)
        if state.step == 0:
            nothing = np.full(len(asked), NO_POINT, np.int64)
            return Neighbours.of(asked, nothing, nothing.copy(), nothing.copy())
        source = self._source(noise)

        def between(points: Integers) -> tuple[NDArray[np.bool_], Integers, Integers]:
            """Return which points lie in the universe, and from where to where the ranges to the queries go."""
            inside = (points >= 1) & (points <= self.universe)
            return inside, np.minimum(points, asked)[inside], np.maximum(points, asked)[inside]

        def passed(points: Integers) -> NDArray[np.bool_]:
            """Return whether the counts between points and queries are above alpha; no point is a point beyond."""
            inside, low, high = between(points)
            result = np.zeros(len(points), np.bool_)
            result[inside] = self.counter.count(state, low, high, source) > self.alphas(state.step, low, high)
            return result

        def nearest(edge: int, direction: int) -> tuple[Integers, Integers]:
            """Return where the count passes alpha on the way from the queries to `edge`, and how much lies before."""
            reached = np.full(len(asked), edge, np.int64)
            found = passed(reached)
            missed = asked - direction
            while np.any(far := found & (np.abs(reached - missed) > 1)):
                middle = np.where(far, (reached + missed) // 2, reached)
                hit = passed(middle)
                reached = np.where(far & hit, middle, reached)
                missed = np.where(far & ~hit, middle, missed)
            missed = np.where(found, missed, edge)
            errors = np.ones(len(asked), np.int64)
            some = missed != asked - direction
            inside, low, high = between(missed)
            errors[some] += 2 * self.alphas(state.step, low[some[inside]], high[some[inside]])
            return np.where(found, reached, NO_POINT), errors

        before, after = nearest(1, -1), nearest(self.universe, 1)
        return Neighbours.of(asked, before[0], after[0], np.maximum(before[1], after[1]))
