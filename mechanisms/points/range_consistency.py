"""Range counts that agree with each other: all taken from one non-negative integer measure, made on the fly.

From the root down, a node's count n is divided between its children by their noisy counts: the left one gets
floor((n + left - right) / 2), moved into what is possible: no negative counts, none beyond the universe, and in a set
none above the number of points. So the measure is fixed by the noisy counts alone, and a range needs two paths of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.points.dyadic_ranges import bounds

Integers = NDArray[np.int64]
NoisyCounts = Callable[[Integers], Integers]

_UNBOUNDED = np.int64(1) << 61


def consistent_counts(
    starts: Integers, ends: Integers, *, universe: int, height: int, noisy: NoisyCounts, is_set: bool
) -> Integers:
    """Return the counts of [start, end), ranges within 0 .. universe.

    Args:
        starts, ends: int64 (n,).
        universe, height: of the dyadic tree.
        noisy: returns the noisy counts of intervals, by number; the same for an interval whenever it is asked.
        is_set: whether a point counts once at most.
    """
    edges, place = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    counts = _prefixes(edges, universe, height, noisy, is_set)[place]
    return np.asarray(counts[len(starts) :] - counts[: len(starts)])


def _prefixes(edges: Integers, universe: int, height: int, noisy: NoisyCounts, is_set: bool) -> Integers:
    """Return the measure of [0, edge) for increasing edges."""

    def capacity(nodes: Integers) -> Integers:
        first, after = bounds(nodes, height)
        size = np.minimum(after, universe) - first
        return np.where(size <= 0, 0, size if is_set else _UNBOUNDED)

    root = np.ones(1, np.int64)
    count = np.repeat(np.clip(noisy(root), 0, capacity(root)), len(edges))
    node = np.ones(len(edges), np.int64)
    before = np.zeros(len(edges), np.int64)
    whole = edges >> height > 0  # the edge after the last point of a full tree
    before[whole] = count[whole]
    for level in reversed(range(height)):
        parents, place = np.unique(node, return_inverse=True)
        drawn = noisy(np.stack([2 * parents, 2 * parents + 1], axis=1).reshape(-1)).reshape(-1, 2)[place]
        left = (count + drawn[:, 0] - drawn[:, 1]) >> 1
        left = np.clip(left, count - capacity(2 * node + 1), np.minimum(count, capacity(2 * node)))
        left = np.maximum(left, 0)
        right = (edges >> level & 1).astype(np.bool_)
        before += np.where(right & ~whole, left, 0)
        count = np.where(right, count - left, left)
        node = 2 * node + right
    return before
