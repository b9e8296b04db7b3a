"""From events and queries to records per stream and step: what the stages that answer about points take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.events.broken_rule import MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.dead_letters import set_aside, text_of
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.streams import stream_numbers
from privstream.transforms.events.times import micros_of
from privstream.transforms.timing.public_clock import on_clocks
from privstream.transforms.timing.steps import Steps

UPDATES, QUERIES = b"u", b"q"


@dataclass(frozen=True)
class Actions:
    """What happens to a point: which texts insert it, and which delete it.

    Attributes:
        insert: texts that insert; None for all others than those that delete.
        delete: texts that delete; without any, all events insert.
    """

    insert: tuple[str, ...] | None
    delete: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, values in (("insert_values", self.insert), ("delete_values", self.delete)):
            if isinstance(values, str) or any(not isinstance(value, str) for value in values or ()):
                raise TypeError(f"{name} must be a tuple of texts, got {type(values).__name__}")
        if set(self.insert or ()) & set(self.delete):
            raise ValueError("insert_values and delete_values must have no text in common")


@dataclass(frozen=True, eq=False)
class PointBatch:
    """Updates of one step: int64 points and microseconds, and whether a point is inserted."""

    points: np.ndarray
    times: np.ndarray
    inserted: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        return UPDATES + pack("points", 1, vars(self) | {"inserted": self.inserted.astype(np.uint8)})

    @classmethod
    def join(cls, records: Sequence[bytes]) -> PointBatch:
        """Decode and put together."""
        found = [unpack("points", 1, record[1:]) for record in records]
        empty: dict[str, Any] = {"points": np.empty(0, np.int64), "times": np.empty(0, np.int64)}
        empty["inserted"] = np.empty(0, np.uint8)
        columns = {name: np.concatenate([empty[name], *(each[name] for each in found)]) for name in empty}
        return cls(columns["points"], columns["times"], columns["inserted"].astype(np.bool_))

    def last_of_each(self) -> PointBatch:
        """Keep the last update of each point; of those at one moment, an insertion."""
        order = np.lexsort((self.inserted, self.times, self.points))
        last = np.ones(len(order), np.bool_)
        last[:-1] = self.points[order[1:]] != self.points[order[:-1]]
        rows = order[last]
        return PointBatch(self.points[rows], self.times[rows], self.inserted[rows])

    def updates(self) -> Updates:
        """Return the updates in order of time, insertions after deletions of one moment."""
        order = np.lexsort((self.points, self.inserted, self.times))
        return Updates(self.points[order], self.inserted[order])


class PackUpdates(beam.DoFn):
    """Turn Arrow batches of events (`user`: the point, `item`: what happens to it) into records for `ClockedSteps`.

    What lies outside of the public steps and streams is counted and left out, and so are points outside of the
    universe and actions that mean nothing. All that depends on the event alone.

    Args:
        steps: windows.
        streams: public names; ("",) if events carry none.
        universe: points are 1 .. universe.
        actions: which actions insert and delete.
        reduce: whether of each point the last update of a step is enough.
    """

    def __init__(
        self, *, steps: Steps, streams: tuple[str, ...], universe: int, actions: Actions, reduce: bool
    ) -> None:
        self.steps = steps
        self.streams = streams
        self.universe = universe
        self.actions = actions
        self.reduce = reduce
        self.events = Metrics.counter("privstream", "events")
        self.usable = Metrics.counter("privstream", "events_usable")
        self.outside = Metrics.counter("privstream", "events_outside_run")
        self.other_streams = Metrics.counter("privstream", "events_of_other_streams")
        self.other_points = Metrics.counter("privstream", "points_outside_universe")
        self.other_actions = Metrics.counter("privstream", "events_of_other_actions")

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Pack one batch."""
        self.events.inc(batch.num_rows)
        points = batch["user"].to_numpy()
        inserted, meant = self._actions(batch["item"])
        streams = stream_numbers(batch["stream"], self.streams)
        times = batch["time"].to_numpy()
        steps = np.full(len(times), -1)
        rows, found = self.steps.assign(times)
        steps[rows] = found
        within = (points >= 1) & (points <= self.universe)
        usable = np.ones(len(times), np.bool_)
        reasons = (
            (self.other_streams, streams >= 0),
            (self.other_points, within),
            (self.other_actions, meant),
            (self.outside, steps >= 0),
        )
        for counter, kept in reasons:  # an event has one: the first
            counter.inc(int((usable & ~kept).sum()))
            usable &= kept
        keep = np.flatnonzero(usable)
        self.usable.inc(len(keep))
        packed = []
        for stream, step, group in grouped(streams[keep], steps[keep]):
            chosen = keep[group]
            updates = PointBatch(points[chosen], times[chosen], inserted[chosen])
            updates = updates.last_of_each() if self.reduce else updates
            packed.append((self.streams[stream], step, updates.to_bytes()))
        yield from on_clocks(packed)

    def _actions(self, items: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows insert, and which mean anything."""
        deleted = pc.is_in(items, pa.array(self.actions.delete, pa.string())).to_numpy(zero_copy_only=False)
        if self.actions.insert is None:
            return ~deleted, np.ones(len(items), np.bool_)
        inserted = pc.is_in(items, pa.array(self.actions.insert, pa.string())).to_numpy(zero_copy_only=False)
        return inserted, inserted | deleted


class PackQueries(beam.DoFn):
    """Turn queries into records for `ClockedSteps`; those that break a rule become dead letters. Queries are public.

    Args:
        steps: windows.
        streams: public names; ("",) if queries carry none.
        universe: points are 1 .. universe.
        fields: names of the numbers of a query, in non-decreasing order.
    """

    def __init__(self, *, steps: Steps, streams: tuple[str, ...], universe: int, fields: tuple[str, ...]) -> None:
        self.steps = steps
        self.streams = streams
        self.universe = universe
        self.fields = fields
        self.outside = Metrics.counter("privstream", "queries_outside_run")

    def process(self, query: Any) -> Iterator[Any]:
        """Pack one query."""
        try:
            numbers, micros, stream = self._read(query)
        except Exception as error:
            yield set_aside(broken_by(error, "query"), text_of(query), "query", counter="queries")
            return
        steps = self.steps.assign(np.array([micros]))[1]
        if len(steps):
            yield from on_clocks([(stream, int(steps[0]), encode_query(numbers))])
        else:
            self.outside.inc()

    def _read(self, query: Any) -> tuple[tuple[int, ...], int, str]:
        """Return the numbers, the time and the stream of a query, or raise with the rule that it breaks."""
        for name in (*self.fields, "time"):
            if not hasattr(query, name):
                raise BrokenRuleError(name, MISSING, f"query must have a field {name}")
        numbers = check_query(tuple(getattr(query, name) for name in self.fields), self.fields, self.universe)
        stream = getattr(query, "stream", "")
        if not isinstance(stream, str) or stream not in self.streams:
            raise BrokenRuleError("stream", RANGE, "stream must be one of the public streams")
        return numbers, micros_of(query.time), stream


def check_query(numbers: Sequence[Any], fields: tuple[str, ...], universe: int) -> tuple[int, ...]:
    """Return the numbers of a query, or raise with the rule that it breaks."""
    for name, number in zip(fields, numbers, strict=True):
        if isinstance(number, bool | np.timedelta64) or not isinstance(number, int | np.integer):
            raise BrokenRuleError(name, TYPE, f"{name} must be an integer, got {type(number).__name__}")
        if not 1 <= number <= universe:
            raise BrokenRuleError(name, RANGE, f"{name} must be in 1 .. {universe}")
    if list(numbers) != sorted(numbers):
        raise BrokenRuleError(fields[-1], RANGE, f"{fields[-1]} must be >= {fields[0]}")
    return tuple(int(number) for number in numbers)


def encode_query(numbers: Sequence[int]) -> bytes:
    """Encode the numbers of a query."""
    return QUERIES + np.array(numbers, "<i8").tobytes()


def decode_queries(records: Sequence[bytes], size: int) -> np.ndarray:
    """Return distinct queries in order, int64 (n, size)."""
    found = np.frombuffer(b"".join(record[1:] for record in records), "<i8").reshape(-1, size)
    return np.unique(found.astype(np.int64), axis=0)


def grouped(streams: np.ndarray, steps: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Return stream, step and rows of each group."""
    order = np.lexsort((steps, streams))
    streams, steps = streams[order], steps[order]
    edges = np.flatnonzero((streams[1:] != streams[:-1]) | (steps[1:] != steps[:-1])) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(order)] if len(order) else []):
        yield int(streams[start]), int(steps[start]), order[start:end]


def late_records(steps: Steps, stream: str, step: int, record: bytes, fields: tuple[str, ...]) -> Iterator[Any]:
    """Describe what came late: one dead letter for a query, or for the updates of a batch."""
    if record[:1] == QUERIES:
        numbers = np.frombuffer(record[1:], "<i8").tolist()
        text = ", ".join(f"{name} {number}" for name, number in zip(fields, numbers, strict=True))
        yield late_letter(steps, step, "late query", text, stream)
        return
    batch = PointBatch.join([record])
    for point, inserted in zip(batch.points.tolist(), batch.inserted.tolist(), strict=True):
        text = f"{'insert' if inserted else 'delete'} {point}"
        yield late_letter(steps, step, "late event", text, stream)
