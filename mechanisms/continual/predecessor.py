"""The nearest points below and above a query, while points are inserted and deleted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
    subtraction_trees,
    tree_height,
    updated,
)
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.noise.running import CompleteTreeNoise, EpochNoise, NodeNoise, plain_digits
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift, noise_curve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from typing_extensions import override

NO_POINT = 0
NO_DISTANCE = -1
_BASE = 4  # of trees of complete nodes: the least variance of Gaussian noise, or nearly, for all horizons


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


def longest_cover(height: int) -> int:
    """Return of how many dyadic intervals a range is the sum at most."""
    return max(1, 2 * height - 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicState:
    """What outlives a step; noise to come is bound to the digests.

    Attributes:
        step: steps done.
        points: the points, sorted; private.
        ends: steps at which nodes have ended that are in sums to come.
        digests: of all updates up to each of these, uint8 (n, 16).
        digest: of all updates.
    """

    step: int = 0
    points: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    ends: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    digests: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))
    digest: bytes = bytes(DIGEST_BYTES)


@dataclass(frozen=True, kw_only=True)
class DynamicPredecessor(PointMechanism[DynamicState]):
    """Finds points near to queries, below and above, while points are inserted and deleted, by counting in ranges.

    Every dyadic interval of the universe has a continual counter, and a range is the sum of at most 2 log2(universe) of
    them; noise is a function of labels, drawn when a range is looked at. The answer to q is an x at which the noisy
    count of [x, q] passes alpha, the error of this count: it is above its alpha for x and not for x + 1. It is found by
    bisection; where the count of [1, q] is not above, there is none.

    Privacy:
        Unit: one event, that is one update (an insertion or deletion of one point), added or removed; see
        `RangeCounter`. Public: all fields, the number of steps, and the queries. Replays:
        docs/proofs/range_counting.md, section 4.

    Accuracy:
        With probability 1 - beta, for updates and queries that do not depend on answers: an answer x to q has a point
        between x and q, and at most `errors` of them; where there is no answer there are at most as many on that side.
        `error(step)` is no less, whatever the answer.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1).
        universe: points are 1 .. universe, at most 2^60.
        horizon: steps of the whole run at most, or None: noise then grows with the steps done.
        queries: number of queries at a step that the accuracy is stated for, None for all points.
        beta: failure probability of the accuracy.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = DynamicPredecessor(epsilon=1.0, universe=1 << 20, horizon=10)
        >>> step = PredecessorStep(Updates(np.arange(200001, 500001)), queries=[100, 10**6])
        >>> state, near = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> bool(near.predecessors[0] == 0), bool(400000 < near.predecessors[1] < 500000)
        (True, True)

    Source: Henzinger, Sricharan, Steiner (2023), Lemmas 14, 26, 27; docs/proofs/range_counting.md, section 5.
    """

    epsilon: float
    delta: float = 0.0
    universe: int
    horizon: int | None = None
    queries: int | None = None
    beta: float = 0.05
    noise_label = "dynamic predecessor"
    state_type = DynamicState

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("delta", self.delta, zero=True)
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1)
        _ = self.noise  # refuses scales beyond what can be drawn

    @property
    def height(self) -> int:
        """Height of the tree of intervals."""
        return tree_height(self.universe)

    @cached_property
    def noise(self) -> EpochNoise:
        """The noise of an interval's counter."""
        moved = IMPULSES * (self.height + 1)
        if self.delta == 0:
            return subtraction_trees(moved / self.epsilon, self.horizon)

        def tree(steps: int) -> NodeNoise:
            norm = math.sqrt(moved * len(plain_digits(_BASE, steps)))
            sigma = gaussian_sigma(largest_shift(self.epsilon, self.delta), norm)
            return CompleteTreeNoise(steps, DiscreteGaussian(sigma), _BASE)

        return EpochNoise.of(tree) if self.horizon is None else EpochNoise((tree(self.horizon),), (self.horizon,))

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=EVENT,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(f"An event inserts or deletes one point of 1 .. {self.universe}, at one step.",),
            public=("all parameters", "the number of steps", "which queries are asked, and when"),
            proof="docs/proofs/range_counting.md, section 5",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=noise_curve(self.epsilon, self.delta),
        )

    def error(self, step: int) -> int:
        """Return the error of the class docstring at steps 1 .. `step`."""
        most = longest_cover(self.height)
        return 2 * self.noise.tail_bound(step, self._tail(step), most, so_far=True) + 1

    def alphas(self, step: int, low: Integers, high: Integers) -> Integers:
        """Return the errors of the counts of ranges that begin or end at a query."""
        sizes, place = np.unique(np.bincount(self._cover(low, high)[0]), return_inverse=True)
        tail = self._tail(step)
        return np.array([self.noise.tail_bound(step, tail, size) for size in sizes.tolist()], np.int64)[place]

    def _tail(self, step: int) -> float:
        """Return the failure probability of the count of one range at a step, on one side."""
        ranges = 2 * self.universe * (self.queries or self.universe)
        return self.beta * self._step_share(self._step_number(step)) / (2 * ranges)

    def step(self, state: DynamicState, given: PredecessorStep, noise: NoiseSource) -> tuple[DynamicState, Neighbours]:
        """Make the updates of one step, then answer its queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points or queries have another type or shape, or are outside of the universe.
        """
        asked = checked_points("queries", given.queries, self.universe)
        after = self._updated(state, given.updates)
        source = self._source(noise)
        before, low = self._nearest(after, asked, 1, -1, source)
        beyond, high = self._nearest(after, asked, self.universe, 1, source)
        return after, Neighbours.of(asked, before, beyond, np.maximum(low, high))

    def _updated(self, state: DynamicState, updates: Updates) -> DynamicState:
        """Return the state after one step with these updates."""
        step = self._step_number(state.step + 1)
        points, new, gone = updated(state.points, updates, self.universe)
        if self.delta == 0:
            return replace(state, step=step, points=points)
        digest = history(state.digest, new, gone)
        ends = np.unique([end for *_, end in self._nodes(step)])
        known = np.concatenate([state.digests, np.frombuffer(digest, np.uint8)[None, :]])
        digests = known[np.searchsorted(np.append(state.ends, step), ends)]
        return DynamicState(step=step, points=points, ends=ends, digests=digests, digest=digest)

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
        return np.where(found, reached, NO_POINT), errors

    def count(self, state: DynamicState, low: Integers, high: Integers, noise: NoiseSource) -> Integers:
        """Count the points of ranges after the last step, with noise that is a function of labels."""
        owners, intervals = self._cover(low, high)
        distinct, place = np.unique(intervals, return_inverse=True)
        drawn, labels = np.zeros(len(distinct), np.int64), distinct.astype(np.uint64)
        for number, tree, height, position, sign, end in self._nodes(state.step):
            bound = state.digests[np.searchsorted(state.ends, end)].tobytes() if self.delta > 0 else b""
            drawn += sign * tree.law.draw(noise.derive("node", number, height, position, bound), labels)
        sums = below(state.points, high + 1) - below(state.points, low)
        np.add.at(sums, owners, drawn[place])
        return sums

    def _nodes(self, step: int) -> Iterator[tuple[int, NodeNoise, int, int, int, int]]:
        """Return epoch, tree, height, position, sign and last step of the nodes over time whose noise a count has."""
        for number, tree, before, done in self.noise.begun(step):
            assert isinstance(tree, NodeNoise)
            for height, position, sign in tree.nodes(done):
                yield number, tree, height, position, sign, before + (position + 1) * _BASE**height

    def _cover(self, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """Return the dyadic intervals of ranges: the number of the range, and that of the interval, of each."""
        last = np.where(high == self.universe, np.int64(1) << self.height, high)  # nothing lies beyond
        owners, levels, places = cover(low - 1, last, 2)
        return owners, (np.int64(1) << (self.height - levels)) + places
