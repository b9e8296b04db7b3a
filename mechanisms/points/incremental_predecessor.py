"""IncrementalPredecessor: the nearest points below and above a query, while points are inserted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import (
    PointCounts,
    PointMechanism,
    Updates,
    bounds,
    changes,
    checked_points,
    checked_updates,
    tree_height,
)
from privstream.mechanisms.points.dynamic_predecessor import NO_POINT, Neighbours, PredecessorStep
from privstream.mechanisms.points.predecessor_tree import (
    NOTHING,
    PredecessorBounds,
    TreeState,
    nearest_starts,
)
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from typing_extensions import override


@dataclass(frozen=True, eq=False, kw_only=True)
class IncrementalState:
    """What outlives a step: steps done, the points (private), and the tree of thresholds."""

    step: int
    points: PointCounts
    finished: TreeState


@dataclass(frozen=True, kw_only=True)
class IncrementalPredecessor(PointMechanism[IncrementalState]):
    """Finds points near to queries, below and above, while points are inserted and never deleted.

    A dyadic interval becomes *finished* once its count passes a hidden threshold that only an interval with a point
    passes. An answer is read from these marks. Intervals are looked at only once the one above is marked, so memory and
    time grow with the points and not with the universe. (The paper's second, lower thresholds, of which several marks
    contain a point, never have the smaller error bound.)

    Privacy:
        Unit: one insertion over the whole run, or `updates_per_unit` of them. Neighbours: one added or removed.
        epsilon-DP for all marks together: a point is in L = ceil(log2 universe) + 1 intervals, each with a hidden
        threshold, and a share of epsilon / L each. Public: all fields and the number of steps; queries are answered
        from published marks and may be anything. Insertions may depend on all earlier answers.

    Accuracy:
        With probability 1 - beta, for insertions and queries that do not depend on answers: an answer x to q has a
        point between x and q and at most `errors` of them;
        where there is no answer there are at most as many on that side. `error(step)` is no less, whatever
        the answer. Time per step: O(log) per point, amortised, and a draw per active interval.

    Attributes:
        epsilon: finite and > 0.
        universe: points are 1 .. universe, at most 2^60.
        horizon: steps of the whole run at most, or None: thresholds then rise slowly with the steps done.
        queries: number of queries in the whole run that the accuracy is stated for; None for all points at all steps.
        updates_per_unit: insertions that make up a unit, anywhere in the run.
        beta: failure probability of the accuracy.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = IncrementalPredecessor(epsilon=1.0, universe=1 << 32, horizon=10)
        >>> step = PredecessorStep(Updates(np.arange(10**6, 10**6 + 10**5)), queries=[10, 3 * 10**6])
        >>> state, near = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> bool(near.predecessors[0] == 0), bool(10**6 - 10**5 < near.predecessors[1] < 1.2 * 10**6)
        (True, True)

    Source: Henzinger, Sricharan, Steiner (2023), Algorithms 4 and 5; docs/proofs/predecessor.md.
    """

    epsilon: float
    universe: int
    horizon: int | None = None
    queries: int | None = None
    updates_per_unit: int = 1
    beta: float = 0.05
    noise_label = "incremental predecessor"
    state_type = IncrementalState

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.probability("beta", self.beta)
        self._check_points()
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1, maximum=1 << 60)
        _ = self.bounds.finished.mu, self.bounds.finished.tau  # refuses scales beyond what can be drawn

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=self._unit,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=0.0,
            limits=(*self._limits("inserts"), "Points are never deleted."),
            public=("all parameters", "the number of steps"),
            proof="docs/proofs/predecessor.md, Theorem 1",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=PureDp(self.epsilon),
        )

    @cached_property
    def bounds(self) -> PredecessorBounds:
        """Thresholds and error bounds."""
        return PredecessorBounds(
            epsilon=self.epsilon / self.updates_per_unit,
            universe=self.universe,
            horizon=self.horizon,
            queries=self.queries,
            beta=self.beta,
        )

    def error(self, step: int, points: int | None = None) -> int:
        """Return the error of the class docstring at steps 1 .. `step`.

        Args:
            step: 1 or more.
            points: distinct points inserted so far, at most; None for any number.
        """
        step = self._step_number(step)
        everything = 2 << self._height
        if points is not None:
            everything = min(everything, 2 * (self._height + 1) * checks.integer("points", points, minimum=0) + 1)
        return self.bounds.error(step, everything)

    @override
    def initial_state(self) -> IncrementalState:
        return IncrementalState(step=0, points=PointCounts(), finished=TreeState.nothing())

    def step(
        self, state: IncrementalState, given: PredecessorStep, noise: NoiseSource
    ) -> tuple[IncrementalState, Neighbours]:
        """Insert the points of one step, then answer its queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: a point is deleted, or points or queries have another type or shape, or are outside
                of the universe.
        """
        queries = checked_points("queries", given.queries, self.universe)
        after = self.update(state, given.updates, noise)
        return after, self.answer(after, queries)

    def update(self, state: IncrementalState, updates: Updates, noise: NoiseSource) -> IncrementalState:
        """Return the state after one step with these insertions."""
        step = self._step_number(state.step + 1)
        points, inserted = checked_updates(updates, self.universe)
        if not inserted.all():
            raise ValueError("updates must be insertions; DynamicPredecessor takes deletions")
        changed = changes(points, inserted, state.points)
        held = state.points.add(changed)
        finished = self.bounds.finished.grow(
            state.finished,
            changed.keys - 1,
            changed.values,
            held,
            step,
            lambda births: self.bounds.thresholds(births, step),
            self._source(noise).derive("finished"),
        )
        return IncrementalState(step=step, points=held, finished=finished)

    def answer(self, state: IncrementalState, queries: ArrayLike) -> Neighbours:
        """Answer queries after the last step: a function of what is published."""
        asked = checked_points("queries", queries, self.universe)
        size = np.int64(1) << self._height
        starts = nearest_starts(asked, self._height, state.finished, mirrored=False)
        ends = nearest_starts(size + 1 - asked, self._height, state.finished, mirrored=True)
        predecessors = np.where(starts == NOTHING, NO_POINT, starts + 1)
        successors = np.where(ends == NOTHING, NO_POINT, np.minimum(size - ends, self.universe))
        errors = np.maximum(
            self._errors(state, np.maximum(starts, 0), asked),
            self._errors(state, asked - 1, np.where(ends == NOTHING, size, size - ends)),
        )
        return Neighbours.of(asked, predecessors, successors, errors)

    def _errors(self, state: IncrementalState, starts: Integers, ends: Integers) -> Integers:
        """Return how many points [start, end), counted from 0, can contain, if no interval within it is finished."""
        step, active = max(1, state.step), state.finished
        first, after = bounds(active.numbers, self._height)
        sizes = after - first
        large = self.bounds.large(sizes, step)
        most = np.where(large, self.bounds.thresholds(active.births, step), sizes)
        sums, numbers = (np.concatenate([[0], np.cumsum(each)]) for each in (most, large))
        low, high = np.searchsorted(after, starts, side="right"), np.searchsorted(first, ends)
        found = self.bounds.way_errors(step, numbers[high] - numbers[low], sums[high] - sums[low])
        within: Integers = np.minimum(found, ends - starts)
        return within

    @property
    def _height(self) -> int:
        return tree_height(self.universe)
