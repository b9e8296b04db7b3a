"""RangeCounter: how many points lie in [low, high], while points are inserted and deleted; and dyadic intervals."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.mechanism import Mechanism, State
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.running import (
    CompleteTreeNoise,
    EpochNoise,
    NodeNoise,
    TreeNoise,
    tree_nodes,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import sum_quantile, sum_spread
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift, noise_curve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from typing_extensions import override

LARGEST_UNIVERSE = 1 << 60
LARGEST_HORIZON = 1 << 40
IMPULSES = 2  # an update moves the count of an interval, and perhaps back, if it decides whether a later one counts
DIGEST_BYTES = 16
_MOST_NODES = 1 << 22  # of all ranges that are known before, unless the tree is binary
_DEEPER = 0.02  # a tree with one level more must be better by so much


def tree_height(universe: int) -> int:
    """Return H: the levels of the dyadic intervals are 0 .. H."""
    return (universe - 1).bit_length()


def longest_cover(height: int) -> int:
    """Return how many dyadic intervals `cover` needs at most."""
    return max(1, 2 * height - 2)


def bounds(numbers: Integers, height: int) -> tuple[Integers, Integers]:
    """Return the first point of each dyadic interval, and the first one after it; 1 is the root, n has 2 n, 2 n + 1."""
    levels = height - level_below_root(numbers)
    starts = (numbers << levels) - (np.int64(1) << height)
    return starts, starts + (np.int64(1) << levels)


def level_below_root(numbers: Integers) -> Integers:
    """Return floor(log2) of each number, exactly."""
    depth, rest = np.zeros(len(numbers), np.int64), numbers.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        high = rest >> shift > 0
        depth[high] += shift
        rest[high] >>= shift
    return depth


def cover(starts: Integers, ends: Integers, base: int) -> tuple[Integers, Integers, Integers]:
    """Partition the ranges [start, end) into the fewest intervals [i b^l, (i + 1) b^l), b the base.

    Returns:
        The number of the range, l and i, for each interval of each cover, all int64.
    """
    left, right, level = starts.copy(), ends.copy(), 0
    found = [(np.zeros(0, np.int64),) * 3]
    while np.any(left < right):
        inner = np.minimum(-(-left // base) * base, right)
        outer = np.maximum(right // base * base, inner)
        for low, high in ((left, inner), (outer, right)):
            counts = np.maximum(high - low, 0)
            owners = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append((owners, np.full(len(owners), level), low[owners] + within))
        left, right, level = -(-inner // base), outer // base, level + 1
    owners, levels, places = (np.concatenate(each) for each in zip(*found, strict=True))
    return owners, levels, places


@dataclass(frozen=True, eq=False)
class Cells:
    """A tree over what lies between the ends of ranges that are known before; nodes that some range uses have counters.

    Attributes:
        edges: the ends of the ranges, int64.
        base: children of a node.
        overlap: how many nodes with counters contain one point at most.
        most: of how many nodes a range is the sum at most.
    """

    edges: Integers
    base: int
    overlap: int
    most: int

    @classmethod
    def of(cls, starts: Integers, ends: Integers, *, pure: bool) -> Cells:
        """Return the tree with which the noise of answers is least on average."""
        edges = np.unique(np.concatenate([starts, ends]))
        first, last = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        found: list[tuple[float, Cells]] = []
        for height in range(1, len(edges).bit_length() + 1):
            base = 1 << -(-len(edges).bit_length() // height)
            if base > 2 and np.minimum(last - first, 2 * base * height).sum() > _MOST_NODES:
                continue
            owners, levels, places = cover(first, last, base)
            nodes = np.unique((levels << 32) + places)
            size = base ** (nodes >> 32)
            low = (nodes & ((1 << 32) - 1)) * size
            length = int((low + size).max()) + 1
            change = np.bincount(low, minlength=length) - np.bincount(low + size, minlength=length)
            made = cls(edges, base, int(np.cumsum(change).max()), int(np.bincount(owners).max()))
            noise = made.overlap ** (2 if pure else 1) * len(owners)
            found.append((noise * (1 + _DEEPER * height), made))
        return min(found, key=lambda option: option[0])[1]

    def cover(self, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return the number of the range, and that of the node, for each node of each of these ranges."""
        first, last = np.searchsorted(self.edges, starts), np.searchsorted(self.edges, ends)
        owners, levels, places = cover(first, last, self.base)
        return owners, (levels << 32) + places


@dataclass(frozen=True, eq=False)
class Updates:
    """Insertions and deletions of one step, in order.

    Attributes:
        points: integers, shape (n,), in 1 .. universe.
        inserted: bool, shape (n,): whether the update is an insertion, else it is a deletion; None if all are.
    """

    points: ArrayLike
    inserted: ArrayLike | None = None


