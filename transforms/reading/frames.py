"""From Arrow batches and frames with fields of any name to checked batches, and what cannot be used of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.counters import counter
from privstream.transforms.reading.domain import join_columns
from privstream.transforms.reading.fields import (
    LONGEST_RECORD,
    MISSING,
    NUMBER,
    TYPE,
    WHOLE,
    BrokenRuleError,
    EventFields,
    Marks,
    broken,
    checked,
    cut_by_text,
    is_text,
    number_column,
    text_column,
    unchecked_text,
    value_column,
)
from privstream.transforms.reading.filters import Filter, column_of_kind
from privstream.transforms.reading.times import TimeForm, read_times

BYTES_SHOWN = 4 * LONGEST_RECORD
ROWS_SHOWN = 3
"""Rows that the dead letter of a whole batch shows."""

NO_STAMPS = "time_field must be given for Arrow batches and frames, whose rows have no timestamps"
VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types of Arrow that have few functions, and what says the same."""

SECONDS_OR_TEXT = TimeForm(unit="s")


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """Where events have what is read of them, as `with_fields` says it.

    Attributes:
        user, value: the names of fields.
        item: of the item; several are one item together.
        time: of the time; None if it is the timestamp of each element.
        stamped: whether a single event without the field `time` has the timestamp of its element as its time.
        times: how text and numbers are times.
        where: the condition that events must meet.
        checked: whether nothing else is needed: see `PrivateTransform.of_checked`.
    """

    user: str = "user"
    item: tuple[str, ...] = ("item",)
    time: str | None = "time"
    value: str = "value"
    stamped: bool = True
    times: TimeForm = SECONDS_OR_TEXT
    where: Filter | None = None
    checked: bool = False


AS_NAMED = FieldNames()


