"""Points of an ordered universe with a weight each, under insertions and deletions: what range counts are taken of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.sorted_runs import Run, SortedRuns

Integers = NDArray[np.int64]

LARGEST_UNIVERSE = 1 << 60
DUPLICATES = ("ignored", "counted")


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

    def merged(self, newer: Weights) -> Weights:
        """Add weights, without points whose weights cancel."""
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

    def to_fields(self) -> dict[str, NDArray[Any]]:
        """Return the runs as arrays for a snapshot."""
        empty = [np.empty(0, np.int64)]
        return {
            "points": np.concatenate(empty + [run.keys for run in self.runs]),
            "weights": np.concatenate(empty + [run.values for run in self.runs]),
            "lengths": np.array([len(run) for run in self.runs], np.int64),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> PointCounts:
        """Return what `to_fields` wrote."""
        ends = np.cumsum(fields["lengths"])[:-1]
        if not len(fields["lengths"]):
            return cls()
        parts = zip(np.split(fields["points"], ends), np.split(fields["weights"], ends), strict=True)
        return cls(tuple(Weights(points, weights) for points, weights in parts))


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


def changes(points: Integers, inserted: NDArray[np.bool_], held: PointCounts, duplicates: str) -> Weights:
    """Return by how much (not 0) the updates of a step change the weights of points.

    With `duplicates` "ignored", a set is kept: what matters of a step is the last update of each point. With "counted"
    each insertion weighs 1 and each deletion -1.
    """
    order = np.argsort(points, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = points[order[1:]] != points[order[:-1]]
    ends = np.flatnonzero(last)
    distinct = points[order[ends]]
    if duplicates == "ignored":
        weights = inserted[order[ends]].astype(np.int64) - held.at(distinct)
    else:
        sums = np.cumsum(np.where(inserted[order], 1, -1))[ends]
        weights = np.diff(sums, prepend=0)
    kept = weights != 0
    return Weights(distinct[kept], weights[kept])
