"""A tree of thresholds: which dyadic intervals have gathered many points, one hidden test per interval and step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dyadic_ranges import bounds
from privstream.mechanisms.points.dynamic_points import Integers, PointCounts
from scipy import optimize

FIELDS = ("numbers", "counts", "levels", "births", "marked")


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeState:
    """Active intervals that are not marked, in order of their starts, and all marked ones, in order of numbers.

    Attributes:
        numbers: of the active intervals (see dyadic_ranges).
        counts: points in each; private.
        levels: the hidden threshold noise tau of each; private.
        births: how many intervals had been activated before each.
        marked: numbers of the marked intervals.
        activated: how many intervals have been activated.
    """

    numbers: Integers
    counts: Integers
    levels: Integers
    births: Integers
    marked: Integers
    activated: int

    @classmethod
    def nothing(cls) -> TreeState:
        """Return the state before the first step; the root is activated in it."""
        empty = np.empty(0, np.int64)
        return cls(numbers=empty, counts=empty, levels=empty, births=empty, marked=empty, activated=0)

    def has_marked(self, numbers: Integers) -> NDArray[np.bool_]:
        """Return which intervals are marked."""
        place = np.searchsorted(self.marked, numbers)
        place[place == len(self.marked)] = 0
        return self.marked[place] == numbers if len(self.marked) else np.zeros(len(numbers), np.bool_)

    def to_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of a snapshot."""
        return {f"{name} {field}": getattr(self, field) for field in (*FIELDS, "activated")}

    @classmethod
    def from_fields(cls, name: str, fields: dict[str, Any]) -> TreeState:
        """Return what `to_fields` wrote."""
        return cls(**{field: fields[f"{name} {field}"] for field in (*FIELDS, "activated")})


