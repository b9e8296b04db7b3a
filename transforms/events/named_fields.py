"""Rows, mappings, Arrow batches, and frames of any library that speaks Arrow, whose fields have names of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sized
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.dead_letters import LOG, set_aside, text_of
from privstream.transforms.events.event_columns import (
    check_kind,
    cut_by_text,
    read_text,
    row_records,
    text_column,
    unchecked_text,
)
from privstream.transforms.events.event_fields import MISSING, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.filters import Filter, column_of_kind
from privstream.transforms.events.item_columns import join_columns, join_item
from privstream.transforms.events.single_events import NO_STAMPS, is_frame, stamped
from privstream.transforms.events.times import Marks, TimeForm, read_micros, read_times

TIMES = pa.timestamp("us", "UTC")
VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types of Arrow that have few functions, and what says the same."""
NO_TIMES = "time must be timestamps, ISO 8601 text, or numbers where time_unit is given"


def batches_of(frame: Any) -> Iterator[pa.RecordBatch]:
    """Give the batches of a frame.

    Raises:
        BrokenRuleError: Arrow cannot take it; no value of it is quoted.
    """
    if isinstance(frame, pa.RecordBatch):
        yield frame
        return
    try:
        table = pa.table(frame)
    except Exception:  # each library has its own errors, and they quote values
        raise BrokenRuleError("event", TYPE, "frame must have columns of one type each") from None
    yield from table.to_batches()


class Named(NamedTuple):
    """What a batch says: events in the columns that all transforms read, the first rule each other row breaks, and how
    many rows do not pass the filter."""

    events: pa.RecordBatch
    broken: dict[int, BrokenRuleError]
    filtered: int


def read_named(
    batch: pa.RecordBatch, contents: Mapping[str, str | tuple[str, ...]], times: TimeForm, where: Filter | None
) -> Named:
    """Read columns by their names. What a person, an item or a value is, is checked further on.

    Args:
        batch: of any columns.
        contents: field by what it contains: user, item, time, value; several fields for an item of them all.
        times: how text and numbers are times.
        where: the condition that rows must meet.

    Raises:
        BrokenRuleError: a column is missing, stands twice, is damaged, or is of a type that cannot be what it is to be.
    """
    broken: dict[int, BrokenRuleError] = {}
    passing = np.ones(batch.num_rows, np.bool_)
    if where is not None:
        passing, marks = _passing(batch, where)
        _note(broken, marks, passing | True)
        passing[list(broken)] = False
    filtered = int(np.count_nonzero(~passing)) - len(broken)
    columns = {}
    for content, field in contents.items():
        columns[content], marks = _column_of(batch, content, field, times)
        _note(broken, marks, passing)
    events = pa.RecordBatch.from_pydict(columns)
    kept = passing.copy()
    kept[list(broken)] = False
    return Named(events if kept.all() else events.filter(pa.array(kept)), dict(sorted(broken.items())), filtered)


