"""What transforms on sets of points share: two inputs, records of updates and queries, the stages, the guarantee."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.events.dead_letters import late_letter, set_aside, text_of
from privstream.transforms.events.event_fields import (
    MISSING,
    RANGE,
    BrokenRuleError,
    broken_by,
)
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.people_transform import refuse_unbounded
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform
from privstream.transforms.events.split import stream_numbers
from privstream.transforms.events.split_stages import ReadEvents
from privstream.transforms.events.times import micros_of
from privstream.transforms.points.parameters import Actions, PointParameters, check_query
from privstream.transforms.timing.clocked import MechanismSteps, SingleSteps, WithClock, on_clocks
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

UPDATES, QUERIES = b"u", b"q"


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


class PackUpdates(ReadEvents):
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
        super().__init__(steps=steps)
        self.streams = streams
        self.universe = universe
        self.actions = actions
        self.reduce = reduce
        self.other_points = Metrics.counter("privstream", "points_outside_universe")
        self.other_actions = Metrics.counter("privstream", "events_of_other_actions")

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
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
        only: the queries that may be asked; None for any.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        streams: tuple[str, ...],
        universe: int,
        fields: tuple[str, ...],
        only: frozenset[tuple[int, ...]] | None,
    ) -> None:
        self.steps = steps
        self.streams = streams
        self.universe = universe
        self.fields = fields
        self.only = only
        self.outside = Metrics.counter("privstream", "queries_outside_run")

    @override
    def process(self, query: Any) -> Iterator[Any]:
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
        if self.only is not None and numbers not in self.only:
            raise BrokenRuleError(self.fields[0], RANGE, "a query must be a standing one, since no others are asked")
        stream = getattr(query, "stream", "")
        if not isinstance(stream, str) or stream not in self.streams:
            raise BrokenRuleError("stream", RANGE, "stream must be one of the public streams")
        return numbers, micros_of(query.time), stream


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


class AnswerWindows(SingleSteps, MechanismSteps):
    """Per stream: run a mechanism through every window, and answer the queries of each and the standing ones.

    A subclass says of what type its rows are, how the numbers of a query are called, and what its counter counts.
    """

    row_type: type
    fields: tuple[str, ...]

    def __init__(self, *, standing: tuple[tuple[int, ...], ...], **common: Any) -> None:
        super().__init__(timer_offset=1, **common)
        self.standing = standing
        self.late_queries = Metrics.counter("privstream", "queries_late")

    @abstractmethod
    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        """Make the updates, then answer distinct queries in order, int64 (n, fields): the numbers of a row for each."""

    @override
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        updates = PointBatch.join([batch for batch in batches if batch[:1] == UPDATES]).updates()
        asked = decode_queries([batch for batch in batches if batch[:1] == QUERIES], len(self.fields))
        standing = np.array(self.standing, np.int64).reshape(-1, len(self.fields))
        queries = np.unique(np.concatenate([asked, standing]), axis=0)
        stream = key.decode()
        state, answers = self.answer(state, updates, queries, self.noise_of(key, step))
        start, end = self.steps.bounds(step)
        self.published.inc(len(queries))
        return state, [self.row_type(stream, start, end, *numbers) for numbers in answers]

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        if batch[:1] == QUERIES:
            self.late_queries.inc()
        else:
            self.late.inc(len(PointBatch.join([batch]).points))
        yield from late_records(self.steps, key.decode(), step, batch, self.fields)


class PointTransform(PointParameters, PrivateTransform):
    """Updates of points on one input and public queries on another; answers at the end of each window."""

    row_type: type

    @abstractmethod
    def answering(self, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""

    @override
    def build(
        self, inputs: PCollection[Any] | Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn
    ) -> PCollection[Any]:
        given = dict(inputs) if isinstance(inputs, Mapping) else {"events": inputs}
        if set(given) - {"events", "queries"} or "events" not in given:
            raise ValueError(f"input must be events, or a dictionary of events and queries, got {', '.join(given)}")
        if self.keeps_noise_from_data:
            refuse_unbounded(given["events"], "delta must be > 0 when the input is unbounded")
        common: dict[str, Any] = {"steps": self.steps, "streams": self.streams, "universe": self.universe}
        pack = PackUpdates(**common, actions=self.actions, reduce=self.mechanism.duplicates == "ignored")
        records = apply_dofn(gather(given["events"], apply_dofn, self.event_fields), pack, Keyed)
        if "queries" in given:
            queries = given["queries"] | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows())
            asked = apply_dofn(queries, PackQueries(**common, fields=self.query_fields, only=self.only), Keyed)
            records = (records, asked) | "UpdatesAndQueries" >> beam.Flatten()
        clocked = records | "WithClock" >> WithClock(self.steps, self.streams, together=True)
        actions = f"{self.actions.insert} {self.actions.delete}"
        noise = self.noise.derive(type(self).__name__, self.steps.label, actions)
        return apply_dofn(clocked, self.answering(noise), self.row_type)
