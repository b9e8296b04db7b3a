"""The tree of sparse vectors of incremental predecessor queries: its nodes, walks and error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import SERIES, NoiseSum
from privstream.mechanisms.points.dynamic_points import (
    PointCounts,
    bounds,
    level_below_root,
    tree_height,
)


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


@dataclass(frozen=True, kw_only=True)
class ThresholdTree:
    """Mark a dyadic interval at the first step at which count + mu > K + tau, from its activation on.

    The root is active from the start; a marked interval activates its children, which are tested in the same step. tau
    (one for each interval) and mu (one for each test) are geometric. One point more or less changes the counts of one
    interval of each level by 1, over an interval of steps: that costs 1/b_tau + 1/b_mu for each level
    (docs/proofs/predecessor.md).

    Attributes:
        epsilon: of the whole tree.
        universe, height: of the dyadic intervals.
        typical: -ln of the failure probability of a typical test, for the split between the two noises.
    """

    epsilon: float
    universe: int
    height: int
    typical: float

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scales of mu and tau."""
        level = self.epsilon / (self.height + 1)

        def margin(ratio: float) -> float:
            """Return by how much a count in an unmarked interval can exceed 0, roughly: K + tau - mu."""
            return (1 + 1 / ratio) * (self.typical - math.log1p(ratio) + ratio - 1)

        ratio = round(float(scipy.optimize.minimize_scalar(margin, bounds=(1.0, 50.0), method="bounded").x), 3)
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

    def grow(
        self,
        state: TreeState,
        points: Integers,
        weights: Integers,
        held: PointCounts,
        step: int,
        thresholds: Callable[[Integers], Integers],
        noise: NoiseSource,
    ) -> TreeState:
        """Add one step's points, and return the next state.

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
            return state
        new = np.sort(np.concatenate(marked))
        everything = np.insert(state.marked, np.searchsorted(state.marked, new), new)
        return replace(state, marked=everything)

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


NOTHING = -1


def nearest_starts(ends: Integers, height: int, finished: TreeState, *, mirrored: bool) -> Integers:
    """Return for each range [0, end) the start of the interval from which on there is a point, or NOTHING.

    Intervals are looked at from the end downwards: those of the range's dyadic cover until one is finished, then the
    right children on the way to the last finished interval within it. Its start is the answer.

    Args:
        ends: 1 .. 2^height.
        height: of the tree.
        finished: intervals each of which contains a point.
        mirrored: turn the universe around: then [0, end) is what comes last.
    """
    answers = np.full(len(ends), NOTHING, np.int64)
    inside = np.zeros(len(ends), np.int64)  # the finished interval that a query has come to
    done = np.zeros(len(ends), np.bool_)

    def marked(numbers: Integers) -> NDArray[np.bool_]:
        if mirrored:
            numbers = 3 * (np.int64(1) << level_below_root(numbers)) - 1 - numbers
        return finished.has_marked(numbers)

    for level in range(height + 1):
        rows = np.flatnonzero((inside == 0) & (ends >> level & 1 == 1))
        numbers = (np.int64(1) << (height - level)) + (ends[rows] >> level) - 1
        found = marked(numbers)
        inside[rows[found]] = numbers[found]
    for depth in range(height):
        here = np.int64(1) << depth
        rows = np.flatnonzero(~done & (inside >= here) & (inside < 2 * here))
        left, right = 2 * inside[rows], 2 * inside[rows] + 1
        to_right = marked(right)
        further = np.where(to_right, right, left)
        goes_on = to_right | marked(left)
        done[rows[~goes_on]] = True
        inside[rows[goes_on]] = further[goes_on]
    rows = np.flatnonzero(inside > 0)
    answers[rows] = bounds(inside[rows], height)[0]
    return answers


TYPICAL_STEPS = TYPICAL_INTERVALS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class PredecessorBounds:
    """What an incremental predecessor needs and promises.

    Attributes:
        epsilon: for one update.
        universe: points are 1 .. universe.
        horizon: steps, or None.
        queries: queries that the accuracy is stated for, or None for all points at all steps.
        beta: failure probability of the accuracy.
    """

    epsilon: float
    universe: int
    horizon: int | None
    queries: int | None
    beta: float

    @property
    def height(self) -> int:
        """Height of the tree."""
        return tree_height(self.universe)

    @cached_property
    def finished(self) -> ThresholdTree:
        """The tree of intervals that contain a point each."""
        typical = -float(self._finished_failure(np.array([TYPICAL_INTERVALS]), self.horizon or TYPICAL_STEPS)[0])
        return ThresholdTree(epsilon=self.epsilon, universe=self.universe, height=self.height, typical=typical)

    def thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of intervals that were activated after so many others, at a step."""
        return self.finished.threshold(self._finished_failure(births, step))

    def large(self, sizes: Integers, step: int) -> NDArray[np.bool_]:
        """Return of which intervals the thresholds bound the points; a set has at most `sizes` in each of the others.

        It depends on the step alone, and not on what is seen.
        """
        first = self.thresholds(np.zeros(1, np.int64), self._block_end(step))
        return np.asarray(sizes > int(first[0]))

    def error(self, step: int, activated: int) -> int:
        """Return how many points are few at a step up to which so many intervals have been activated."""
        step = self._block_end(step)
        depth = self._deepest_large(step)
        most, rest = self._longest_large_way(depth)
        high = int(self.thresholds(np.array([max(0, activated - 1)]), step)[0])
        return min(1 + most * high + rest + self._margin(most, step, depth), self.universe)

    def way_errors(self, step: int, numbers: Integers, most: Integers) -> Integers:
        """Return the same for answers on whose ways so many large unfinished intervals lie.

        `most` has the sums of their K, and of the sizes of the others.
        """
        step = self._block_end(step)
        sizes, place = np.unique(numbers, return_inverse=True)
        margins = [self._margin(size, step, self._deepest_large(step)) for size in sizes.tolist()]
        return np.asarray(1 + most + np.array(margins, np.int64)[place])

    def _margin(self, number: int, step: int, depth: int) -> int:
        """Return what the sum of so many tau - mu keeps within, for all sets that answers may have on their ways."""
        tau, mu = self.finished.tau.scale, self.finished.mu.scale
        log_failure = self._log_share - self._log_sets(step, depth)
        return NoiseSum(((tau, number),), ((mu, number),)).quantile(log_failure) if number else 0

    def _block_end(self, step: int) -> int:
        """Return the next power of two, or the horizon: so few quantiles are computed."""
        block = 1 << (step - 1).bit_length()
        return block if self.horizon is None else min(block, self.horizon)

    def _deepest_large(self, step: int) -> int:
        """Return the depth below the root of the smallest intervals that are large."""
        sizes = np.int64(1) << np.arange(self.height, -1, -1)
        return max(0, int(self.large(sizes, step).sum()) - 1)

    def _log_sets(self, step: int, depth: int) -> float:
        """Return ln of how many sets of unfinished intervals down to `depth` all answers may have on their ways."""
        answers, below = self._log_answers(step), 1
        if depth < self.height:  # of a query, and of where its way ends, only the first bits are needed
            answers, below = min(answers, math.log(2**depth + 1) - self._log_step_share(step)), 2
        return answers + math.log(2 * (depth + 2)) + (depth + below) * math.log(2)

    def _longest_large_way(self, depth: int) -> tuple[int, int]:
        """Return how many unfinished intervals on a way are large at most, and how many points the others can have.

        Proof: docs/proofs/predecessor.md, section 4.
        """
        most = max(2, 2 * self.height - 1) if self.height else 1
        if depth == self.height:
            return most, 0
        return min(most, max(1, 2 * depth)), 6 << (self.height - depth - 1)

    @property
    def _log_share(self) -> float:
        """Return ln of the part of beta for each kind of failure."""
        return math.log(self.beta / 2)

    def _log_step_share(self, step: int) -> float:
        """Return ln of the part of a failure probability that falls to a step."""
        if self.horizon is not None:
            return -math.log(self.horizon)
        return -math.log(SERIES * (step + 1) * math.log(step + 1) ** 2)

    def _finished_failure(self, births: Integers, step: int) -> NDArray[np.float64]:
        """Return ln of the probability that a test may finish an interval without points."""
        numbers = births + 2.0
        shares = -np.log(SERIES * numbers * np.log(numbers) ** 2)
        return np.asarray(self._log_share + shares + self._log_step_share(step))

    def _log_answers(self, step: int) -> float:
        """Return ln of the number of answers that the error is stated for."""
        if self.queries is not None:
            return math.log(self.queries)
        return math.log(self.universe) - self._log_step_share(step)
