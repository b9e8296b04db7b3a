"""Updates of points in; answers about ranges and nearest points, at the end of each window, out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.continual.predecessor import PredecessorStep
from privstream.mechanisms.continual.ranges import RangeState, Updates
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, Keyed, KeyedBatch, Names, encode
from privstream.transforms.parameters import BEGIN, Actions
from privstream.transforms.people.bound import by_step_and_shard
from privstream.transforms.people.bounding import ReadEvents
from privstream.transforms.questions.points import (
    Mechanism,
    PointParameters,
    PredecessorParameters,
    RangesParameters,
    range_errors,
)
from privstream.transforms.rows import NearestPoints, RangeCount
from privstream.transforms.stages import ApplyDoFn, PrivateTransform, refuse_unbounded
from privstream.transforms.timing.clock import CloseWindows, ToClock, WithClock
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override


def updates_of(batches: Sequence[bytes]) -> Updates:
    """Return the updates of a step in order of time, insertions after deletions of one moment."""
    events = EventBatch.read(batches)
    points, inserted = events.users.astype(np.int64), events.items == BEGIN
    order = np.lexsort((points, inserted, events.times))
    return Updates(points[order], inserted[order])


class PackUpdates(ReadEvents):
    """Turn Arrow batches of events (`user`: the point, `item`: what happens to it) into `EventBatch`es of steps.

    What lies outside of the public steps is counted and dropped, and so are points outside of the universe, which are 1
    .. `universe`, and actions that mean nothing. All that depends on the event alone.
    """

    universe: int
    actions: Actions
    other_points = Metrics.counter("privstream", "points_outside_universe")
    other = "events_of_other_actions"

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        points, kinds, times = batch["user"].to_numpy(), self.actions.kinds(batch["item"]), batch["time"].to_numpy()
        within = np.flatnonzero((points >= 1) & (points <= self.universe))
        self.events.inc(len(points) - len(within))
        self.other_points.inc(len(points) - len(within))
        rows, steps = self.in_run(kinds[within], times[within])
        if not len(rows):
            return
        rows = within[rows]
        users, items = points.astype(np.uint64), kinds.astype(np.uint64)
        order, parts = by_step_and_shard(steps, np.zeros(len(rows), np.uint64), 1)
        for to, part in parts:
            chosen = rows[order[part]]
            updates = EventBatch(users[chosen], items[chosen], times[chosen], Names.none())
            yield to.to_bytes(), (len(chosen), encode(updates))


class AnswerWindows(StepFn):
    """Run a mechanism through every window, and answer the standing queries.

    A subclass says of what type its rows are, and what its counter counts.
    """

    row_type: type

    def __init__(self, *, standing: tuple[tuple[int, ...], ...], **common: Any) -> None:
        super().__init__(timer_offset=1, **common)
        self.queries = np.array(standing, np.int64)

    @abstractmethod
    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        """Make the updates, then answer distinct queries in order, int64 (n, fields): the numbers of a row for each."""

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        state, answers = self.answer(state, updates_of(batches), self.queries, self.noise_of(step))
        start, end = self.steps.bounds(step)
        self.published.inc(len(self.queries))
        return state, [self.row_type(start, end, *numbers) for numbers in answers]


class PointTransform(PointParameters, PrivateTransform):
    """Updates of points in; answers to public queries at the end of each window."""

    row_type: type
    answering: type[AnswerWindows]

    @override
    def build(self, inputs: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if self.keeps_noise_from_data:
            refuse_unbounded(inputs, "delta must be > 0 when the input is unbounded")
        pack = PackUpdates(steps=self.steps, universe=self.universe, actions=self.actions)
        packed = apply_dofn(self.read(inputs, apply_dofn), pack, KeyedBatch)
        closed = packed | "CloseWindows" >> CloseWindows(self.steps)
        clocked = apply_dofn(closed, ToClock(), Keyed) | "WithClock" >> WithClock(self.steps)
        actions = f"{self.actions.begin} {self.actions.end}"
        noise = self.noise.derive(type(self).__name__, self.steps.label, actions)
        answer = self.answering(steps=self.steps, mechanism=self.mechanism, standing=self.standing, noise=noise)
        return apply_dofn(clocked, answer, self.row_type)


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
