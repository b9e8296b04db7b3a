"""The tree of sparse vectors of incremental predecessor queries: its nodes, walks and error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
    longest_cover,
    tree_height,
)
from scipy import special

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


NOTHING = -1


def nearest_starts(
    ends: Integers, height: int, finished: TreeState, heavy: TreeState | None, group: int, *, mirrored: bool
) -> Integers:
    """Return for each range [0, end) the start of the interval from which on there is a point, or NOTHING.

    Intervals are looked at from the end downwards: those of the range's dyadic cover until one is finished, then the
    right children on the way to the last finished interval within it. Its start is the answer, unless `group` heavy
    intervals come first: then it is the start of the last of these.

    Args:
        ends: 1 .. 2^height.
        height: of the tree.
        finished: intervals each of which contains a point.
        heavy: intervals of which any `group` on such a way contain a point; None to do without.
        group: at least 1.
        mirrored: turn the universe around: then [0, end) is what comes last.
    """
    answers = np.full(len(ends), NOTHING, np.int64)
    heavies = np.zeros(len(ends), np.int64)
    inside = np.zeros(len(ends), np.int64)  # the finished interval that a query has come to
    done = np.zeros(len(ends), np.bool_)

    def marked(state: TreeState, numbers: Integers) -> np.ndarray:
        if mirrored:
            numbers = 3 * (np.int64(1) << level_below_root(numbers)) - 1 - numbers
        return state.has_marked(numbers)

    def settle(rows: Integers, numbers: Integers) -> None:
        """Answer with the starts of intervals."""
        answers[rows] = bounds(numbers, height)[0]
        done[rows] = True

    def go_past(rows: Integers, numbers: Integers) -> None:
        """Go past unfinished intervals."""
        if heavy is None:
            return
        heavies[rows] += marked(heavy, numbers)
        enough = heavies[rows] == group
        settle(rows[enough], numbers[enough])

    for level in range(height + 1):
        rows = np.flatnonzero(~done & (inside == 0) & (ends >> level & 1 == 1))
        numbers = (np.int64(1) << (height - level)) + (ends[rows] >> level) - 1
        found = marked(finished, numbers)
        inside[rows[found]] = numbers[found]
        go_past(rows[~found], numbers[~found])
    for depth in range(height):
        here = np.int64(1) << depth
        rows = np.flatnonzero(~done & (inside >= here) & (inside < 2 * here))
        left, right = 2 * inside[rows], 2 * inside[rows] + 1
        to_right = marked(finished, right)
        to_left = ~to_right & marked(finished, left)
        inside[rows[to_right]] = right[to_right]
        go_past(rows[to_left], right[to_left])
        inside[rows[to_left]] = left[to_left]
        stop = ~to_right & ~to_left
        settle(rows[stop], left[stop] >> 1)
    rows = np.flatnonzero(~done & (inside > 0))
    settle(rows, inside[rows])
    return answers


LARGEST_FALSE_SHARE = 0.25  # of empty intervals that become heavy: with two children each, they still die out
TYPICAL_STEPS = TYPICAL_INTERVALS = 1 << 10
HEAVY_SHARES = (0.4, 0.5, 0.6, 0.7)  # of epsilon for the heavy intervals


@dataclass(frozen=True, kw_only=True)
class PredecessorBounds:
    """What an incremental predecessor with heavy intervals in groups of `group` needs and promises.

    With group 1, a heavy interval contains a point by itself; then nothing else is needed, and `heavy` does not exist.

    Attributes:
        epsilon: for one update.
        universe: points are 1 .. universe.
        horizon: steps, or None.
        queries: queries that the accuracy is stated for, or None for all points at all steps.
        beta: failure probability of the accuracy.
        group: k.
        heavy_share: part of epsilon for the heavy intervals, if group > 1.
    """

    epsilon: float
    universe: int
    horizon: int | None
    queries: int | None
    beta: float
    group: int
    heavy_share: float = 0.5

    @property
    def height(self) -> int:
        """Height of the tree."""
        return tree_height(self.universe)

    @cached_property
    def finished(self) -> ThresholdTree:
        """The tree of intervals that contain a point each."""
        share = 1.0 if self.group == 1 else 1 - self.heavy_share
        typical = -float(self._finished_failure(np.array([TYPICAL_INTERVALS]), self.horizon or TYPICAL_STEPS)[0])
        return self._tree(share, typical)

    @cached_property
    def heavy(self) -> ThresholdTree | None:
        """The tree of intervals that contain a point in groups of `group`."""
        if self.group == 1:
            return None
        return self._tree(self.heavy_share, -self._heavy_failure(self.horizon or TYPICAL_STEPS))

    def finished_thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of intervals that were activated after so many others, at a step."""
        return self.finished.threshold(self._finished_failure(births, step))

    def heavy_thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of the test for being heavy, the same for all intervals."""
        if self.heavy is None:
            raise ValueError("group must be > 1 for heavy intervals")
        return np.full(len(births), int(self.heavy.threshold(np.array([self._heavy_failure(step)]))[0]))

    def large(self, sizes: Integers, step: int) -> NDArray[np.bool_]:
        """Return of which intervals the thresholds bound the points; a set has at most `sizes` in each of the others.

        It depends on the step alone, and not on what is seen.
        """
        first = self.finished_thresholds(np.zeros(1, np.int64), self._block_end(step))
        return np.asarray(sizes > int(first[0]))

    def error(self, step: int, activated: int) -> int:
        """Return how many points are few at a step up to which so many intervals have been activated to be finished."""
        base, noises, log_failure = self._parts(self._block_end(step), activated)
        found = 1 + base + noises.quantile(log_failure)
        return min(found, self.universe)

    def way_errors(self, step: int, activated: int, numbers: Integers, most: Integers) -> Integers:
        """Return the same for answers on whose ways so many large unfinished intervals lie.

        `most` has the sums of their K, and of the sizes of the others.
        """
        (raises, _), (lowers, _) = self.finished.margin_law
        log_failure = self._log_share - self._log_sets(self._block_end(step), self._deepest_large(step))
        sizes, place = np.unique(numbers, return_inverse=True)
        margins = [NoiseSum(((raises, n),), ((lowers, n),)).quantile(log_failure) if n else 0 for n in sizes.tolist()]
        bounds = 1 + most + np.array(margins, np.int64)[place]
        return np.asarray(bounds if self.heavy is None else np.minimum(bounds, self.error(step, activated)))

    def rough_error(self) -> float:
        """Return about the error of a typical step, fast."""
        base, noises, log_failure = self._parts(self.horizon or TYPICAL_STEPS, TYPICAL_INTERVALS)
        mean = sum(b * n for b, n in noises.raising) - sum(b * n for b, n in noises.lowering)
        variance = sum(b * b * n for b, n in noises.raising + noises.lowering)
        return base + mean + math.sqrt(-2 * log_failure * variance)

    def _parts(self, step: int, activated: int) -> tuple[int, NoiseSum, float]:
        """Return the sum of thresholds on the longest way of a query, the noises on top, and their ln beta."""
        most = self._longest_way
        last = np.array([max(0, activated - 1)])
        high = int(self.finished_thresholds(last, step)[0])
        raising, lowering = self.finished.margin_law
        if self.heavy is None:
            depth = self._deepest_large(step)
            sets = self._log_sets(step, depth)
            most, rest = self._longest_large_way(depth)
            total = most * high + rest
            parts = [(raising, lowering, most)]
        else:
            low = int(self.heavy_thresholds(last, step)[0])
            rest = max(0, most - 2)
            total = (self.group + 1) * high + rest * low
            sets = self._log_sets(step, self.height)
            sets += 2 * math.log(self.height + 2) + _log_subsets(most, self.group)
            parts = [(raising, lowering, self.group + 1), (*self.heavy.margin_law, rest)]
        noises = NoiseSum(
            tuple((up[0], number) for up, _, number in parts if number),
            tuple((down[0], number) for _, down, number in parts if number),
        )
        return total, noises, self._log_share - sets

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
        ends = 1 if self.group == 1 else 2  # a finished interval, or a heavy one
        answers, below = self._log_answers(step), 1
        if depth < self.height:  # of a query, and of where its way ends, only the first bits are needed
            answers, below = min(answers, math.log(2**depth + 1) - self._log_step_share(step)), 2
        return answers + math.log(2 * ends * (depth + 2)) + (depth + below) * math.log(2)

    @property
    def _longest_way(self) -> int:
        """Unfinished intervals on the way of a query, the children of the finished one included, at most."""
        return max(2, 2 * self.height - 1) if self.height else 1

    def _longest_large_way(self, depth: int) -> tuple[int, int]:
        """Return how many of them reach down to `depth` at most, and how many points of a set the others can have.

        Proof: docs/proofs/predecessor.md, section 4.
        """
        if depth == self.height:
            return self._longest_way, 0
        return min(self._longest_way, max(1, 2 * depth)), 6 << (self.height - depth - 1)

    @property
    def _log_share(self) -> float:
        """Return ln of the part of beta for each kind of failure."""
        return math.log(self.beta / (2 if self.group == 1 else 4))

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

    def _heavy_failure(self, step: int) -> float:
        """Return ln of the probability that a test may make an interval without points heavy."""
        cover = longest_cover(self.height)
        every = math.log(self.universe) + math.log(self.universe + 1) - math.log(2)  # [x, q]
        if self.queries is not None:
            pairs = math.log(2 * self.queries)
        elif self.horizon is not None:
            pairs = min(every, math.log(2 * self.universe) + math.log(self.horizon))
        else:
            pairs = every
        log_false = (self._log_share - pairs - _log_subsets(cover, self.group, exactly=True)) / self.group
        return min(log_false, math.log(LARGEST_FALSE_SHARE)) + self._log_step_share(step)

    def _log_answers(self, step: int) -> float:
        """Return ln of the number of answers that the error is stated for."""
        if self.queries is not None:
            return math.log(self.queries)
        return math.log(self.universe) - self._log_step_share(step)

    def _tree(self, share: float, typical: float) -> ThresholdTree:
        return ThresholdTree(
            epsilon=self.epsilon * share,
            universe=self.universe,
            height=self.height,
            typical=typical,
        )


def _log_subsets(size: int, most: int, *, exactly: bool = False) -> float:
    """Return ln of the number of subsets of `size` things with at most, or exactly, `most` members."""
    counts = [0.0] if size == 0 else list(range(min(most, size) + 1))
    logs = [special.gammaln(size + 1) - special.gammaln(i + 1) - special.gammaln(size - i + 1) for i in counts]
    return float(logs[-1] if exactly else special.logsumexp(logs))