@dataclass(frozen=True, kw_only=True)
class ThresholdTree:
    """Mark a dyadic interval at the first step at which count + mu > K + tau, from its activation on.

    The root is active from the start; a marked interval activates its children, which are tested in the same step. tau
    (one for each interval) and mu (one for each test) are geometric. One point more or less changes the counts of one
    interval of each level by 1, over an interval of steps, or from one step on for ever if `lasting`: that costs
    1/b_tau + 1/b_mu, or only the larger of them, for each level (docs/proofs/predecessor.md).

    Attributes:
        epsilon: of the whole tree.
        universe, height: of the dyadic intervals.
        lasting: whether a point that one world has more stays more.
        typical: -ln of the failure probability of a typical test, for the split between the two noises.
    """

    epsilon: float
    universe: int
    height: int
    lasting: bool
    typical: float

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scales of mu and tau."""
        level = self.epsilon / (self.height + 1)
        if self.lasting:
            return (1 / level * (1 + 1e-12),) * 2

        def margin(ratio: float) -> float:
            """Return by how much a count in an unmarked interval can exceed 0, roughly: K + tau - mu."""
            return (1 + 1 / ratio) * (self.typical - math.log1p(ratio) + ratio - 1)

        best: Any = optimize.minimize_scalar(margin, bounds=(1.0, 50.0), method="bounded")
        ratio = round(float(best.x), 3)
        mu = (1 + 1 / ratio) / level * (1 + 1e-12)
        return mu, ratio * mu

    @cached_property
    def mu(self) -> Geometric:
        """The noise of a test."""
        return Geometric(self.scales[0])

    @cached_property
    def tau(self) -> Geometric:
        """The noise of an interval's threshold."""
        return Geometric(self.scales[1])

    def threshold(self, log_failure: NDArray[np.float64]) -> Integers:
        """Return the least K >= 0 for which mu - tau > K has probability at most e^log_failure."""
        mu, tau = self.scales
        # Pr[mu > K + tau] = e^(-(K + 1) / mu) (1 - e^(-1 / tau)) / (1 - e^(-1 / mu - 1 / tau))
        advantage = math.log(-math.expm1(-1 / tau)) - math.log(-math.expm1(-1 / mu - 1 / tau))
        return np.maximum(0, np.ceil(mu * (advantage - np.asarray(log_failure)) - 1)).astype(np.int64)

    @property
    def margin_law(self) -> tuple[tuple[float, int], tuple[float, int]]:
        """The law of tau - mu, for `NoiseSum`: the scale that raises, and the one that lowers, once each."""
        return (self.tau.scale, 1), (self.mu.scale, 1)

    def grow(
        self,
        state: TreeState,
        points: Integers,
        weights: Integers,
        held: PointCounts,
        step: int,
        thresholds: Callable[[Integers], Integers],
        noise: NoiseSource,
    ) -> tuple[TreeState, Integers]:
        """Add one step's points, and return the next state and the numbers newly marked, in increasing order.

        Args:
            state: before the step.
            points, weights: what the step adds, points counted from 0.
            held: all points after the step, counted from 1.
            step: 1, 2, ..; with the number of an interval the label of its test.
            thresholds: returns K for intervals by their births.
            noise: of this tree.
        """
        if not state.activated:
            state = self._activate(state, np.ones(1, np.int64), held, noise)
        else:
            state = replace(state, counts=state.counts + self._located(state, points, weights))
        tested = np.arange(len(state.numbers))
        marked: list[Integers] = []
        while len(tested):
            hits = tested[self._hits(state, tested, step, thresholds, noise)]
            if not len(hits):
                break
            parents = state.numbers[hits]
            marked.append(parents)
            state = self._without(state, hits)
            before = state.activated
            state = self._activate(state, self._children(parents), held, noise)
            tested = np.flatnonzero(state.births >= before)
        if not marked:
            return state, np.empty(0, np.int64)
        new = np.sort(np.concatenate(marked))
        everything = np.insert(state.marked, np.searchsorted(state.marked, new), new)
        return replace(state, marked=everything), new

    def _located(self, state: TreeState, points: Integers, weights: Integers) -> Integers:
        """Return how much falls into each active, unmarked interval."""
        starts, ends = bounds(state.numbers, self.height)
        place = np.searchsorted(starts, points, side="right") - 1
        inside = place >= 0
        inside[inside] = points[inside] < ends[place[inside]]
        return np.bincount(place[inside], weights[inside], minlength=len(starts)).astype(np.int64)

    def _hits(
        self,
        state: TreeState,
        rows: Integers,
        step: int,
        thresholds: Callable[[Integers], Integers],
        noise: NoiseSource,
    ) -> NDArray[np.bool_]:
        """Test some of the active intervals."""
        labels = np.empty((len(rows), 2), np.uint64)
        labels[:, 0] = state.numbers[rows]
        labels[:, 1] = step
        mu = self.mu.draw(noise.derive("mu"), labels)
        passed = state.counts[rows] + mu > thresholds(state.births[rows]) + state.levels[rows]
        return np.asarray(passed, np.bool_)

    def _children(self, parents: Integers) -> Integers:
        """Return the children that contain any of the universe; single points have none."""
        inner = parents[parents < np.int64(1) << self.height]
        children = np.stack([2 * inner, 2 * inner + 1], axis=1).reshape(-1)
        return children[bounds(children, self.height)[0] < self.universe]

    def _activate(self, state: TreeState, numbers: Integers, held: PointCounts, noise: NoiseSource) -> TreeState:
        """Add active intervals, with all points that they have so far; they are born in order of their starts."""
        starts, ends = bounds(numbers, self.height)
        order = np.argsort(starts, kind="stable")
        numbers, starts, ends = numbers[order], starts[order], ends[order]
        counts = held.below(ends + 1) - held.below(starts + 1)
        levels = self.tau.draw(noise.derive("tau"), numbers.astype(np.uint64))
        births = state.activated + np.arange(len(numbers), dtype=np.int64)
        place = np.searchsorted(bounds(state.numbers, self.height)[0], starts)
        return replace(
            state,
            numbers=np.insert(state.numbers, place, numbers),
            counts=np.insert(state.counts, place, counts),
            levels=np.insert(state.levels, place, levels),
            births=np.insert(state.births, place, births),
            activated=state.activated + len(numbers),
        )

    def _without(self, state: TreeState, rows: Integers) -> TreeState:
        """Take intervals out of the active ones."""
        return replace(
            state,
            numbers=np.delete(state.numbers, rows),
            counts=np.delete(state.counts, rows),
            levels=np.delete(state.levels, rows),
            births=np.delete(state.births, rows),
        )
