"""RangeCounter: how many points lie in public ranges, after every step, while points are inserted and deleted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.mechanism import Mechanism, State
from privstream.mechanisms.noise.discrete import series_share
from privstream.mechanisms.noise.running import EpochNoise, sums_noise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import noise_curve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from scipy import special
from typing_extensions import override

LARGEST_UNIVERSE = 1 << 60
LARGEST_HORIZON = 1 << 40
IMPULSES = 2  # an update moves the count of a set, and perhaps back, if it decides whether a later one counts
DIGEST_BYTES = 16
_LARGEST_BASE = 48
_MOST_NODES = 1 << 22  # of all ranges together, unless the tree is binary


def cover(starts: Integers, ends: Integers, base: int) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the ranges [start, end) as sums of few intervals [i b^l, (i + 1) b^l), b the base.

    Intervals reach to the multiples of b^l that are nearest, and what they have beyond the range is subtracted. To the
    base 2 nothing ever is.

    Returns:
        The number of the range, l, i, and the sign, for each interval of each range, all int64.
    """
    left, right, level = starts.copy(), ends.copy(), 0
    found = [(np.zeros(0, np.int64),) * 4]
    while np.any(left < right):
        inner, outer = (left + base // 2) // base * base, (right + (base - 1) // 2) // base * base
        apart = np.abs(left - inner) + np.abs(right - outer) + (base > 2)
        single = (inner >= outer) | (right - left <= apart)
        inner, outer = np.where(single, right, inner), np.where(single, right, outer)
        for low, high, sign in ((left, inner, 1), (inner, left, -1), (outer, right, 1), (right, outer, -1)):
            counts = np.maximum(high - low, 0)
            owners = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append((owners, np.full(len(owners), level), low[owners] + within, np.full(len(owners), sign)))
        left, right, level = np.where(single, 0, inner // base), np.where(single, 0, outer // base), level + 1
    owners, levels, places, signs = (np.concatenate(each) for each in zip(*found, strict=True))
    return owners, levels, places, signs


@dataclass(frozen=True, eq=False)
class Updates:
    """Insertions and deletions of one step, in order."""

    points: ArrayLike  # integers, shape (n,), in 1 .. universe
    inserted: ArrayLike | None = None  # bool, shape (n,): whether each is an insertion, not a deletion; None: all are


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


def of_each(sizes: Integers, bound: Callable[[int], int]) -> Integers:
    """Return a bound for each of some sizes, computed once for equal ones."""
    distinct, place = np.unique(sizes, return_inverse=True)
    return np.array([bound(size) for size in distinct.tolist()], np.int64)[place]


def history(digest: bytes, new: Integers, gone: Integers) -> bytes:
    """Return a digest of all updates, given that of those before a step."""
    changes = b"".join([digest, len(new).to_bytes(8), new.astype("<i8").tobytes(), gone.astype("<i8").tobytes()])
    return hashlib.blake2b(changes, digest_size=DIGEST_BYTES, person=b"range history").digest()


@dataclass(frozen=True, kw_only=True)
class PointMechanism(Mechanism[State]):
    """A mechanism whose input is insertions, and perhaps deletions, of points 1 .. `universe`."""

    epsilon: float  # finite and > 0
    delta: float = 0.0  # in [0, 1)
    universe: int  # points are 1 .. universe, at most 2^60
    horizon: int | None = None  # steps of the whole run at most; without, noise grows with the steps done
    beta: float = 0.05  # failure probability of the accuracy

    update: ClassVar[str] = "inserts or deletes one point"
    public: ClassVar[tuple[str, ...]] = ("all parameters", "the number of steps")
    proof: ClassVar[str]

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.probability("beta", self.beta)
        checks.integer("universe", self.universe, minimum=1, maximum=LARGEST_UNIVERSE)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1, maximum=LARGEST_HORIZON)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=EVENT,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(f"An event {self.update} of 1 .. {self.universe}, at one step.",),
            public=self.public,
            proof=f"docs/proofs/{self.proof}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=noise_curve(self.epsilon, self.delta),
        )

    @property
    def height(self) -> int:
        """H: the levels of the dyadic intervals of the universe are 0 .. H."""
        return (self.universe - 1).bit_length()

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        return checks.step(step, self.horizon or LARGEST_HORIZON)

    def _step_share(self, step: int) -> float:
        """Return the part of a failure probability that falls to a step."""
        return 1 / self.horizon if self.horizon else series_share(step)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Sets of neighbouring points with a counter each: every range is a sum of some of them, less others.

    For each set of each range there is the number of the range, that of the set, and 1 or -1.
    """

    starts: Integers  # of the sets [start, end)
    ends: Integers
    owners: Integers
    places: Integers
    signs: Integers
    overlap: int  # sets that contain one point, at most

    @classmethod
    def of(cls, starts: Integers, ends: Integers, *, pure: bool) -> Nodes:
        """Return those of the tree over the cells between ends with which the noise of answers is least on average."""
        edges = np.unique(np.concatenate([starts, ends]))
        first, last = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        found: list[tuple[int, Nodes]] = []
        for base in {*range(2, _LARGEST_BASE), len(edges)}:
            height = math.ceil(math.log(len(edges), base))
            if base > 2 and np.minimum(last - first, 2 * base * height).sum() > _MOST_NODES:
                continue
            owners, levels, numbers, signs = cover(first, last, base)
            low = numbers * base**levels
            high = np.minimum(low + base**levels, len(edges) - 1)  # no range has what lies beyond
            inside = low < high
            owners, signs = owners[inside], signs[inside]
            codes, places = np.unique(((low << 32) + high)[inside], return_inverse=True)
            low, high = codes >> 32, codes & ((1 << 32) - 1)
            change = np.bincount(low, minlength=len(edges)) - np.bincount(high, minlength=len(edges))
            overlap = int(np.cumsum(change).max())
            made = cls(edges[low], edges[high], owners, places.reshape(-1), signs, overlap)
            found.append((overlap ** (2 if pure else 1) * len(owners), made))
        return min(found, key=lambda option: option[0])[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class RangeState:
    """What outlives a step. Private."""

    step: int = 0
    points: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # sorted
    memory: Floats  # what the noise of each set remembers
    digest: bytes = bytes(DIGEST_BYTES)  # of all updates


@dataclass(frozen=True, kw_only=True)
class RangeCounter(PointMechanism[RangeState]):
    """Counts points in public ranges after every step, with one budget for the whole run and all ranges.

    Ranges are sums of nodes of a tree over what lies between their ends; each node has a continual counter.

    Privacy:
        Unit: one event, that is one update (an insertion or deletion of one point), added or removed. Points are a set:
        inserting a member or deleting a non-member does nothing. Public: all fields, the number of steps. Updates may
        depend on all earlier answers.

    Accuracy:
        `errors(step)`: with probability 1 - beta no answer at any step is off by more, with updates that do not depend
        on answers. `error(step)` is the largest of these up to a step. Time: O(points + nodes) per step.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = RangeCounter(epsilon=1.0, universe=1 << 32, horizon=1, ranges=((1, 10_000), (1, 1 << 32)))
        >>> updates = Updates(np.arange(1, 50_001))
        >>> state, counts = mechanism.step(mechanism.initial_state(), updates, SeededNoise(1))
        >>> [round(count, -3) for count in counts.tolist()]
        [10000, 50000]

    Source: Henzinger, Sricharan, Steiner (2023), Lemmas 26 and 27; docs/proofs/range_counting.md.
    """

    ranges: tuple[tuple[int, int], ...]  # (low, high) with 1 <= low <= high <= universe; public
    noise_label = "range counter"
    proof = "range_counting.md, Theorem 1"
    state_type = RangeState

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = self.ranges if isinstance(self.ranges, tuple) else ()
        if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise TypeError("ranges must be a tuple of pairs (low, high), of at least one")
        for first, last in pairs:
            low = checks.integer("ranges: low", first, minimum=1, maximum=self.universe)
            checks.integer("ranges: high", last, minimum=low, maximum=self.universe)
        _ = self.noise  # refuses scales beyond what can be drawn

    @cached_property
    def nodes(self) -> Nodes:
        """What ranges are sums of."""
        low, high = np.array(self.ranges, np.int64).T
        return Nodes.of(low, high + 1, pure=self.delta == 0)

    @cached_property
    def noise(self) -> EpochNoise:
        """The noise of a node's counter."""
        touched, horizon = self.nodes.overlap, self.horizon
        return sums_noise(self.epsilon, self.delta, touched, IMPULSES, horizon, horizon, opposite=True)

    @override
    def initial_state(self) -> RangeState:
        return RangeState(memory=np.zeros((self.noise.rows, len(self.nodes.starts))))

    def step(self, state: RangeState, updates: Updates, noise: NoiseSource) -> tuple[RangeState, Integers]:
        """Make the updates of one step; return how many points there are in each range then, int64 (ranges,).

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points have another type or shape, or are outside of the universe.
        """
        step, nodes = self._step_number(state.step + 1), self.nodes
        points, new, gone = updated(state.points, updates, self.universe)
        digest, memory = history(state.digest, new, gone), state.memory.copy()
        source = self._source(noise).derive("history", digest)
        sums = below(points, nodes.ends) - below(points, nodes.starts)
        sums += self.noise.advance(memory, step, np.arange(len(sums), dtype=np.uint64), sums, source)
        counts = np.zeros(len(self.ranges), np.int64)
        np.add.at(counts, nodes.owners, nodes.signs * sums[nodes.places])
        return RangeState(step=step, points=points, memory=memory, digest=digest), counts

    @cached_property
    def _sizes(self) -> Integers:
        """Of how many nodes each range is the sum."""
        return np.bincount(self.nodes.owners)

    def errors(self, step: int) -> Integers:
        """Return what the answer about each range at `step` is off by at most: see the class."""
        return of_each(self._sizes, lambda size: self.noise.tail_bound(step, self._tail(step), size))

    def error(self, step: int) -> int:
        """Return the largest of these errors up to `step`."""
        return self.noise.tail_bound(step, self._tail(step), int(self._sizes.max()), so_far=True)

    def spreads(self, step: int, beta: float) -> Integers:
        """Return by how much the answer about each range at `step` is off at most with probability 1 - beta, alone."""
        if self.delta > 0:  # rounded normal noise
            reach = -float(special.ndtri(checks.probability("beta", beta) / 2)) * math.sqrt(self.noise.variance(step))
            return of_each(self._sizes, lambda size: math.ceil(reach * math.sqrt(size) + 0.5))
        return of_each(self._sizes, lambda size: self.noise.tail_bound(step, beta / 2, size))

    def _tail(self, step: int) -> float:
        """Return the failure probability of one answer at a step, on one side."""
        return self.beta * self._step_share(self._step_number(step)) / (2 * len(self.ranges))
