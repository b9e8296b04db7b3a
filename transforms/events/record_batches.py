"""Arrow batches of events: one form for the rows that can be used, and which rule each other row breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
from privstream.transforms.events.broken_rule import MISSING, TYPE, BrokenRuleError
from privstream.transforms.events.dead_letters import LONGEST_RECORD
from privstream.transforms.events.event_fields import NUMBER, WHOLE, EventFields
from privstream.transforms.events.text_columns import (
    TEXT_PER_BATCH,
    check_kind,
    checked,
    decoded_lengths,
    list_column,
    number_column,
    text_column,
)
from privstream.transforms.events.times import Marks, micros_column
from privstream.transforms.events.values import value_column

BYTES_SHOWN = 4 * LONGEST_RECORD
ROWS_SHOWN = 3
"""Rows that the dead letter of a whole batch shows."""


def pieces(batch: pa.RecordBatch, fields: EventFields) -> Iterator[pa.RecordBatch]:
    """Cut a batch such that no piece of several rows has more than so much text: a dictionary says much in few bytes.

    Raises:
        BrokenRuleError: a column is damaged.
    """
    found = [decoded_lengths(name, batch[name]) for name in _names(batch, fields)]
    lengths = [column for column in found if column is not None]
    if not lengths:
        yield batch
        return
    ends = np.cumsum(np.sum(lengths, axis=0))
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield batch.slice(first, last - first)
        first = last


def read_batch(batch: pa.RecordBatch, fields: EventFields) -> tuple[pa.RecordBatch, dict[int, BrokenRuleError]]:
    """Return the rows that can be used, in the columns of `EventFields.schema`, and the first rule each other breaks.

    Integers become decimal text, so that the user 5 and the user "5" are one; times become microseconds since 1970
    UTC; without streams all events are in the stream "".

    Raises:
        BrokenRuleError: a column is missing, damaged, or of a type that cannot be what it is to be.
    """
    columns: dict[str, pa.Array] = {}
    broken: dict[int, BrokenRuleError] = {}
    for field in fields.schema():
        columns[field.name], marks = _column(field.name, batch, fields)
        for mask, rule in marks:
            for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                broken.setdefault(row, rule)
    lists = fields.item and pa.types.is_list(columns["item"].type)
    clean = pa.RecordBatch.from_arrays(list(columns.values()), schema=fields.schema(lists=lists))
    if broken:
        kept = np.ones(batch.num_rows, np.bool_)
        kept[list(broken)] = False
        clean = clean.filter(pa.array(kept))
    return clean, dict(sorted(broken.items()))


def _column(name: str, batch: pa.RecordBatch, fields: EventFields) -> tuple[pa.Array, Marks]:
    """Return one column, and which of its rows break a rule."""
    if name not in fields.required and (name == "stream" or name not in batch.schema.names):
        return (pa.repeat("", batch.num_rows) if name == "stream" else _no_times(batch.num_rows)), []
    if name not in batch.schema.names:
        raise BrokenRuleError(name, MISSING, f"events must have a column {name}")
    if batch.schema.names.count(name) > 1:
        raise BrokenRuleError(name, TYPE, f"events must have one column {name}")
    column = batch[name]
    if name == "time":
        micros, marks = micros_column(column)
        return pa.array(micros), marks if fields.timed else [each for each in marks if each[1].code != "time_missing"]
    if name == "value":
        return value_column(column, whole=fields.value == WHOLE)
    if check_kind(name, column.type, lists=name == "item" and fields.lists):
        return list_column(name, column)
    return number_column(name, column) if name == "user" and fields.user == NUMBER else text_column(name, column)


def _names(batch: pa.RecordBatch, fields: EventFields) -> list[str]:
    """Return the columns that may be text."""
    texts = ("user", "item", "stream") + (("value",) if "value" in fields.required else ())
    return [name for name in texts if batch.schema.names.count(name) == 1]


def _no_times(rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, np.int64))


def batch_record(batch: pa.RecordBatch) -> str:
    """Return the first rows of a batch as text, and how many there are."""
    rows = row_records(batch, list(range(min(ROWS_SHOWN, batch.num_rows))))
    return f"{batch.num_rows} rows: {', '.join(rows)}"


def row_records(batch: pa.RecordBatch, rows: list[int]) -> Iterator[str]:
    """Return rows as text, whatever they contain."""
    columns = {name: _showable(batch.column(i)) for i, name in enumerate(batch.schema.names)}
    for row in rows:
        yield repr({name: "damaged" if column is None else _value(column[row]) for name, column in columns.items()})


def _showable(column: pa.Array) -> pa.Array | None:
    """Return a column, with text that is not UTF-8 as bytes; None if reading it might end the process."""
    with suppress(BrokenRuleError):
        return checked("", column)
    return None


def _value(scalar: pa.Scalar) -> object:
    """Return a value for Python: of long text the beginning; times that Python cannot represent as numbers."""
    if isinstance(scalar, pa.DictionaryScalar) and scalar.is_valid:
        return _value(scalar.dictionary[scalar.index.as_py()])
    if isinstance(scalar, pa.BinaryScalar) and scalar.is_valid and len(data := scalar.as_buffer()) > BYTES_SHOWN:
        start = data[:BYTES_SHOWN].to_pybytes()
        return start.decode(errors="ignore") if isinstance(scalar, pa.StringScalar) else start
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    with suppress(pa.ArrowException):
        return scalar.cast(pa.int64()).as_py()
    return f"{scalar.type} that cannot be shown"
