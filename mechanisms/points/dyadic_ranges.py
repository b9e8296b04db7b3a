"""Dyadic intervals of [1, universe], and covers of ranges by them, for many ranges at once.

Points are numbered from 0 here. With height H = ceil(log2 universe) the interval of level l = 0 .. H and index i is
[i 2^l, (i + 1) 2^l), and its number 2^(H - l) + i: the root is 1, the children of n are 2n and 2n + 1. Each point lies
in H + 1 intervals, one of each level. Intervals beyond the universe have no points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def tree_height(universe: int) -> int:
    """Return H: the levels of the tree are 0 .. H."""
    return (universe - 1).bit_length()


def longest_cover(height: int) -> int:
    """Return how many intervals `cover` needs at most."""
    return max(1, 2 * height - 2)


def widest_range(universe: int) -> tuple[int, int]:
    """Return a range of 1 .. universe of as many intervals as any has; one that ends at the universe goes beyond it.

    On both sides of the middle of the tree it has an interval for each one of a binary number, and of the numbers up to
    some number that one, or the longest row of ones, has the most.
    """
    height = tree_height(universe)
    middle = 1 << max(0, height - 1)
    rest = max(0, universe - 1 - middle)
    ends = {universe, universe - 1, middle - 1, middle + (1 << max(0, rest.bit_length() - 1)) - 1}
    ranges = [(low, high) for low in (1, 2) for high in sorted(ends) if low <= high <= universe]
    lows, highs = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    numbers, _ = cover(lows - 1, np.where(highs == universe, np.int64(1) << height, highs), height)
    return ranges[int(np.bincount(numbers).argmax())]


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


def cover(starts: Integers, ends: Integers, height: int) -> tuple[Integers, Integers]:
    """Partition the ranges [start, end) into the fewest dyadic intervals.

    Returns:
        The number of the range, and that of the interval, for each interval of each cover, both int64.
    """
    left, right = starts.copy(), ends.copy()
    ranges: list[Integers] = []
    intervals: list[Integers] = []
    for level in range(height + 1):
        first = np.int64(1) << (height - level)
        odd = np.flatnonzero((left < right) & (left & 1 == 1))
        ranges.append(odd)
        intervals.append(first + left[odd])
        left[odd] += 1
        odd = np.flatnonzero((left < right) & (right & 1 == 1))
        right[odd] -= 1
        ranges.append(odd)
        intervals.append(first + right[odd])
        left >>= 1
        right >>= 1
    return np.concatenate(ranges), np.concatenate(intervals)
