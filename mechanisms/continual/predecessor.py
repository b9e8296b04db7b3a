"""The nearest points below and above a query, while points are inserted, and perhaps deleted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.continual.ranges import (
    DIGEST_BYTES,
    IMPULSES,
    PointMechanism,
    Updates,
    below,
    checked_points,
    cover,
    history,
    of_each,
    updated,
)
from privstream.mechanisms.noise.discrete import (
    SERIES,
    DiscreteGaussian,
    Geometric,
    NoiseSum,
    SymmetricNoise,
    tail_quantile,
)
from privstream.mechanisms.noise.running import LENGTHS, CompleteTreeNoise, EpochNoise, laplace_tree, plain_digits
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift
from typing_extensions import override

NO_POINT = 0
NO_DISTANCE = NOTHING = -1
_BASE = 4  # of trees of complete nodes: the least variance of Gaussian noise, or nearly, for all horizons
_TYPICAL_STEPS = _TYPICAL_INTERVALS = 1 << 10
_POWERS = np.int64(1) << np.arange(63)


@dataclass(frozen=True, eq=False)
class PredecessorStep:
    """Input of a step: updates, and the queries to be answered after them."""

    updates: Updates  # private
    queries: ArrayLike = ()  # integers, shape (n,), in 1 .. universe; public


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Answers to queries q, int64 (n,) each."""

    predecessors: Integers  # some x <= q with a point in [x, q] and few of them; 0 if there are few points up to q
    successors: Integers  # some x >= q with a point in [q, x] and few of them; 0 if there are few points from q on
    distances: Integers  # from q to the nearer of both, no less than to the nearest point; -1 if there is neither
    errors: Integers  # how many points are "few", on either side, with the probability that is stated; no secret

    @classmethod
    def of(cls, queries: Integers, predecessors: Integers, successors: Integers, errors: Integers) -> Neighbours:
        """Add the distances."""
        far = np.iinfo(np.int64).max
        before = np.where(predecessors == NO_POINT, far, queries - predecessors)
        after = np.where(successors == NO_POINT, far, successors - queries)
        nearest = np.minimum(before, after)
        return cls(predecessors, successors, np.where(nearest == far, NO_DISTANCE, nearest), errors)


@dataclass(frozen=True, eq=False, kw_only=True)
class IncrementalState:
    """What outlives a step: points, active dyadic intervals in order of their starts, and marked ones."""

    step: int = 0
    points: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # sorted; private
    numbers: Integers = field(default_factory=lambda: np.ones(1, np.int64))  # of active intervals that are not marked
    births: Integers = field(default_factory=lambda: np.zeros(1, np.int64))  # those activated before each of them
    marked: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # numbers of marked intervals, sorted
    activated: int = 1  # intervals so far


def bounds(numbers: Integers, height: int) -> tuple[Integers, Integers]:
    """Return the first point of each dyadic interval, and the first one after it; 1 is the root, n has 2 n, 2 n + 1."""
    levels = height + 1 - np.searchsorted(_POWERS, numbers, side="right")
    starts = (numbers << levels) - (np.int64(1) << height)
    return starts, starts + (np.int64(1) << levels)


def last_starts(ends: Integers, first: Integers, after: Integers) -> Integers:
    """Return for each range [0, end) the largest start of an interval [first, after) that lies in it, or NOTHING."""
    order = np.argsort(after, kind="stable")
    best = np.maximum.accumulate(np.append(NOTHING, first[order]))
    return best[np.searchsorted(after[order], ends, side="right")]


