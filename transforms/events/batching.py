"""From events, one by one or in Arrow batches, to columnar batches per stream, step and shard of people."""

from __future__ import annotations

import itertools
import numbers
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import Row, TaggedOutput
from apache_beam.utils.windowed_value import WindowedValue
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, Names, StepKey, encode, string_buffers
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.record_batches import NO_STREAMS, SCHEMA, broken_rows, normalise, record_of
from privstream.transforms.timing.receipts import Parcel, digest
from privstream.transforms.timing.steps import MILLISECOND, Steps

ROWS_PER_BATCH = 65_536
TEXT_PER_BATCH = 1 << 24  # characters
LONGEST_RECORD = 10_000  # characters of a dead letter
INT64 = 1 << 63


class GatherRows(beam.DoFn):
    """Gather single events of a bundle into Arrow batches.

    An element is a pair (user, item) whose time is the element's timestamp, or a row with `user`, `item`, `time`
    (a Beam Timestamp, or int microseconds since 1970) and optionally `stream`.

    Arrow batches go on without the rows that break a rule: these, like single events that do, become dead letters.

    A batch is late if its timestamp is. Where timestamps say when events arrived, whether an event is late must not
    depend on those it is with: so those that arrived after their own time are only with others of the same millisecond.

    Args:
        streams: whether the run has streams; if not, events that carry one break a rule.
    """

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams
        self.malformed = Metrics.counter("privstream", "events_malformed")

    def start_bundle(self) -> None:
        """Start with no rows."""
        self._rows: dict[int | None, list[tuple[str, str, int, str]]] = defaultdict(list)  # by millisecond of arrival
        self._oldest: dict[int | None, Any] = {}
        self._number = self._text = 0

    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        """Keep a row, and pass on a batch when enough are together; pass on what can be used of Arrow batches."""
        if isinstance(element, pa.RecordBatch):
            yield from self._check(element)
            return
        try:
            row = _row(element, timestamp)
            if row[3] and not self.streams:
                raise ValueError(NO_STREAMS)
        except (TypeError, ValueError) as error:
            yield self._refuse(str(error), repr(element))
            return
        arrived = None if timestamp.micros <= row[2] else timestamp.micros // MILLISECOND
        self._rows[arrived].append(row)
        self._oldest[arrived] = min(self._oldest.get(arrived, timestamp), timestamp)
        self._number += 1
        self._text += len(row[0]) + len(row[1]) + len(row[3])
        self._window = window
        if self._number >= ROWS_PER_BATCH or self._text >= TEXT_PER_BATCH:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Pass on what is left."""
        yield from self._flush()

    def _check(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Pass on an Arrow batch without the rows that break a rule."""
        broken = broken_rows(batch, streams=self.streams)
        for row, reason in broken.items():
            yield self._refuse(reason, record_of(batch, row))
        if broken:
            batch = batch.take(pa.array(np.delete(np.arange(batch.num_rows), list(broken))))
        if batch.num_rows:
            yield batch

    def _refuse(self, reason: str, record: str) -> Any:
        """Count a record, and send it away."""
        self.malformed.inc()
        return TaggedOutput(DEAD_LETTERS, DeadLetter(reason, "event", "", record[:LONGEST_RECORD]))

    def _flush(self) -> Iterator[WindowedValue]:
        for arrived, rows in self._rows.items():
            columns = [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            yield WindowedValue(batch, self._oldest[arrived], (self._window,))
        self.start_bundle()


def _row(element: Any, timestamp: Any) -> tuple[str, str, int, str]:
    """Return user, item, microseconds and stream of an element, or raise with the rule that it breaks."""
    if hasattr(element, "_fields") or isinstance(element, Row):
        for name in ("user", "item", "time"):
            if not hasattr(element, name):
                raise ValueError(f"row must have a field {name}")
        user, item, time, stream = element.user, element.item, element.time, getattr(element, "stream", "")
    elif isinstance(element, tuple | list) and len(element) == 2:
        (user, item), time, stream = element, timestamp, ""
    else:
        raise TypeError(
            f"event must be a pair (user, item), a row or an Arrow record batch, got {type(element).__name__}"
        )
    return _text("user", user), _text("item", item), _microseconds(time), _text("stream", stream)


def _text(name: str, value: Any) -> str:
    """Return a user, item or stream as text."""
    if _is_integer(value):
        return str(int(value))
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text or an integer, got {type(value).__name__}")
    if not value and name != "stream":
        raise ValueError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid Unicode") from None
    return value


def _microseconds(time: Any) -> int:
    """Return a time as microseconds since 1970."""
    micros = int(time) if _is_integer(time) else getattr(time, "micros", None)
    if not isinstance(micros, int):
        raise TypeError(f"time must be a Timestamp or integer microseconds, got {type(time).__name__}")
    if not -INT64 <= micros < INT64:
        raise ValueError("time must fit into 64 bits of microseconds")
    return micros


def _is_integer(value: Any) -> bool:
    """Tell whether a value is an integer, of Python or numpy, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


class SplitEvents(beam.DoFn):
    """Turn Arrow batches into encoded `EventBatch`es and their digests, one per stream, step and shard of people.

    People and items become keyed 64-bit hashes, or, with `positions`, items become positions in the domain. Whatever
    lies outside of the public steps, streams or domain is counted and left out.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        shards: int,
        domain: Domain | None = None,
        positions: bool = False,
        streams: tuple[str, ...] | None = None,
    ) -> None:
        self.steps = steps
        self.noise = noise
        self.shards = shards
        self.domain = domain
        self.positions = positions
        self.streams = streams
        self.events = Metrics.counter("privstream", "events")
        self.usable = Metrics.counter("privstream", "events_usable")
        self.outside = Metrics.counter("privstream", "events_outside_run")
        self.other_streams = Metrics.counter("privstream", "events_of_other_streams")
        self.other_items = Metrics.counter("privstream", "events_outside_domain")

    def setup(self) -> None:
        """Derive the hashes, which depend on nothing but the key."""
        self._user_hash = self.noise.derive("user hash")
        self._item_hash = self.noise.derive("item hash")

    def process(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """Split one Arrow batch; see `normalise` for its columns."""
        self.events.inc(batch.num_rows)
        yield from self._split(self._select(normalise(batch)))

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out events of streams and items that are not public."""
        if self.streams is not None:
            kept = batch.filter(pc.is_in(batch["stream"], pa.array(self.streams, pa.string())))
            self.other_streams.inc(batch.num_rows - kept.num_rows)
            batch = kept
        if self.domain is not None:
            kept = batch.filter(self.domain.contains(batch["item"]))
            self.other_items.inc(batch.num_rows - kept.num_rows)
            batch = kept
        return batch

    def _split(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        times = batch["time"].to_numpy()
        rows, steps = self.steps.assign(times)
        inside = len(np.unique(rows)) if self.steps.overlap > 1 else len(rows)
        self.usable.inc(inside)
        self.outside.inc(len(times) - inside)
        if not len(rows):
            return
        users = self._user_hash.hash_bytes(*reversed(string_buffers(batch["user"])))[rows]
        codes, items, texts = self._encode_items(batch["item"])
        streams = batch["stream"].dictionary_encode()
        shard = (users % np.uint64(self.shards)).astype(np.int64)
        step_codes = _codes(steps)
        stream = streams.indices.to_numpy().astype(np.int64)[rows]
        group = stream * (int(step_codes.max()) + 1) + step_codes
        order = _order(group * self.shards + shard, codes[rows], len(items))
        rows, steps, shard, users = rows[order], steps[order], shard[order], users[order]
        codes, times, stream = codes[rows], times[rows], stream[order]
        starts = _run_starts(stream, steps, shard)
        named = _run_starts(stream, steps, shard, codes)
        named_starts = np.searchsorted(named, starts)
        for i, (start, end) in enumerate(itertools.pairwise([*starts.tolist(), len(rows)])):
            held = codes[named[named_starts[i] : named_starts[i + 1] if i + 1 < len(starts) else None]]
            names = Names.none() if texts is None else Names.of(items[held], texts.take(pa.array(held)))
            key = StepKey(streams.dictionary[stream[start]].as_py(), int(steps[start]), int(shard[start]))
            data = encode(EventBatch(users[start:end], items[codes[start:end]], times[start:end], names))
            yield key.to_bytes(), (digest(data), data)

    def _encode_items(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Array | None]:
        """Return a code per row, and per code the item (increasing) and its text (none for a known domain)."""
        if self.domain is not None and self.positions:
            return self.domain.positions(texts), np.arange(len(self.domain), dtype=np.uint64), None
        encoded = texts.dictionary_encode()
        items = self._item_hash.hash_bytes(*reversed(string_buffers(encoded.dictionary)))
        order = np.argsort(items)
        code_of = np.empty(len(order), np.int64)
        code_of[order] = np.arange(len(order))
        return code_of[encoded.indices.to_numpy()], items[order], encoded.dictionary.take(pa.array(order))


def _codes(column: np.ndarray) -> np.ndarray:
    """Return small codes, from 0 on, in the order of the integers (int64) that they stand for."""
    least = column.min()
    if int(column.max()) - int(least) < 4 * len(column) + 1024:
        codes: np.ndarray = column - least
        return codes
    _, codes = np.unique(column, return_inverse=True)
    return codes


def _order(group: np.ndarray, code: np.ndarray, codes: int) -> np.ndarray:
    """Return the order by group, and within it by code, of which there are so many."""
    if (int(group.max()) + 1) * codes < 2**63:
        return np.argsort(group * codes + code, kind="stable")  # three times as fast as sorting by two keys
    return np.lexsort((code, group))


def _run_starts(*columns: np.ndarray) -> np.ndarray:
    """Return the rows of sorted columns at which one of them changes, the first row included."""
    changes = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])
