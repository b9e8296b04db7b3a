"""Predecessor queries: the nearest points below and above public points, while points come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.dynamic_predecessor import PredecessorStep
from privstream.transforms.points.parameters import Mechanism, PredecessorParameters
from privstream.transforms.points.point_transform import AnswerWindows, PointTransform
from privstream.transforms.rows import NearestPoints
from typing_extensions import override


class AnswerPredecessors(AnswerWindows, state="answer_predecessors"):
    """Answer, at the end of every window, which points are nearest to the points that are asked for."""

    row_type = NearestPoints
    counter = "neighbours_published"
    mechanism: Mechanism

    @override
    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        points = queries[:, 0]
        state, near = self.mechanism.step(state, PredecessorStep(updates, points), noise)
        columns = (points, near.predecessors, near.successors, near.distances, near.errors)
        return state, zip(*(column.tolist() for column in columns), strict=True)


class PredecessorQueries(PredecessorParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = NearestPoints
    answering = AnswerPredecessors
