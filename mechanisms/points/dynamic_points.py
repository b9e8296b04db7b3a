"""Points that come and go: updates, their state, dyadic ranges, and what mechanisms on them share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.mechanism import Mechanism, State
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.mechanisms.sorted_runs import Run, SortedRuns
from typing_extensions import override


def tree_height(universe: int) -> int:
    """Return H: the levels of the tree are 0 .. H."""
    return (universe - 1).bit_length()


def longest_cover(height: int) -> int:
    """Return how many intervals `cover` needs at most."""
    return max(1, 2 * height - 2)


def bounds(numbers: Integers, height: int) -> tuple[Integers, Integers]:
    """Return the first point of each interval, and the first one after it."""
    levels = height - level_below_root(numbers)
    starts = (numbers << levels) - (np.int64(1) << height)
    return starts, starts + (np.int64(1) << levels)


def level_below_root(numbers: Integers) -> Integers:
    """Return floor(log2) of each number, exactly."""
    depth = np.zeros(len(numbers), np.int64)
    rest = numbers.copy()
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
    found: list[tuple[Integers, Integers, Integers]] = []
    while np.any(left < right):
        inner = np.minimum(-(-left // base) * base, right)
        outer = np.maximum(right // base * base, inner)
        for low, high in ((left, inner), (outer, right)):
            counts = np.maximum(high - low, 0)
            owners = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append((owners, np.full(len(owners), level), low[owners] + within))
        left, right, level = -(-inner // base), outer // base, level + 1
    empty = np.zeros(0, np.int64)
    owners, levels, places = (np.concatenate(each) for each in zip((empty, empty, empty), *found, strict=True))
    return owners, levels, places


MOST_NODES = 1 << 22  # of all ranges that are known before, unless the tree is binary
_DEEPER = 0.02  # a tree with one level more must be better by so much


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
            if base > 2 and np.minimum(last - first, 2 * base * height).sum() > MOST_NODES:
                continue
            owners, levels, places = cover(first, last, base)
            nodes = np.unique((levels << 32) + places)
            size = base ** (nodes >> 32)
            low = (nodes & ((1 << 32) - 1)) * size
            high = low + size
            change = np.zeros(int(high.max()) + 1, np.int64)
            np.add.at(change, low, 1)
            np.add.at(change, high, -1)
            made = cls(edges, base, int(np.cumsum(change).max()), int(np.bincount(owners).max()))
            noise = made.overlap ** (2 if pure else 1) * len(owners)
            found.append((noise * (1 + _DEEPER * height), made))
        return min(found, key=lambda option: option[0])[1]

    def cover(self, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return the number of the range, and that of the node, for each node of each of these ranges."""
        first, last = np.searchsorted(self.edges, starts), np.searchsorted(self.edges, ends)
        owners, levels, places = cover(first, last, self.base)
        return owners, (levels << 32) + places


LARGEST_UNIVERSE = 1 << 60


@dataclass(frozen=True, eq=False)
class Updates:
    """Insertions and deletions of one step, in order.

    Attributes:
        points: integers, shape (n,), in 1 .. universe.
        inserted: bool, shape (n,): whether the update is an insertion, else it is a deletion; None if all are.
    """

    points: ArrayLike
    inserted: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Weights(Run):
    """Distinct points in increasing order, int64, and their weights, int64, none of them 0."""

    @cached_property
    def sums(self) -> Integers:
        """Weights of all points before each one, and of all."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.values)])

    @override
    def merged(self, newer: Weights) -> Weights:
        # Points whose weights cancel are left out.
        points, weights, first = self.interleaved(newer)
        again = np.flatnonzero(~first)
        weights[again - 1] += weights[again]
        weights[again] = 0
        kept = weights != 0
        return Weights(points[kept], weights[kept])


class PointCounts(SortedRuns[Weights]):
    """Points with their weights. Counting a range takes O(log^2)."""

    def below(self, points: Integers) -> Integers:
        """Return the weight of all points less than each of `points`."""
        total = np.zeros(len(points), np.int64)
        for run in self.runs:
            total += run.sums[np.searchsorted(run.keys, points)]
        return total

    def at(self, points: Integers) -> Integers:
        """Return the weight of each of `points`."""
        total = np.zeros(len(points), np.int64)
        for there, weights in self.found(points):
            total += np.where(there, weights, 0)
        return total


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


def checked_updates(updates: Updates, universe: int) -> tuple[Integers, NDArray[np.bool_]]:
    """Return points and whether each is inserted, of the same length."""
    points = checked_points("points", updates.points, universe)
    if updates.inserted is None:
        return points, np.ones(len(points), np.bool_)
    inserted = np.asarray(updates.inserted)
    if inserted.size and inserted.dtype != np.bool_:
        raise TypeError(f"inserted must contain truth values, got {inserted.dtype}")
    if inserted.shape != points.shape:
        raise ValueError(f"inserted must have shape {points.shape} as points, got {inserted.shape}")
    return points, inserted.astype(np.bool_)


def changes(points: Integers, inserted: NDArray[np.bool_], held: PointCounts) -> Weights:
    """Return by how much (not 0) the updates of a step change the weights of points, of which a set is kept.

    What matters of a step is the last update of each point.
    """
    order = np.argsort(points, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = points[order[1:]] != points[order[:-1]]
    distinct = points[order[last]]
    weights = inserted[order[last]].astype(np.int64) - held.at(distinct)
    kept = weights != 0
    return Weights(distinct[kept], weights[kept])


class PointMechanism(Mechanism[State]):
    """A mechanism whose input is insertions, and perhaps deletions, of points 1 .. `universe`."""

    universe: int
    horizon: int | None
    updates_per_unit: int

    def _check_points(self) -> None:
        """Check the parameters that all these mechanisms have."""
        checks.integer("universe", self.universe, minimum=1, maximum=LARGEST_UNIVERSE)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1, maximum=LARGEST_HORIZON)
        checks.integer("updates_per_unit", self.updates_per_unit, minimum=1, maximum=1 << 20)

    @property
    def _unit(self) -> PrivacyUnit:
        return EVENT if self.updates_per_unit == 1 else PERSON

    def _limits(self, does: str) -> tuple[str, ...]:
        """Return sentences that say what an update is, and how many of them a unit makes."""
        sentences = [f"An event {does} one point of 1 .. {self.universe}, at one step."]
        if self.updates_per_unit > 1:
            sentences.append(f"A person makes at most {self.updates_per_unit:,} such updates in the whole run.")
        return tuple(sentences)

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        return checks.step(step, self.horizon or LARGEST_HORIZON)

    @override
    def _described(self) -> Any:
        # Whole numbers stay as they are: some are too large for floats.
        values = asdict(self)
        return [
            type(self).__name__,
            values | {name: float(values[name]) for name in ("epsilon", "delta") if name in values},
        ]
