"""From the rows of a file to the batches that the transforms take: what a value is, is decided by their own rules."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.pipelines.sources.event_files import RawEvents
from privstream.pipelines.sources.fields import FieldMapping
from privstream.transforms.events.broken_rule import ENCODING, FINITE, LONG, MISSING, RANGE, TYPE, BrokenRuleError
from privstream.transforms.events.event_columns import (
    LONGEST_TEXT,
    TEXT_PER_BATCH,
    WHOLE_NUMBER,
    decoded_lengths,
    text_column,
    unchecked_text,
    value_column,
    value_of,
)
from privstream.transforms.events.single_events import read_text
from privstream.transforms.events.times import SYNTAX, TIME_TEXT, UNIT, Marks, read_micros, read_times

TIME = pa.timestamp("us", "UTC")
ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
"""Kinds of Python values that may stand together in a column."""


class Refusal(NamedTuple):
    """Why a row cannot be used: a short code for the counter and the rule in words."""

    row: int
    code: str
    reason: str


class Normaliser:
    """Makes wire batches of `user`, `item`, `time` (microseconds, UTC), `stream` and `value`, as far as named."""

    def __init__(self, fields: FieldMapping) -> None:
        self.fields = fields
        self.longest = min(fields.max_item_bytes, LONGEST_TEXT)

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that can be used, and why the others cannot."""
        columns: dict[str, pa.Array] = {}
        refusals: dict[int, Refusal] = {}
        for name, field in self.fields.contents().items():
            columns[name], marks = self._read(name, events.columns[field])
            for mask, rule in marks:
                for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                    refusals.setdefault(row, Refusal(row, rule.code, f"{name} {self._wording(rule.code, name)}"))
        batch = pa.RecordBatch.from_pydict(columns)
        if refusals:
            keep = np.ones(batch.num_rows, bool)
            keep[list(refusals)] = False
            batch = batch.filter(pa.array(keep))
        return batch, [refusals[row] for row in sorted(refusals)]

    def _read(self, name: str, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read one column, at once where its values are of one kind."""
        if name == "time":
            return self._times(values)
        if name == "value":
            return self._values(values)
        column = _of_one_kind(values)
        if column is None or pa.types.is_floating(column.type):
            return _one_by_one(values, pa.string(), self._text_reader(name))
        return text_column(name, unchecked_text(column), self.longest)

    def _times(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the time."""
        unit = self.fields.time_unit
        column = _of_one_kind(values)
        number = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
        if column is None or (number and unit is None):
            return _one_by_one(values, TIME, lambda value: read_micros("time", _text(value), unit))
        times, marks = read_times(unchecked_text(column), unit)
        return pa.array(times).cast(TIME), marks

    def _values(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the value."""
        whole = self.fields.whole
        column = _of_one_kind(values)
        if column is None:
            return _one_by_one(values, pa.float64(), lambda value: value_of(_text(value), whole=whole))
        return value_column(unchecked_text(column), whole=whole)

    def _text_reader(self, name: str) -> Callable[[Any], str]:
        """Return what reads a single user, item or stream."""
        return lambda value: read_text(name, _text(value), longest=self.longest)

    def _wording(self, code: str, name: str) -> str:
        """Say a rule in words."""
        number = f"a number or {TIME_TEXT}" if self.fields.time_unit else TIME_TEXT
        return {
            MISSING: "must be present and not empty",
            TYPE: {"time": "must be a number or text", "value": "must be a number, with a point before decimals"}.get(
                name, "must be text or an integer"
            ),
            ENCODING: "must be valid UTF-8",
            LONG: f"must be at most {self.longest} bytes",
            SYNTAX: f"must be {number}",
            FINITE: "must be finite",
            WHOLE_NUMBER: "must be a whole number",
            RANGE: "must be between 1970-01-01 and 2200-01-01",
            UNIT: "must not be a plain number without --time_unit",
        }[code.removeprefix(f"{name}_")]


def pieces(events: RawEvents) -> Iterator[RawEvents]:
    """Cut rows such that no piece of several has more than so much text: a dictionary says much in few bytes."""
    columns = {name: column for name, column in events.columns.items() if isinstance(column, pa.DictionaryArray)}
    lengths = [decoded_lengths(name, unchecked_text(column)) for name, column in columns.items()]
    known = [length for length in lengths if length is not None]
    if not known:
        yield events
        return
    ends = np.cumsum(np.sum(known, axis=0))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield events.slice(first, last)
        first = last


def _of_one_kind(values: pa.Array | list[Any]) -> pa.Array | None:
    """Return Python values as an Arrow column; None if they are of several kinds, or of one that Arrow cannot hold."""
    if isinstance(values, pa.Array):
        return values
    kinds = set(map(type, values)) - {type(None)}
    with suppress(UnicodeEncodeError, OverflowError):
        for kind, stored in ARROW.items():
            if kinds <= {kind}:
                return pa.array(values, stored)
    return None


def _one_by_one(values: list[Any], kind: pa.DataType, read: Callable[[Any], Any]) -> tuple[pa.Array, Marks]:
    """Read values of several kinds, or with wrong ones among them."""
    found: list[Any] = []
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, value in enumerate(values):
        try:
            found.append(read(value))
        except BrokenRuleError as rule:
            found.append(None)
            broken.setdefault(rule.code, (np.zeros(len(values), bool), rule))[0][row] = True
    return pa.array(found, kind), list(broken.values())


def _text(value: Any) -> Any:
    """Return bytes as text, in which what is no UTF-8 can be told, and nothing for empty text."""
    found = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    return None if isinstance(found, str) and not found else found