def checked_points(name: str, values: ArrayLike, universe: int) -> Integers:
    """Return points of 1 .. `universe` as a fresh int64 (n,). Messages quote no value."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), got {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must contain integers, got {array.dtype}")
    if array.size and (array.min() < 1 or array.max() > universe):
        raise ValueError(f"{name} must be in 1 .. {universe}")
    return array.astype(np.int64)


def updated(held: Integers, updates: Updates, universe: int) -> tuple[Integers, Integers, Integers]:
    """Return the points after a step, and which of them are new and which have gone; all sorted.

    Points are a set, so what matters is the last update of each point.
    """
    points = checked_points("points", updates.points, universe)
    inserted = np.ones(len(points), np.bool_) if updates.inserted is None else np.asarray(updates.inserted)
    if inserted.size and inserted.dtype != np.bool_:
        raise TypeError(f"inserted must contain truth values, got {inserted.dtype}")
    if inserted.shape != points.shape:
        raise ValueError(f"inserted must have shape {points.shape} as points, got {inserted.shape}")
    order = np.argsort(points, kind="stable")
    last = order[np.append(points[order[1:]] != points[order[:-1]], np.ones(min(1, len(order)), np.bool_))]
    distinct, there = points[last], below(held, points[last] + 1) > below(held, points[last])
    stays = inserted[last].astype(np.bool_)
    new, gone = distinct[stays & ~there], distinct[~stays & there]
    left = np.delete(held, np.searchsorted(held, gone))
    return np.insert(left, np.searchsorted(left, new), new), new, gone


def below(held: Integers, points: Integers) -> Integers:
    """Return how many of the sorted points are less than each of `points`."""
    return np.searchsorted(held, points).astype(np.int64)


class PointMechanism(Mechanism[State]):
    """A mechanism whose input is insertions, and perhaps deletions, of points 1 .. `universe`."""

    universe: int
    horizon: int | None

    def _check_points(self) -> None:
        """Check the parameters that all these mechanisms have."""
        checks.integer("universe", self.universe, minimum=1, maximum=LARGEST_UNIVERSE)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1, maximum=LARGEST_HORIZON)

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        return checks.step(step, self.horizon or LARGEST_HORIZON)

    @override
    def _described(self) -> Any:
        # Whole numbers stay as they are: some are too large for floats.
        values = asdict(cast(Any, self))
        return [
            type(self).__name__,
            values | {name: float(values[name]) for name in ("epsilon", "delta") if name in values},
        ]


def _is_range(value: object) -> bool:
    """Tell whether a value is two integers."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | np.integer) for end in value)


