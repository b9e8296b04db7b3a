"""Updates of points in; answers about ranges and nearest points, at the end of each window, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.continual.predecessor import Neighbours, PredecessorStep
from privstream.mechanisms.continual.ranges import RangeState, Updates
from privstream.transforms.batches import EventBatch
from privstream.transforms.parameters import BEGIN
from privstream.transforms.people.bounding import SplitEvents
from privstream.transforms.questions.points import PointParameters, PredecessorParameters, RangesParameters
from privstream.transforms.questions.running_stages import RunningAnswers
from privstream.transforms.rows import NearestPoints, RangeCount
from privstream.transforms.stages import PeopleTransform
from privstream.transforms.timing.clock import ToClock
from typing_extensions import override


def updates_of(batches: Sequence[bytes]) -> Updates:
    """Return the updates of a step in order of time, insertions after deletions of one moment."""
    events = EventBatch.read(batches)
    points, inserted = events.users.astype(np.int64), events.items == BEGIN
    order = np.lexsort((points, inserted, events.times))
    return Updates(points[order], inserted[order])


class PackUpdates(SplitEvents):
    """Turn batches of events (`user`: the point, `item`: what happens to it) into `EventBatch`es of steps.

    Points outside of the universe, which are 1 .. `universe`, are counted and dropped, and so are actions that mean
    nothing. All that depends on the event alone.
    """

    universe: int
    positions = True
    other_points = Metrics.counter("privstream", "points_outside_universe")
    other = "events_of_other_actions"

    @override
    def usable(
        self, batch: pa.RecordBatch, codes: np.ndarray | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        points = batch["user"].to_numpy()
        within = np.flatnonzero((points >= 1) & (points <= self.universe))
        self.events.inc(len(points) - len(within))
        self.other_points.inc(len(points) - len(within))
        return super().usable(batch.take(pa.array(within)))


class PointTransform(PointParameters, PeopleTransform):
    """Updates of points in; answers to public queries at the end of each window."""

    @override
    def _splitter(self, **given: Any) -> PackUpdates:
        return PackUpdates(steps=self.steps, universe=self.universe, domain=self.actions, **given)

    @override
    def _limits(self) -> tuple[ToClock]:
        return (ToClock(),)

    @property
    @override
    def _labels(self) -> tuple[Any, ...]:  # type: ignore[override]
        return (f"{self.actions.begin} {self.actions.end}",)

    @property
    @override
    def asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"queries": np.array(self.queries, np.int64)}


class AnswerPredecessors(RunningAnswers, state="answer_predecessors"):
    """Answer, at the end of every window, which points are nearest to the points that are asked for."""

    row_type = NearestPoints
    counter = "neighbours_published"
    queries: np.ndarray

    @override
    def given(self, step: int, batches: list[bytes]) -> PredecessorStep:
        return PredecessorStep(updates_of(batches), self.queries[:, 0])

    @override
    def rows(self, state: Any, found: Neighbours) -> Iterable[tuple[Any, ...]]:
        columns = self.queries[:, 0], found.predecessors, found.successors, found.distances, found.errors
        return zip(*(column.tolist() for column in columns), strict=True)


class PredecessorQueries(PredecessorParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = AnswerPredecessors


class CountRanges(RunningAnswers, state="count_ranges"):
    """Count, at the end of every window, in the ranges that are asked."""

    row_type = RangeCount
    counter = "counts_published"
    queries: np.ndarray

    @override
    def given(self, step: int, batches: list[bytes]) -> Updates:
        return updates_of(batches)

    @override
    def rows(self, state: RangeState, found: np.ndarray) -> Iterable[tuple[Any, ...]]:
        errors, spreads = self.mechanism.errors(state.step), self.mechanism.spreads(state.step, OUTSIDE)
        ends = np.maximum(0, found - spreads), np.maximum(0, found + spreads)
        return zip(*(column.tolist() for column in (*self.queries.T, found, errors, *ends)), strict=True)


class RangeCounts(RangesParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = CountRanges
