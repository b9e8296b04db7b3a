"""Columns as files have them, each parsed once: typed, null where a row breaks a rule, and which rows break which."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.event_files import RawEvents
from privstream.transforms.reading.columns import as_text, is_text, read_text, text_column, value_column, value_of
from privstream.transforms.reading.fields import BrokenRuleError, Marks
from privstream.transforms.reading.kinds import KINDS, NUMBER, TEXT, column_of_kind, read_as, with_nulls, wrong_kind
from privstream.transforms.reading.times import read_micros, read_times

if TYPE_CHECKING:
    from privstream.pipelines.sources.fields import FieldMapping

TIME = pa.timestamp("us", "UTC")
SPACES = " \u00a0\u2009\u202f'\u2019"
BETWEEN = {decimal: f"[{SPACES}{other}]" for decimal, other in ((".", ","), (",", "."))}
"""What may stand between thousands, by what stands before decimals."""

GROUPED = {
    decimal: rf"^[+-]?(([0-9]+|{'|'.join(f'[1-9][0-9]{{0,2}}([{each}][0-9]{{3}})+' for each in SPACES + other)})"
    rf"([{decimal}][0-9]*)?|[{decimal}][0-9]+)([eE][+-]?[0-9]{{1,4}})?$"
    for decimal, other in ((".", ","), (",", "."))
}
NO_NUMBER = "-"
ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
"""Kinds of Python values that may stand together in a column."""

Values = Any  # an Arrow array, or a list


class Parsed(NamedTuple):
    """A typed column, null where a row breaks a rule; and which rows break which, by codes. NaN is no number given."""

    column: pa.Array
    valid: np.ndarray
    marks: list[tuple[np.ndarray, str]]


class RawColumns:
    """The columns of some rows; all that read one read it in the same form."""

    def __init__(self, events: RawEvents) -> None:
        self.columns = events.columns
        self.rows = len(next(iter(events.columns.values())))
        self._parsed: dict[Any, Any] = {}

    def read(self, content: str, field: str, fields: FieldMapping) -> Parsed:
        """Return a field as a user, an item, a time or a value."""
        key = content, field, content == "value" and fields.optional_value
        if key not in self._parsed:
            values = self.columns[field]
            read: Callable[..., tuple[pa.Array, Marks]] = {"time": _times, "value": _values}.get(content, _texts)
            column, marks = read(content, values, fields)
            marks = [(mask, rule) for mask, rule in marks if mask.any()]
            valid = ~np.logical_or.reduce([np.zeros(self.rows, np.bool_), *(mask for mask, _ in marks)])
            if marks:
                column = pc.if_else(pa.array(valid), column, pa.scalar(None, column.type))
            self._parsed[key] = Parsed(column, valid, [(mask, rule.code) for mask, rule in marks])
        parsed: Parsed = self._parsed[key]
        return parsed

    def of_kind(self, field: str, kind: str | None, fields: FieldMapping) -> tuple[pa.Array, Marks]:
        """Return a field as a condition reads it: null where it has no value, and which rows break a rule."""
        if (field, kind) not in self._parsed:
            self._parsed[field, kind] = _of_kind(field, kind, self.columns[field], fields)
        read: tuple[pa.Array, Marks] = self._parsed[field, kind]
        return read


def _texts(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read users or items."""
    column, spelling = _of_one_kind(values), fields.spelling
    if column is None or pa.types.is_floating(column.type):
        texts, marks = _one_by_one(
            values, pa.string(), lambda value: read_text(content, spelling.value(value), longest=fields.longest)
        )
    else:
        texts, marks = text_column(content, spelling.column(as_text(column)), fields.longest)
    return spelling.texts(content, texts), marks


def _times(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read times."""
    column, spelling, times = _of_one_kind(values), fields.spelling, fields.times
    number = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    if column is None or (number and times.unit is None):
        return _one_by_one(values, TIME, lambda value: read_micros(content, spelling.value(value), times))
    found, marks = read_times(spelling.column(column), times)
    return pa.array(found).cast(TIME), marks


def _values(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read values; NaN where an event has none and needs none."""
    column = _of_one_kind(values)
    if column is None:
        numbers, marks = _one_by_one(values, pa.float64(), lambda value: _number(value, fields))
    else:
        numbers, marks = value_column(_with_points(fields.spelling.column(column), fields.decimal), whole=False)
    if fields.optional_value:
        numbers, marks = with_nulls(numbers, marks)
        numbers = pc.fill_null(numbers, np.nan)
    return numbers, marks


def _of_kind(field: str, kind: str | None, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read what a condition is about."""

    def read(value: Any) -> Any:
        found = fields.spelling.value(value)
        if kind == NUMBER and isinstance(found, str):
            try:
                return _number(found, fields)
            except BrokenRuleError:
                raise wrong_kind(field, NUMBER) from None
        return read_as(field, kind, found)

    column = _of_one_kind(values)
    if column is None or (kind == TEXT and pa.types.is_floating(column.type)):
        return _one_by_one(values, pa.bool_() if kind is None else KINDS[kind], read)
    if kind in (NUMBER, TEXT) or is_text(column.type):
        column = fields.spelling.column(column)
    return column_of_kind(field, kind, _with_points(column, fields.decimal) if kind == NUMBER else column)


def _number(value: Any, fields: FieldMapping) -> float:
    """Read a single value."""
    found = fields.spelling.value(value)
    if isinstance(found, str):
        text = found.encode("utf-8", "replace").decode()  # of what is no text it makes no number
        found = _with_points(pa.array([text], pa.string()), fields.decimal)[0].as_py()
    return value_of(found, whole=False)


def _of_one_kind(values: Values) -> pa.Array | None:
    """Return Python values as an Arrow column; None if they are of several kinds, or of one that Arrow cannot hold."""
    if isinstance(values, pa.Array):
        return values
    kinds = set(map(type, values)) - {type(None)}
    with suppress(UnicodeEncodeError, OverflowError):
        for kind, stored in ARROW.items():
            if kinds <= {kind}:
                return pa.array(values, stored)
    return None


def _one_by_one(values: Values, kind: pa.DataType, read: Callable[[Any], Any]) -> tuple[pa.Array, Marks]:
    """Read values of several kinds, or with wrong ones among them."""
    found: list[Any] = []
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, value in enumerate(values):
        try:
            found.append(read(value))
        except BrokenRuleError as rule:
            found.append(None)
            broken.setdefault(rule.code, (np.zeros(len(values), np.bool_), rule))[0][row] = True
    return pa.array(found, kind), list(broken.values())


def _with_points(column: pa.Array, decimal: str | None) -> pa.Array:
    """Return text that is a number as it is written with a point; other text as one that is no number."""
    if decimal is None or not is_text(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _with_points(column.dictionary, decimal), safe=False)
    if pa.types.is_string_view(column.type):  # Arrow has no such functions for these yet
        column = column.cast(pa.large_string())
    fits = pc.match_substring_regex(column, GROUPED[decimal])
    plain = pc.replace_substring(pc.replace_substring_regex(column, BETWEEN[decimal], ""), decimal, ".")
    return pc.if_else(pc.or_(fits, pc.equal(pc.binary_length(column), 0)), plain, pa.scalar(NO_NUMBER, column.type))