def checked_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `EventFields.schema` of a batch that has been checked by these rules; no time is 1970."""
    nothing = pa.scalar(0, pa.int64())
    columns = [
        batch[field.name].cast(field.type) if field.name in batch.schema.names else pa.repeat(nothing, batch.num_rows)
        for field in schema
    ]
    numbers = [column for column in columns if pa.types.is_floating(column.type)]
    if any(column.null_count for column in columns) or not all(pc.all(pc.is_finite(each)).as_py() for each in numbers):
        raise ValueError("columns that are said to be checked must have no nulls, and finite numbers alone")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Unusable(NamedTuple):
    """Records that break a rule, as text, and how many they are."""

    rule: BrokenRuleError
    record: str
    number: int = 1


class Read(NamedTuple):
    """What has been read of a batch.

    Attributes:
        clean: the rows that can be used, in the columns of `EventFields.schema`.
        refused: the first rule that each other row breaks; rows that do not pass the filter are in neither.
        rows: int64, where the rows of `clean` were.
    """

    clean: pa.RecordBatch
    refused: dict[int, BrokenRuleError]
    rows: np.ndarray


def usable_batches(
    frame: Any, fields: EventFields, names: FieldNames = AS_NAMED
) -> Iterator[pa.RecordBatch | Unusable]:
    """Yield what can be used of a batch or another frame, in the columns of `EventFields.schema`, and what cannot."""
    try:
        batches = [frame] if isinstance(frame, pa.RecordBatch) else pa.table(frame).to_batches()
    except Exception:  # each library has its own errors, and they quote values
        rows = len(frame) if isinstance(frame, Sized) else 1
        rule = BrokenRuleError("event", TYPE, "frame must have columns of one type each")
        yield Unusable(rule, f"{rows:,} rows", rows)
        return
    texts = [names.user, *names.item, *([names.value] if "value" in fields.required else [])]
    for batch in batches:
        pieces = list[pa.RecordBatch]()
        try:
            if batch.num_rows:
                read_batch(batch.slice(0, 0), fields, names)  # the columns, before any row of them is used
                pieces = list(cut_by_text(batch, texts))
        except BrokenRuleError as error:
            yield Unusable(error, _first_rows(batch), batch.num_rows)
        for piece in pieces:
            try:
                clean, refused, _ = read_batch(piece, fields, names)
            except BrokenRuleError as error:
                yield Unusable(error, _first_rows(piece), piece.num_rows)
                continue
            if names.where is not None:
                counter("events_filtered").inc(piece.num_rows - clean.num_rows - len(refused))
            if refused:
                yield from map(Unusable, refused.values(), row_records(piece, list(refused)))
            if clean.num_rows:
                yield clean


def read_batch(
    batch: pa.RecordBatch,
    fields: EventFields,
    names: FieldNames = AS_NAMED,
    broken: Mapping[int, BrokenRuleError] = MappingProxyType({}),
) -> Read:
    """Read a batch: what can be used of it, and which rules the other rows break; `broken` ones are known already.

    Integers become decimal text, so that the user 5 and the user "5" are one; times become microseconds since 1970
    UTC.

    Raises:
        BrokenRuleError: a column is missing, stands twice, is damaged, or of a type that cannot be what it is to be.
    """
    passing, columns, found = np.ones(batch.num_rows, np.bool_), [], Marks()
    if names.where is not None:
        passing, found = _passing(batch, names.where)
    refused = {row: rule for row, rule in broken.items() if passing[row]}
    for field in fields.schema():
        column, marks = _column(field.name, batch, fields, names)
        columns.append(column)
        found += [(mask & passing, rule) for mask, rule in marks]
    for mask, rule in found:
        for row in np.flatnonzero(mask).tolist():
            refused.setdefault(row, rule)
    passing[list(refused)] = False
    clean = pa.RecordBatch.from_arrays(columns, schema=fields.schema())
    clean = clean if passing.all() else clean.filter(pa.array(passing))
    return Read(clean, dict(sorted(refused.items())), np.flatnonzero(passing))


def _passing(batch: pa.RecordBatch, where: Filter) -> tuple[np.ndarray, Marks]:
    """Tell which rows pass a filter, and which break a rule of it; a field that is missing has no value."""
    columns, found = {}, Marks()
    for name, kind in where.kinds.items():
        given = _only(batch, "where", name) if name in batch.schema.names else pa.nulls(batch.num_rows)
        columns[name], marks = column_of_kind(name, kind, unchecked_text(checked("where", given)))
        found += marks
    passing = where.passes(columns, batch.num_rows)
    for mask, _ in found:
        passing &= ~mask
    return passing, found


def _column(content: str, batch: pa.RecordBatch, fields: EventFields, names: FieldNames) -> tuple[pa.Array, Marks]:
    if content == "time":
        if not fields.timed and (names.time is None or names.time not in batch.schema.names):
            return pa.array(np.zeros(batch.num_rows, np.int64)), []
        if names.time is None:
            raise BrokenRuleError("time", MISSING, NO_STAMPS)
        column = unchecked_text(checked(content, _only(batch, content, names.time)))
        micros, marks = read_times(column, names.times)
        return pa.array(micros), marks if fields.timed else [each for each in marks if each[1].code != "time_missing"]
    if content == "value":
        return value_column(_only(batch, content, names.value), whole=fields.value == WHOLE)
    read = number_column if content == "user" and fields.user == NUMBER else text_column
    texts, found = [], Marks()
    for name in names.item if content == "item" else (names.user,):
        column = _only(batch, content, name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (is_text(kind, bytes_too=False) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise broken(content, "text", column.type)
        text, marks = read(content, column)
        texts.append(text)
        found += marks
    return texts[0] if len(texts) == 1 else join_columns([pc.fill_null(text, "") for text in texts]), found


def _only(batch: pa.RecordBatch, content: str, name: str) -> pa.Array:
    count = batch.schema.names.count(name)
    if count != 1:
        rule = "a column" if not count else "one column"
        raise BrokenRuleError(content, MISSING if not count else TYPE, f"events must have {rule} {name}")
    column = batch.column(batch.schema.get_field_index(name))
    return column.cast(VIEWS[column.type]) if column.type in VIEWS else column


def _first_rows(batch: pa.RecordBatch) -> str:
    rows = row_records(batch, list(range(min(ROWS_SHOWN, batch.num_rows))))
    return f"{batch.num_rows} rows: {', '.join(rows)}"


def row_records(batch: pa.RecordBatch, rows: list[int]) -> Iterator[str]:
    """Return rows as text, whatever they contain."""
    columns: dict[str, pa.Array | None] = {}
    for place, name in enumerate(batch.schema.names):
        columns[name] = None  # reading what is damaged might end the process
        with suppress(BrokenRuleError):
            columns[name] = checked("", batch.column(place))
    for row in rows:
        yield repr({name: "damaged" if column is None else _value(column[row]) for name, column in columns.items()})


def _value(scalar: pa.Scalar) -> object:
    """Return a value for Python: of long text the beginning; times that Python cannot represent as numbers."""
    if isinstance(scalar, pa.DictionaryScalar) and scalar.is_valid:
        return _value(scalar.dictionary[scalar.index.as_py()])
    if isinstance(scalar, pa.BinaryScalar) and scalar.is_valid and len(data := scalar.as_buffer()) > BYTES_SHOWN:
        start = data[:BYTES_SHOWN].to_pybytes()
        return start.decode(errors="ignore") if isinstance(scalar, pa.StringScalar) else start
    for shown in (scalar.as_py, lambda: scalar.cast(pa.int64()).as_py()):
        with suppress(ValueError, OverflowError, pa.ArrowException):
            return shown()
    return f"{scalar.type} that cannot be shown"