@dataclass(frozen=True, kw_only=True)
class IncrementalPredecessor(PointMechanism[IncrementalState]):
    """Finds points near to queries, below and above, while points are inserted and never deleted.

    A dyadic interval becomes *marked* at the first step at which count + mu > K + tau, tau (one for each interval) and
    mu (one for each test) geometric, which hardly happens without a point. Answers are read from these marks. The root
    is active from the start; a marked interval activates its children, which are tested in the same step.

    Privacy:
        Unit: one insertion over the whole run, added or removed. epsilon-DP for all marks together. Public: all fields
        and the number of steps; queries may be anything. Insertions may depend on all answers.

    Accuracy:
        With probability 1 - beta, for insertions and queries that do not depend on answers: an answer x to q has a
        point between x and q and at most `errors` of them; where there is no answer there are at most as many on that
        side. `error(step)` is no less, whatever the answer.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = IncrementalPredecessor(epsilon=1.0, universe=1 << 32, horizon=10)
        >>> step = PredecessorStep(Updates(np.arange(10**6, 10**6 + 10**5)), queries=[10, 3 * 10**6])
        >>> state, near = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> bool(near.predecessors[0] == 0), bool(10**6 - 10**5 < near.predecessors[1] < 1.2 * 10**6)
        (True, True)

    Source: Henzinger, Sricharan, Steiner (2023), Algorithms 4 and 5; docs/proofs/predecessor.md.
    """

    queries: int | None = None  # at a step, that the accuracy is stated for; None for all points
    noise_label = "incremental predecessor"
    state_type = IncrementalState
    update = "inserts one point, which is never deleted,"
    proof = "predecessor.md, Theorem 1"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta > 0:
            raise ValueError(f"delta must be 0 unless points are deleted, got {self.delta}")
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1, maximum=1 << 60)
        _ = self.mu, self.tau  # refuses scales beyond what can be drawn

    def step(
        self, state: IncrementalState, given: PredecessorStep, noise: NoiseSource
    ) -> tuple[IncrementalState, Neighbours]:
        """Insert the points of one step, test all active intervals, then answer the step's queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: a point is deleted, or points or queries are none of the universe.
        """
        asked, updates = checked_points("queries", given.queries, self.universe), given.updates
        step, source = self._step_number(state.step + 1), self._source(noise).derive("finished")
        points, _, _ = updated(state.points, updates, self.universe)
        if updates.inserted is not None and not np.all(updates.inserted):
            raise ValueError("updates must be insertions; DynamicPredecessor takes deletions")
        numbers, births, marked, activated = state.numbers, state.births, state.marked, state.activated
        tested = np.arange(len(numbers))
        while len(hits := tested[self._hits(points, numbers[tested], births[tested], step, source)]):
            parents = numbers[hits]
            marked = np.union1d(marked, parents)
            inner = parents[parents < np.int64(1) << self.height]  # single points have no children
            children = np.stack([2 * inner, 2 * inner + 1], axis=1).reshape(-1)
            starts, _ = bounds(children, self.height)
            children = children[np.argsort(starts, kind="stable")][: np.count_nonzero(starts < self.universe)]
            born = activated + np.arange(len(children), dtype=np.int64)
            numbers, births = np.append(np.delete(numbers, hits), children), np.append(np.delete(births, hits), born)
            order = np.argsort(bounds(numbers, self.height)[0], kind="stable")
            numbers, births, activated = numbers[order], births[order], activated + len(children)
            tested = np.flatnonzero(births >= activated - len(children))
        columns = {"points": points, "numbers": numbers, "births": births, "marked": marked}
        after = IncrementalState(step=step, activated=activated, **columns)
        return after, self._answers(after, asked)

    def _hits(
        self, points: Integers, numbers: Integers, births: Integers, step: int, noise: NoiseSource
    ) -> NDArray[np.bool_]:
        """Test active intervals; the noise of a test is bound to the count."""
        starts, ends = bounds(numbers, self.height)
        counts = below(points, ends + 1) - below(points, starts + 1)
        labels = np.stack([numbers, np.full(len(numbers), step)], axis=1).astype(np.uint64)
        source = noise.derive("mu")
        mu, tau = self.mu.draw(source, source.bind(labels, counts)), self.tau.draw(noise.derive("tau"), labels[:, 0])
        return np.asarray(counts + mu > self.thresholds(births, step) + tau, np.bool_)

    def _answers(self, state: IncrementalState, asked: Integers) -> Neighbours:
        """Answer queries after the last step: a function of what is published."""
        size = np.int64(1) << self.height
        first, after = bounds(state.marked, self.height)
        starts = last_starts(asked, first, after)
        ends = last_starts(size + 1 - asked, size - after, size - first)  # of the universe turned around
        errors = np.maximum(
            self._way_errors(state, np.maximum(starts, 0), asked),
            self._way_errors(state, asked - 1, np.where(ends == NOTHING, size, size - ends)),
        )
        predecessors = np.where(starts == NOTHING, NO_POINT, starts + 1)
        successors = np.where(ends == NOTHING, NO_POINT, np.minimum(size - ends, self.universe))
        return Neighbours.of(asked, predecessors, successors, errors)

    @cached_property
    def mu(self) -> Geometric:
        """The noise of a test."""
        return Geometric((1 + 1 / self._ratio) / (self.epsilon / (self.height + 1)) * (1 + 1e-12))

    @cached_property
    def tau(self) -> Geometric:
        """The noise of an interval's threshold."""
        return Geometric(self._ratio * self.mu.scale)

    @cached_property
    def _ratio(self) -> float:
        """Of the scales of tau and mu: with it an unmarked interval has few points, nearly, in a typical test."""
        typical = -float(self.log_failure(np.array([_TYPICAL_INTERVALS]), self.horizon or _TYPICAL_STEPS)[0])
        return round(math.sqrt(typical), 3)

    def log_failure(self, births: Integers, step: int) -> NDArray[np.float64]:
        """Return ln of the probability that a test may mark an interval without points."""
        numbers = births + 2.0
        shares = -np.log(SERIES * numbers * np.log(numbers) ** 2)
        return np.asarray(math.log(self.beta / 2 * self._step_share(step)) + shares)

    def threshold(self, log_failure: NDArray[np.float64]) -> Integers:
        """Return the least K >= 0 for which mu - tau > K has probability at most e^log_failure."""
        mu, tau = self.mu.scale, self.tau.scale
        # Pr[mu > K + tau] = e^(-(K + 1) / mu) (1 - e^(-1 / tau)) / (1 - e^(-1 / mu - 1 / tau))
        advantage = math.log(-math.expm1(-1 / tau)) - math.log(-math.expm1(-1 / mu - 1 / tau))
        return np.maximum(0, np.ceil(mu * (advantage - np.asarray(log_failure)) - 1)).astype(np.int64)

    def thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of intervals that were activated at a step, after a number of others."""
        return self.threshold(self.log_failure(births, step))

    def error(self, step: int) -> int:
        """Return the error of the class docstring at steps 1 .. `step`."""
        self._step_number(step)
        sizes = np.int64(1) << np.arange(self.height, -1, -1)
        large = self._large(sizes, step)
        high = int(self.thresholds(np.array([(2 << self.height) - 1]), step)[0])
        points = 2 * np.where(large, np.minimum(sizes, high), sizes).sum()  # two of each depth at most, or nearly
        return int(min(1 + points + self._margin(2 * int(large.sum()), step), self.universe))

    def _way_errors(self, state: IncrementalState, starts: Integers, ends: Integers) -> Integers:
        """Return how many points [start, end), counted from 0, can contain, if no interval within it is marked."""
        step = max(1, state.step)
        first, after = bounds(state.numbers, self.height)
        large = self._large(after - first, step)
        most = np.where(large, self.thresholds(state.births, step), after - first)
        sums, numbers = (np.concatenate([[0], np.cumsum(each)]) for each in (most, large))
        low, high = np.searchsorted(after, starts, side="right"), np.searchsorted(first, ends)
        margins = of_each(numbers[high] - numbers[low], lambda size: self._margin(size, step))
        return np.asarray(np.minimum(1 + sums[high] - sums[low] + margins, ends - starts))

    def _large(self, sizes: Integers, step: int) -> NDArray[np.bool_]:
        """Return which intervals are larger than a threshold: points of others are at most as many as places."""
        return np.asarray(sizes > int(self.thresholds(np.zeros(1, np.int64), step)[0]))

    def _margin(self, number: int, step: int) -> int:
        """Return what a sum of `number` terms tau - mu keeps within, for all sets on the ways of answers."""
        if not number:
            return 0
        answers = math.log(self.queries or self.universe) - math.log(self._step_share(step))
        log_sets = answers + math.log(2 * (self.height + 2)) + (self.height + 1) * math.log(2)
        parts = ((self.tau.scale, number, 1),), ((self.mu.scale, number, 1),)
        return tail_quantile(NoiseSum(*parts), math.log(self.beta / 2) - log_sets)


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicState:
    """What outlives a step; the noise of a node is bound to the digest of all updates up to its end. Private."""

    step: int = 0
    points: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # sorted
    ends: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # of the nodes that the sum of all steps has
    digests: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))  # at these
    digest: bytes = bytes(DIGEST_BYTES)


@dataclass(frozen=True, kw_only=True)
class DynamicPredecessor(PointMechanism[DynamicState]):
    """Finds points near to queries, below and above, while points are inserted and deleted, by counting in ranges.

    Every dyadic interval of the universe has a continual counter, whose noise is drawn when a range is looked at. The
    answer to q is an x at which the noisy count of [x, q] passes alpha, the error of this count, found by bisection;
    where the count of [1, q] is not above, there is none.

    Privacy:
        Unit: one event, that is one update (an insertion or deletion of one point), added or removed; see
        `RangeCounter`. Public: all fields, the number of steps, and the queries. Replays:
        docs/proofs/range_counting.md, section 4.

    Accuracy:
        As of `IncrementalPredecessor`.

    Source: Henzinger, Sricharan, Steiner (2023), Lemmas 14, 26, 27; docs/proofs/range_counting.md, section 5.
    """

    queries: int | None = None  # at a step, that the accuracy is stated for; None for all points
    noise_label = "dynamic predecessor"
    state_type = DynamicState
    public = (*PointMechanism.public, "which queries are asked, and when")
    proof = "range_counting.md, section 5"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1)
        _ = self.noise  # refuses scales beyond what can be drawn

    @cached_property
    def noise(self) -> EpochNoise:
        """The noise of an interval's counter."""
        moved = IMPULSES * (self.height + 1)

        def tree(steps: int) -> CompleteTreeNoise:
            if self.delta == 0:
                return laplace_tree(steps, moved / self.epsilon)
            norm = math.sqrt(moved * len(plain_digits(_BASE, steps)))
            sigma = gaussian_sigma(largest_shift(self.epsilon, self.delta), norm)
            return CompleteTreeNoise(steps, DiscreteGaussian(sigma), _BASE)

        return EpochNoise.of(tree, self.horizon, self.horizon or LENGTHS[-1])

    def error(self, step: int) -> int:
        """Return the error of the class docstring at steps 1 .. `step`."""
        most = max(1, 2 * self.height - 2)  # intervals that a range is the sum of
        return min(2 * self.noise.tail_bound(step, self._tail(step), most, so_far=True) + 1, self.universe)

    def alphas(self, step: int, low: Integers, high: Integers) -> Integers:
        """Return the errors of the counts of ranges that begin or end at a query."""
        tail = self._tail(step)
        return of_each(np.bincount(self._cover(low, high)[0]), lambda size: self.noise.tail_bound(step, tail, size))

    def _tail(self, step: int) -> float:
        """Return the failure probability of the count of one range at a step, on one side."""
        ranges = 2 * self.universe * (self.queries or self.universe)
        return self.beta * self._step_share(self._step_number(step)) / (2 * ranges)

    def step(self, state: DynamicState, given: PredecessorStep, noise: NoiseSource) -> tuple[DynamicState, Neighbours]:
        """Make the updates of one step, then answer its queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points or queries are none of the universe.
        """
        asked = checked_points("queries", given.queries, self.universe)
        step, source = self._step_number(state.step + 1), self._source(noise)
        points, new, gone = updated(state.points, given.updates, self.universe)
        digest = history(state.digest, new, gone)
        ends = np.unique([end for *_, end in self._nodes(step)])
        known = np.concatenate([state.digests, np.frombuffer(digest, np.uint8)[None, :]])
        digests = known[np.searchsorted(np.append(state.ends, step), ends)]
        after = DynamicState(step=step, points=points, ends=ends, digests=digests, digest=digest)
        before, low = self._nearest(after, asked, 1, -1, source)
        beyond, high = self._nearest(after, asked, self.universe, 1, source)
        return after, Neighbours.of(asked, before, beyond, np.maximum(low, high))

    def _nearest(
        self, state: DynamicState, asked: Integers, edge: int, direction: int, noise: NoiseSource
    ) -> tuple[Integers, Integers]:
        """Return where the count passes alpha on the way from the queries to `edge`, and how much lies before."""

        def ranges(points: Integers) -> tuple[Integers, Integers]:
            return np.minimum(points, asked), np.maximum(points, asked)

        def passed(points: Integers) -> NDArray[np.bool_]:
            low, high = ranges(points)
            return np.asarray(self.count(state, low, high, noise) > self.alphas(state.step, low, high))

        reached = np.full(len(asked), edge, np.int64)
        found = passed(reached)
        missed = asked - direction  # nothing is counted there
        while np.any(far := found & (np.abs(reached - missed) > 1)):
            middle = np.where(far, (reached + missed) // 2, reached)
            hit = passed(middle)
            reached = np.where(far & hit, middle, reached)
            missed = np.where(far & ~hit, middle, missed)
        missed = np.where(found, missed, edge)
        some = missed != asked - direction
        low, high = ranges(np.where(some, missed, asked))
        errors = np.where(some, 2 * self.alphas(state.step, low, high), 0) + 1
        return np.where(found, reached, NO_POINT), np.minimum(errors, self.universe)

    def count(self, state: DynamicState, low: Integers, high: Integers, noise: NoiseSource) -> Integers:
        """Count the points of ranges after the last step, with noise that is a function of labels."""
        owners, intervals = self._cover(low, high)
        distinct, place = np.unique(intervals, return_inverse=True)
        drawn, labels = np.zeros(len(distinct), np.int64), distinct.astype(np.uint64)
        for number, law, height, position, end in self._nodes(state.step):
            bound = state.digests[np.searchsorted(state.ends, end)].tobytes()
            drawn += law.draw(noise.derive("node", number, height, position, bound), labels)
        sums = below(state.points, high + 1) - below(state.points, low)
        np.add.at(sums, owners, drawn[place])
        return sums

    def _nodes(self, step: int) -> Iterator[tuple[int, SymmetricNoise, int, int, int]]:
        """Return epoch, law, height, position and last step of the nodes over time whose noise a count has."""
        for number, tree, before, done in self.noise.begun(step):
            assert isinstance(tree, CompleteTreeNoise)
            for height, position in tree.nodes(done):
                yield number, tree.law, height, position, before + (position + 1) * tree.base**height

    def _cover(self, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """Return the dyadic intervals of ranges: the number of the range, and that of the interval, of each."""
        last = np.where(high == self.universe, np.int64(1) << self.height, high)  # nothing lies beyond
        owners, levels, places, _ = cover(low - 1, last, 2)
        return owners, (np.int64(1) << (self.height - levels)) + places