def pieces(batch: pa.RecordBatch, item: str | tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
    """Cut a batch whose items are of several columns such that none of their texts together are too much."""
    names = item if isinstance(item, tuple) else ()
    return cut_by_text(batch, [name for name in names if batch.schema.names.count(name) == 1])


def _note(broken: dict[int, BrokenRuleError], marks: Marks, counted: np.ndarray) -> None:
    """Note the first rule that each row breaks which counts."""
    for mask, rule in marks:
        for row in np.flatnonzero(mask & counted).tolist():
            broken.setdefault(row, rule)


def _passing(batch: pa.RecordBatch, where: Filter) -> tuple[np.ndarray, Marks]:
    """Tell which rows pass a filter, and which break a rule of it; a field that is missing has no value."""
    columns, found = {}, []
    for name, kind in where.kinds.items():
        given = pa.nulls(batch.num_rows) if name not in batch.schema.names else _only(batch, name)
        columns[name], marks = column_of_kind(name, kind, unchecked_text(given))
        found += marks
    return where.passes(columns, batch.num_rows).copy(), found


def _column_of(
    batch: pa.RecordBatch, content: str, field: str | tuple[str, ...], times: TimeForm
) -> tuple[pa.Array, Marks]:
    """Read one column, or several that are an item together."""
    if isinstance(field, tuple):
        parts, marks = [], []
        for name in field:
            column = _only(batch, name)
            check_kind("item", column.type)
            texts, found = text_column("item", column)
            parts.append(pc.fill_null(texts, ""))
            marks += found
        return join_columns(parts), marks
    column = _only(batch, field)
    if content != "time":
        return column, []
    try:
        micros, marks = read_times(unchecked_text(column), times)
    except ValueError:  # of the type, whatever the values are
        raise BrokenRuleError("time", TYPE, NO_TIMES) from None
    return pa.array(micros).cast(TIMES), marks


def _only(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the one column of a name."""
    count = batch.schema.names.count(name)
    if count != 1:
        rule = "a column" if not count else "one column"
        raise BrokenRuleError("event", MISSING if not count else TYPE, f"events must have {rule} {name}")
    column = batch.column(batch.schema.get_field_index(name))
    if pa.types.is_run_end_encoded(column.type):
        raise BrokenRuleError("event", TYPE, f"column {name} must not be run-end encoded")
    return column.cast(VIEWS.get(column.type, column.type))


class Event(NamedTuple):
    """What a row says: who, what, when (a Timestamp), and a number; None for what is not read."""

    user: Any
    item: Any
    time: Any
    value: Any


class ReadRows(beam.DoFn):
    """Turn rows into events, and frames into batches of the columns that events have.

    Those without a usable time become dead letters, other rules are checked further on.

    Args:
        time_field: the field with the time, or None for the timestamp of the row itself.
        timed: whether the time is read at all.
        user_field, item_field, value_field, time_unit, time_zone, where: as for `with_fields`; None is not read.
    """

    def __init__(
        self,
        *,
        user_field: str | None,
        item_field: str | tuple[str, ...] | None,
        time_field: str | None,
        value_field: str | None,
        time_unit: str | None,
        time_zone: str | None = None,
        timed: bool = True,
        where: Filter | None = None,
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.value_field = value_field
        self.times, self.timed = TimeForm(unit=time_unit, zone=time_zone), timed
        self.where = where
        self.filtered = Metrics.counter("privstream", "events_filtered")

    @property
    def needs_stamps(self) -> bool:
        """Whether the time of a row is its timestamp."""
        return self.timed and self.time_field is None

    def _item(self, row: Any) -> Any:
        """Return the item of a row; of several columns, one text for them."""
        if not isinstance(self.item_field, tuple):
            return _read(row, self.item_field)
        return join_item([read_text("item", _read(row, name)) for name in self.item_field])

    def _passes(self, row: Any) -> bool:
        """Tell whether a row passes the filter; a field that it has not has no value."""
        where = self.where
        return where is None or where.accepts({name: _read(row, name, None) for name in where.kinds})

    def process(self, row: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Read one row, or the rows of a frame."""
        if is_frame(row):
            yield from self._read_frame(row)
            return
        fields = (self.user_field, self.time_field, self.value_field)
        try:
            if not self._passes(row):
                LOG.read(1)
                self.filtered.inc()
                return
            item = self._item(row)
            user, time, value = (_read(row, field) for field in fields)
            micros = 0
            if self.time_field is not None:
                micros = read_micros("time", time, self.times)
            elif self.timed:
                micros = stamped(timestamp)
        except Exception as error:
            LOG.read(1)  # the others are counted where they are gathered
            yield set_aside(broken_by(error, "row"), _as_json(row), "row")
            return
        yield Event(user, item, Timestamp(micros=micros), value)

    def _read_frame(self, frame: Any) -> Iterator[Any]:
        """Read the rows of a frame, whose columns are checked before any row of them is used."""
        try:
            for batch in batches_of(frame):
                read_named(batch.slice(0, 0), self._contents(), self.times, self.where)
                for piece in pieces(batch, self.item_field):
                    yield from self._read_piece(piece)
        except BrokenRuleError as error:
            rows = len(frame) if isinstance(frame, Sized) else 1
            LOG.read(rows)
            LOG.more(str(error), max(0, rows - 1))
            yield set_aside(error, f"{rows:,} rows", "row", number=rows)

    def _read_piece(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Read rows that are not too much text."""
        found = read_named(batch, self._contents(), self.times, self.where)
        LOG.read(len(found.broken) + found.filtered)
        self.filtered.inc(found.filtered)
        for rule, record in zip(found.broken.values(), row_records(batch, list(found.broken)), strict=True):
            yield set_aside(rule, record, "row")
        if found.events.num_rows:
            yield found.events

    def _contents(self) -> dict[str, str | tuple[str, ...]]:
        """Return the columns that are read, by what they contain.

        Raises:
            BrokenRuleError: the time of each row is read, and is in no column.
        """
        if self.needs_stamps:
            raise BrokenRuleError("time", MISSING, NO_STAMPS)
        fields = {"user": self.user_field, "item": self.item_field, "time": self.time_field, "value": self.value_field}
        return {content: field for content, field in fields.items() if field is not None}


def _read(row: Any, field: str | None, *default: None) -> Any:
    """Return what a field contains; None for a field that is not read, and the default if the row has none."""
    if field is None:
        return None
    try:
        return row[field] if isinstance(row, Mapping) else getattr(row, field)
    except (KeyError, AttributeError):
        if default:
            return None
        raise BrokenRuleError("row", MISSING, f"row must have a field {field}") from None


def _as_json(row: Any) -> str:
    """Return a row as JSON, whatever it contains."""
    try:
        return json.dumps(row if isinstance(row, Mapping) else row._asdict(), default=str)
    except Exception:  # it may hold anything, and what cannot be shown must not end the run
        return text_of(row)
