"""Range counts: how many points lie in public ranges, at the end of every window, while points come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import numpy as np
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.range_counter import RangeCounter, RangeState
from privstream.transforms.points.parameters import RANGE_FIELDS, RangesParameters, error_bounds
from privstream.transforms.points.point_transform import AnswerWindows, PointTransform
from privstream.transforms.rows import RangeCount
from typing_extensions import override

NO_BOUND = -1


class RangeCounts(RangesParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = RangeCount

    @override
    def answering(self, noise: NoiseSource) -> beam.DoFn:
        return CountRanges(
            steps=self.steps,
            streams=self.streams,
            mechanism=self.mechanism,
            standing=self.standing,
            queries=self.queries,
            beta=self.beta,
            noise=noise,
        )


class CountRanges(AnswerWindows, state="count_ranges"):
    """Per stream: count, at the end of every window, in the ranges that are asked."""

    row_type = RangeCount
    fields = RANGE_FIELDS
    counter = "counts_published"
    mechanism: RangeCounter

    def __init__(self, *, queries: int | None, beta: float, **common: Any) -> None:
        super().__init__(**common)
        self.queries = queries
        self.beta = beta

    @override
    def answer(
        self, state: RangeState, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[RangeState, Iterable[tuple[int, ...]]]:
        state = self.mechanism.update(state, updates)
        if not len(queries):
            return state, ()
        counts = self.mechanism.count(state, queries[:, 0], queries[:, 1], noise)
        numbers = *queries.T.tolist(), counts.tolist()
        if self.mechanism.consistent:
            return state, zip(*numbers, [NO_BOUND] * len(queries), strict=True)
        bounds = error_bounds(self.mechanism, state.step, queries, self.beta, len(self.standing), self.queries)
        spreads = self.mechanism.spreads(state.step, queries[:, 0], queries[:, 1], OUTSIDE)
        lower, upper = (np.maximum(0, ends).tolist() for ends in (counts - spreads, counts + spreads))
        return state, zip(*numbers, bounds, lower, upper, strict=True)
