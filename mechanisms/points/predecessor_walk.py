"""From marked dyadic intervals to the nearest point: post-processing, for many queries at once."""

from __future__ import annotations

import numpy as np
from privstream.mechanisms.points.dyadic_ranges import bounds, level_below_root
from privstream.mechanisms.points.dynamic_points import Integers
from privstream.mechanisms.points.predecessor_tree import TreeState

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