@dataclass(frozen=True, eq=False)
class RangeStep:
    """Input of a step: updates, and the ranges to be counted after them.

    Attributes:
        updates: insertions and deletions, in order; private.
        low, high: integers, shape (n,), 1 <= low <= high <= universe; public.
    """

    updates: Updates
    low: ArrayLike = ()
    high: ArrayLike = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class RangeState:
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
class RangeCounter(PointMechanism[RangeState]):
    """Counts points in ranges after every step, with one budget for the whole run and all ranges.

    Every dyadic interval of the universe has a continual counter, and a range is the sum of at most 2 log2(universe) of
    them; where all ranges are known before (`asked`), counters are those of a tree over what lies between their ends.
    True counts are taken from the sorted points, and noise is a function of labels, drawn when a range is asked for.

    Privacy:
        Unit: one event, that is one update (an insertion or deletion of one point), added or removed. Points are a set:
        inserting a member or deleting a non-member does nothing. An update is in L intervals, in each of them in h
        nodes over time, and moves each node by 1; the next update of the same point may then count in one world and not
        in the other, which doubles that. delta = 0: discrete Laplace noise of scale 2 L h / epsilon. delta > 0:
        discrete Gaussian noise for the root of 2 L h. Public: all fields, the number of steps, and which ranges are
        asked when. Updates may depend on all earlier answers. Replays: docs/proofs/range_counting.md, section 4.

    Accuracy:
        `error_at` and `errors_at` bound how far answers are off. Time: O(points) per step, and O(log(universe) h) draws
        per range; memory: the points.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1).
        universe: points are 1 .. universe, at most 2^60.
        horizon: steps of the whole run at most, or None: noise then grows with the steps done.
        asked: ranges (low, high), public and fixed before the run, beside which none may be asked; () for any ranges.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = RangeCounter(epsilon=1.0, universe=1 << 32, horizon=1)
        >>> step = RangeStep(Updates(np.arange(1, 50001)), low=[1, 1], high=[10000, 1 << 32])
        >>> state, counts = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> [round(count, -3) for count in counts.tolist()]
        [10000, 50000]

    Source: Henzinger, Sricharan, Steiner (2023), Lemmas 26 and 27; docs/proofs/range_counting.md.
    """

    epsilon: float
    delta: float = 0.0
    universe: int
    horizon: int | None = None
    asked: tuple[tuple[int, int], ...] = ()
    noise_label = "range counter"
    state_type = RangeState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        self._check_points()
        if not isinstance(self.asked, tuple) or not all(_is_range(each) for each in self.asked):
            raise TypeError(f"asked must be a tuple of ranges, each of two integers, got {self.asked!r}")
        _ = self.noise  # refuses scales beyond what can be drawn

    @property
    def levels(self) -> int:
        """Intervals with counters that contain a point at most, L."""
        return tree_height(self.universe) + 1 if self._cells is None else self._cells.overlap

    @cached_property
    def _known(self) -> Integers:
        """The ranges that may be asked, as [start, end), int64 (n, 2), distinct and sorted; none for any ranges."""
        low, high = np.array(self.asked, np.int64).reshape(-1, 2).T
        return np.unique(np.stack(self._checked_ends(low, high), axis=1), axis=0)

    @cached_property
    def _cells(self) -> Cells | None:
        """What known ranges are sums of; None for any ranges."""
        return Cells.of(*self._known.T, pure=self.delta == 0) if self.asked else None

    @cached_property
    def noise(self) -> EpochNoise:
        """The noise of an interval."""
        moved = IMPULSES * self.levels

        def tree(steps: int) -> NodeNoise:
            if self.delta == 0:
                scale = moved * tree_nodes(steps) / self.epsilon
                return TreeNoise(steps, DiscreteLaplace(math.nextafter(scale, math.inf)))
            norm = math.sqrt(moved * steps.bit_length())
            sigma = gaussian_sigma(largest_shift(self.epsilon, self.delta), norm)
            return CompleteTreeNoise(steps, DiscreteGaussian(sigma), 2)

        return EpochNoise.of(tree) if self.horizon is None else EpochNoise((tree(self.horizon),), (self.horizon,))

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=EVENT,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(f"An event inserts or deletes one point of 1 .. {self.universe}, at one step.",),
            public=("all parameters", "the number of steps", "which ranges are asked, and when"),
            proof=f"docs/proofs/range_counting.md, Theorem {2 if self.asked else 1}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=noise_curve(self.epsilon, self.delta),
        )

    def error_at(self, step: int, beta: float, *, answers: int, every_step: bool) -> int:
        """Return z such that with probability 1 - beta no answer is off by more at its step, this z at `step`.

        Args:
            step: 1 or more.
            beta: in (0, 1).
            answers: how many, of ranges that do not depend on earlier answers; in the whole run, or
            every_step: whether so many at each step.
        """
        log_beta = self._log_share(step, beta, answers, every_step)
        most = longest_cover(self.levels - 1) if self._cells is None else self._cells.most
        return max(sum_quantile(_times(laws, most), log_beta) for laws in self.noise.laws(step, largest=True))

    def errors_at(
        self, step: int, low: ArrayLike, high: ArrayLike, beta: float, *, answers: int, every_step: bool
    ) -> Integers:
        """Return for each of these ranges what its answer at `step` is off by at most, int64 (n,); see `error_at`."""
        log_beta = self._log_share(step, beta, answers, every_step)
        return self._of_each(step, low, high, lambda laws: sum_quantile(laws, log_beta))

    def spreads(self, step: int, low: ArrayLike, high: ArrayLike, beta: float) -> Integers:
        """Return for each of these ranges by how much its answer at `step` is off at most, alone, int64 (n,).

        With probability 1 - beta: of one range that does not depend on earlier answers, and not of all together.
        """
        return self._of_each(step, low, high, lambda laws: sum_spread(laws, beta))

    def _of_each(self, step: int, low: ArrayLike, high: ArrayLike, bound: Callable[[_Laws], int]) -> Integers:
        """Return for each range a bound, from the number of its noises of each law."""
        numbers, _ = self._cover(*self._checked_ranges(low, high))
        sizes, place = np.unique(np.bincount(numbers), return_inverse=True)
        laws = self.noise.laws(step)[-1]
        return np.array([bound(_times(laws, size)) for size in sizes.tolist()], np.int64)[place]

    def _log_share(self, step: int, beta: float, answers: int, every_step: bool) -> float:
        """Return ln of the failure probability of one answer at a step."""
        doublings = (self._step_number(step) - 1).bit_length()
        rest = math.log(checks.integer("answers", answers, minimum=1))
        if every_step and self.horizon is not None:
            rest += math.log(self.horizon)
        elif every_step:
            rest += doublings * math.log(2) + math.log((doublings + 1) * (doublings + 2))
        return math.log(checks.probability("beta", beta)) - rest

    def step(self, state: RangeState, given: RangeStep, noise: NoiseSource) -> tuple[RangeState, Integers]:
        """Make the updates of one step, then count the points in its ranges, int64 (n,).

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points or ranges have another type or shape, or are outside of the universe.
        """
        self._checked_ranges(given.low, given.high)
        after = self.update(state, given.updates)
        return after, self.count(after, given.low, given.high, noise)

    def update(self, state: RangeState, updates: Updates) -> RangeState:
        """Return the state after one step with these updates."""
        step = self._step_number(state.step + 1)
        points, new, gone = updated(state.points, updates, self.universe)
        if self.delta == 0:
            return replace(state, step=step, points=points)
        parts = (state.digest, len(new).to_bytes(8), new.astype("<i8").tobytes(), gone.astype("<i8").tobytes())
        changes = b"".join(parts)
        digest = hashlib.blake2b(changes, digest_size=DIGEST_BYTES, person=b"range history").digest()
        ends = np.unique([end for *_, end in self._nodes(step)])
        known = np.concatenate([state.digests, np.frombuffer(digest, np.uint8)[None, :]])
        digests = known[np.searchsorted(np.append(state.ends, step), ends)]
        return RangeState(step=step, points=points, ends=ends, digests=digests, digest=digest)

    def count(self, state: RangeState, low: ArrayLike, high: ArrayLike, noise: NoiseSource) -> Integers:
        """Count the points in ranges after the last step; asking again gives the same answers."""
        starts, ends = self._checked_ranges(low, high)
        if state.step == 0 or not len(starts):
            return np.zeros(len(starts), np.int64)
        numbers, intervals = self._cover(starts, ends)
        distinct, place = np.unique(intervals, return_inverse=True)
        sums = below(state.points, ends) - below(state.points, starts)
        np.add.at(sums, numbers, self._drawn(state, distinct, self._source(noise))[place])
        return sums

    def _drawn(self, state: RangeState, intervals: Integers, source: NoiseSource) -> Integers:
        """Return the noise of intervals."""
        total, labels = np.zeros(len(intervals), np.int64), intervals.astype(np.uint64)
        for number, law, height, position, sign, end in self._nodes(state.step):
            bound = state.digests[np.searchsorted(state.ends, end)].tobytes() if self.delta > 0 else b""
            total += sign * law.draw(source.derive("node", number, height, position, bound), labels)
        return total

    def _nodes(self, step: int) -> list[tuple[int, SymmetricNoise, int, int, int, int]]:
        """Return epoch, law, height, position, sign and last step of the nodes over time that a count has noise of."""
        return [
            (number, tree.law, height, position, sign, before + ((position + 1) << height))
            for number, epoch, before, done in self.noise.begun(step)
            for tree in [cast(NodeNoise, epoch)]
            for height, position, sign in tree.nodes(done)
        ]

    def _cover(self, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return the intervals of [start, end): the number of the range, and that of the interval, of each."""
        if self._cells is not None:
            return self._cells.cover(starts, ends)
        height = self.levels - 1
        last = np.where(ends - 1 == self.universe, np.int64(1) << height, ends - 1)  # nothing lies beyond
        owners, levels, places = cover(starts - 1, last, 2)
        return owners, (np.int64(1) << (height - levels)) + places

    @override
    def _described(self) -> Any:
        kind, values = super()._described()
        return [kind, values | {"asked": hashlib.blake2b(self._known.astype("<i8").tobytes()).hexdigest()}]

    def _checked_ends(self, low: ArrayLike, high: ArrayLike) -> tuple[Integers, Integers]:
        """Return the first point of each range, and the first one after it."""
        starts, ends = checked_points("low", low, self.universe), checked_points("high", high, self.universe)
        if starts.shape != ends.shape:
            raise ValueError(f"high must have shape {starts.shape} as low, got {ends.shape}")
        if np.any(starts > ends):
            raise ValueError("high must be >= low")
        return starts, ends + 1

    def _checked_ranges(self, low: ArrayLike, high: ArrayLike) -> tuple[Integers, Integers]:
        """Return the same of ranges that may be asked."""
        starts, ends = self._checked_ends(low, high)
        if self.asked:
            both = np.concatenate([self._known, np.stack([starts, ends], axis=1)])
            if len(np.unique(both, axis=0)) > len(self._known):
                raise ValueError("low and high must be of ranges that are asked: others have no counters")
        return starts, ends


_Laws = list[tuple[SymmetricNoise, int]]


def _times(laws: _Laws, number: int) -> _Laws:
    """Return so many times as many noises, rounded up to six leading binary digits: few quantiles are computed."""
    found = []
    for law, each in laws:
        rest = max(0, (each * number).bit_length() - 6)
        found.append((law, -(-each * number >> rest) << rest))
    return found
