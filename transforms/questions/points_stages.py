"""Updates of points in; answers about ranges and nearest points, at the end of each window, out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.dynamic_predecessor import PredecessorStep
from privstream.mechanisms.points.range_counter import RangeState
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed, KeyedBatch, first_of_run
from privstream.transforms.people.bound import by_step_and_shard
from privstream.transforms.people.bounding import ReadEvents
from privstream.transforms.questions.points import (
    Actions,
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


@dataclass(frozen=True, eq=False)
class PointBatch:
    """Updates of one step: int64 points and microseconds, and whether a point is inserted."""

    points: np.ndarray
    times: np.ndarray
    inserted: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("points", 1, vars(self) | {"inserted": self.inserted.astype(np.uint8)})

    @classmethod
    def join(cls, records: Sequence[bytes]) -> PointBatch:
        """Decode and put together."""
        found = [unpack("points", 1, record) for record in records]
        empty: dict[str, Any] = {"points": np.empty(0, np.int64), "times": np.empty(0, np.int64)}
        empty["inserted"] = np.empty(0, np.uint8)
        columns = {name: np.concatenate([empty[name], *(each[name] for each in found)]) for name in empty}
        return cls(columns["points"], columns["times"], columns["inserted"].astype(np.bool_))

    def last_of_each(self) -> PointBatch:
        """Keep the last update of each point; of those at one moment, an insertion."""
        order = np.lexsort((self.inserted, self.times, self.points))
        rows = order[np.roll(first_of_run(self.points[order]), -1)]  # the first row is always one
        return PointBatch(self.points[rows], self.times[rows], self.inserted[rows])

    def updates(self) -> Updates:
        """Return the updates in order of time, insertions after deletions of one moment."""
        order = np.lexsort((self.points, self.inserted, self.times))
        return Updates(self.points[order], self.inserted[order])


class PackUpdates(ReadEvents):
    """Turn Arrow batches of events (`user`: the point, `item`: what happens to it) into batches of steps.

    What lies outside of the public steps is counted and dropped, and so are points outside of the
    universe and actions that mean nothing. All that depends on the event alone.

    Attributes:
        universe: points are 1 .. universe.
        actions: which actions insert and delete.
    """

    universe: int
    actions: Actions
    other_points = Metrics.counter("privstream", "points_outside_universe")
    other_actions = Metrics.counter("privstream", "events_of_other_actions")

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        self.events.inc(batch.num_rows)
        points = batch["user"].to_numpy()
        inserted, meant = self._actions(batch["item"])
        times = batch["time"].to_numpy()
        steps = np.full(len(times), -1)
        rows, found = self.steps.assign(times)
        steps[rows] = found
        within = (points >= 1) & (points <= self.universe)
        usable = np.ones(len(times), np.bool_)
        reasons = (
            (self.other_points, within),
            (self.other_actions, meant),
            (self.outside, steps >= 0),
        )
        for counter, kept in reasons:  # an event has one: the first
            counter.inc(int((usable & ~kept).sum()))
            usable &= kept
        keep = np.flatnonzero(usable)
        self.usable.inc(len(keep))
        if not len(keep):
            return
        order, parts = by_step_and_shard(steps[keep], np.zeros(len(keep), np.uint64), 1)
        for to, part in parts:
            chosen = keep[order[part]]
            updates = PointBatch(points[chosen], times[chosen], inserted[chosen])
            yield to.to_bytes(), (len(chosen), updates.last_of_each().to_bytes())

    def _actions(self, items: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows insert, and which mean anything."""
        deleted = pc.is_in(items, pa.array(self.actions.delete, pa.string())).to_numpy(zero_copy_only=False)
        if self.actions.insert is None:
            return ~deleted, np.ones(len(items), np.bool_)
        inserted = pc.is_in(items, pa.array(self.actions.insert, pa.string())).to_numpy(zero_copy_only=False)
        return inserted, inserted | deleted


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
        state, answers = self.answer(state, PointBatch.join(batches).updates(), self.queries, self.noise_of(step))
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
        actions = f"{self.actions.insert} {self.actions.delete}"
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
