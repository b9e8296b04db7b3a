"""Range counts: how many points lie in public ranges, at the end of every window, while points come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.range_counter import RangeState
from privstream.transforms.points.parameters import RangesParameters, range_errors
from privstream.transforms.points.point_transform import AnswerWindows, PointTransform
from privstream.transforms.rows import RangeCount
from typing_extensions import override


class CountRanges(AnswerWindows, state="count_ranges"):
    """Count, at the end of every window, in the ranges that are asked."""

    row_type = RangeCount
    counter = "counts_published"

    @override
    def answer(
        self, state: RangeState, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[RangeState, Iterable[tuple[int, ...]]]:
        mechanism = self.mechanism
        state = mechanism.update(state, updates)
        low, high = queries.T
        counts = mechanism.count(state, low, high, noise)
        spreads = mechanism.spreads(state.step, low, high, OUTSIDE)
        numbers: list[Any] = [low, high, counts, range_errors(mechanism, state.step, queries)]
        numbers += [np.maximum(0, counts - spreads), np.maximum(0, counts + spreads)]
        return state, zip(*(each.tolist() for each in numbers), strict=True)


class RangeCounts(RangesParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = RangeCount
    answering = CountRanges
