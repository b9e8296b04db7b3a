"""Reads the first sheet of an Excel workbook: a row with the names of fields, then one event in each row."""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import date, datetime, time, timedelta
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from privstream.pipelines.sources.event_files import (
    PLAIN,
    Damage,
    InputFileError,
    Part,
    RawEvents,
    TextForm,
    describe_row,
    open_file,
)

ROWS = 1 << 14
LOOKED_AT = 100
"""Rows that tell which fields have dates."""

LARGEST = 4 << 30
"""Bytes of a workbook when it is no longer compressed."""

ERROR = "e"
"""How openpyxl calls the type of a cell with an error, such as #N/A."""

MOMENT = pa.timestamp("us")
"""Dates of Excel have no zone: they are times of the clocks of --time_zone."""


class Record(NamedTuple):
    """A row of the sheet: its number, its values, and whether a cell has an error."""

    number: int
    values: list[Any]
    damaged: bool


def schema(path: str, form: TextForm = PLAIN) -> pa.Schema:
    """Return the names in the first row; a field with a date in one of the first rows has times, others are text."""
    with closing(_rows(path)) as rows:
        names, first = _names(path, rows), list(islice(rows, LOOKED_AT))
    dates = {name for row in first for name, value in zip(names, row.values, strict=False) if isinstance(value, date)}
    return pa.schema([(name, MOMENT if name in dates else pa.string()) for name in names])


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields; rows with more cells than names, or with an error in one of the fields, are reported."""
    with closing(_rows(path)) as rows:
        names = _names(path, rows)
        places = [names.index(name) for name in fields]
        while chunk := list(islice(rows, ROWS)):
            good = []
            for row in chunk:
                beyond = [value for value in row.values[len(names) :] if value is not None]
                padded = [*row.values, *[None] * (len(names) - len(row.values))]
                some = [padded[place] for place in places]
                if beyond:
                    rule = f"row must have no more cells than the {len(names)} with names"
                    yield _damage("malformed_line", rule, row.number, fields, some)
                elif row.damaged and any(isinstance(value, _CellError) for value in some):
                    yield _damage("malformed_cell", "cells must have no error", row.number, fields, some)
                elif any(value is not None for value in padded):
                    good.append(Record(row.number, some, False))
            yield from _alike(good, fields)


def _damage(code: str, rule: str, number: int, fields: Sequence[str], values: Sequence[Any]) -> Damage:
    """Report a row."""
    record = {name: [str(value)] for name, value in zip(fields, values, strict=True)}
    return Damage(code, rule, f"row {number}", describe_row(record)(0))


def _alike(rows: Sequence[Record], fields: Sequence[str]) -> Iterator[RawEvents]:
    """Give rows, cut where a field changes between dates and other values: a column has one of both."""
    dates = [tuple(isinstance(value, date) for value in row.values) for row in rows]
    cuts = [number for number, (one, other) in enumerate(pairwise(dates), start=1) if one != other]
    for first, last in pairwise([0, *cuts, len(rows)]) if rows else ():
        some = rows[first:last]
        columns = {name: [row.values[place] for row in some] for place, name in enumerate(fields)}
        for name, is_date in zip(fields, dates[first], strict=True):
            if is_date:
                columns[name] = pa.array(columns[name], MOMENT)
        numbers = [row.number for row in some]
        yield RawEvents(columns, partial(_position, numbers), describe_row(columns))


def _position(numbers: Sequence[int], row: int) -> str:
    """Say where a record stands."""
    return f"row {numbers[row]}"


class _CellError(str):
    """What a cell shows in place of a value, such as #N/A."""

    __slots__ = ()


def _names(path: str, rows: Iterator[Record]) -> list[str]:
    """Return the names in the first row.

    Raises:
        InputFileError: there are none, or two are equal.
    """
    values = list(next(rows, Record(0, [], False)).values)
    while values and values[-1] is None:
        values.pop()
    if not values or any(value is None for value in values):
        raise InputFileError(f"the first row of {path} must have a name in each column")
    names = [str(value) for value in values]
    if len(set(names)) < len(names):
        raise InputFileError(f"the first row of {path} must have a different name in each column")
    return names


def _rows(path: str) -> Generator[Record]:
    """Give the rows of the first sheet.

    Raises:
        InputFileError: it is no workbook, or too large.
    """
    try:
        openpyxl: Any = importlib.import_module("openpyxl")
    except ImportError:
        raise InputFileError("--input of .xlsx needs an extra: pip install 'privstream[xlsx]'") from None
    with open_file(path) as stream:
        data = io.BytesIO(stream.read())
    rule = f"{path} must be a workbook of Excel (.xlsx) without a password"
    try:
        with zipfile.ZipFile(data) as packed:
            if sum(part.file_size for part in packed.infolist()) > LARGEST:
                raise InputFileError(f"{path} must have at most {LARGEST >> 30} GiB when it is unpacked")
        book = openpyxl.load_workbook(data, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # which may be wrong in the file
        for number, cells in enumerate(sheet.iter_rows(), start=1):
            values = [_value(cell) for cell in cells]
            yield Record(number, values, any(isinstance(value, _CellError) for value in values))
        book.close()
    except InputFileError:
        raise
    except Exception as error:  # each part of such a file has its own, and they may quote cells
        raise InputFileError(f"{rule} ({type(error).__name__})") from None


def _value(cell: Any) -> Any:
    """Return the value of a cell: text, a number, a truth value, a date, or None."""
    value = cell.value
    if cell.data_type == ERROR:
        return _CellError(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time())
    if isinstance(value, time | timedelta):
        return str(value)
    return None if value == "" else value
