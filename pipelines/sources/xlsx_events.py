"""Reads the first sheet of an Excel workbook: a row with the names of fields, then one event in each row."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.formats import PLAIN, Damage, RawEvents, TextForm, UnfitError, numbered
from privstream.pipelines.stores import imported
from privstream.transforms.reading.fields import column_of, describe_row

ROWS = 1 << 14
LARGEST = 4 << 30  # bytes of a workbook when it is no longer compressed
RULE = "must be a workbook of Excel (.xlsx), without a password, that is not damaged"


def schema(stream: BinaryIO, form: TextForm = PLAIN) -> pa.Schema:
    """Return the names in the first row; what is in a cell is known row by row."""
    return pa.schema([(name, pa.string()) for name in _rows(stream)[0]], metadata={NAMES_MAY_BE_DATA: "no header"})


def check(stream: BinaryIO, form: TextForm = PLAIN) -> None:
    """Refuse a workbook with a part or a cell that is damaged."""
    with zipfile.ZipFile(stream) as packed:
        if packed.testzip() is not None:
            raise zipfile.BadZipFile
    stream.seek(0)
    for _ in read(stream, form.names):
        pass


def read(
    stream: BinaryIO, fields: Sequence[str], form: TextForm = PLAIN, group: int = 0
) -> Iterator[RawEvents | Damage]:
    """Read some fields; rows with more cells than names are reported, and empty ones passed over.

    Dates of Excel have no zone: they are times of the clocks of --time-zone.
    """
    names, rows = _rows(stream)
    wanted, lines = [names.index(name) for name in fields], enumerate(rows, start=2)
    while chunk := list(islice(lines, ROWS)):
        good: list[tuple[int, list[Any]]] = []
        for number, values in chunk:
            cells = [*values, *[None] * (len(names) - len(values))]
            some = [cells[place] for place in wanted]
            if any(value is not None for value in cells[len(names) :]):
                rule = f"row must have no more cells than the {len(names)} with names"
                record = describe_row({name: pa.array([str(one)]) for name, one in zip(fields, some, strict=True)})
                yield Damage("malformed_line", rule, f"row {number}", record(0))
            elif any(value is not None for value in cells):
                good.append((number, some))
        if good:
            numbers, texts = zip(*good, strict=True)
            columns = dict(zip(fields, map(column_of, zip(*texts, strict=True)), strict=True))
            yield numbered(columns, "row", numbers)


def _rows(stream: BinaryIO) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the names in the first row, and the values of each further one."""
    try:
        openpyxl = imported("openpyxl", "xlsx", "a workbook")
    except ValueError as error:
        raise UnfitError(str(error)) from None
    data = io.BytesIO(stream.read())
    with zipfile.ZipFile(data) as packed:
        if sum(part.file_size for part in packed.infolist()) > LARGEST:
            raise UnfitError(f"it must have at most {LARGEST >> 30} GiB when it is unpacked")
    sheet = openpyxl.load_workbook(data, read_only=True, data_only=True).worksheets[0]
    sheet.reset_dimensions()  # which may be wrong in the file
    rows = ([_value(cell) for cell in cells] for cells in sheet.iter_rows(values_only=True))
    names = next(rows, [])
    while names and names[-1] is None:
        names.pop()
    if not names or None in names or len(set(map(str, names))) < len(names):
        raise UnfitError("its first row must have a name in each column, and no name twice")
    return list(map(str, names)), rows


def _value(value: Any) -> Any:
    """Return the value of a cell as text, a number, a truth value, a date, or None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time())
    if isinstance(value, time | timedelta):
        return str(value)
    return None if value == "" else value
