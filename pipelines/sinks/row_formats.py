"""The formats of files of rows: what each writes for a value, and how its values come back."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, BinaryIO, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.terminal import json_text
from privstream.transforms.row_types import Time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = 1_000
DIGITS = 12
"""So many digits of a number are written as text: what binary fractions add is left out."""

MOST_ROWS = 5_000_000
"""Rows that are read from a file at once."""

COMMA, SEMICOLON = ",", ";"

ARROW_TYPES: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    Time: pa.timestamp("us", "UTC"),
}

AVRO_TYPES: dict[type, Any] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    Time: {"type": "long", "logicalType": "timestamp-micros"},
}

Column: TypeAlias = pa.Array | tuple[Any, ...]
"""Values of some rows: of a table, or of rows."""

Fields: TypeAlias = dict[str, type]
"""Columns and the types of their values."""


@dataclass(frozen=True)
class Layout:
    """How rows are written for people: as the input is.

    Attributes:
        zone: IANA time zone of the times in CSV and XLSX, which say how far they are from UTC; Parquet names it.
        delimiter: between the cells of CSV.
        decimal: what stands before decimals in CSV.
    """

    zone: str = "UTC"
    delimiter: str = COMMA
    decimal: str = "."

    @classmethod
    def of(cls, zone: str | None, delimiter: str | None, decimal: str | None) -> Layout:
        """Return the layout of options, as far as they are given; a decimal comma alone means semicolons."""
        alone = SEMICOLON if decimal == COMMA else COMMA
        return cls(zone or "UTC", delimiter or alone, decimal or ".")

    def time(self, micros: int) -> str:
        """Write a time with its distance from UTC."""
        return iso_8601(micros) if self.zone == "UTC" else Clocks(self.zone).local(micros).isoformat()


PLAIN = Layout()


def iso_8601(micros: int) -> str:
    """Write a time in UTC."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def arrow_schema(fields: Fields, layout: Layout = PLAIN) -> pa.Schema:
    """Return fields and their types as Arrow has them."""
    types = ARROW_TYPES | {Time: pa.timestamp("us", layout.zone)}
    return pa.schema([(field, types[kind]) for field, kind in fields.items()])


def write_avro(stream: BinaryIO, name: str, fields: Fields, optional: Iterable[str], pieces: Iterator[Any]) -> None:
    """Write an Avro container."""
    types = {field: AVRO_TYPES[kind] for field, kind in fields.items()}
    types |= {field: ["null", types[field]] for field in optional}
    described = [{"name": field, "type": type} for field, type in types.items()]
    schema = {"type": "record", "name": name, "namespace": "privstream", "fields": described}
    marker = blake2b(json.dumps(schema).encode(), digest_size=16).digest()  # a random one is the custom
    plain = ([column if isinstance(column, tuple) else column.to_pylist() for column in piece] for piece in pieces)
    records = (dict(zip(fields, row, strict=True)) for columns in plain for row in zip(*columns, strict=True))
    fastavro.writer(stream, schema, records, codec="deflate", sync_marker=marker)


def write_parquet(stream: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a Parquet file."""
    with pq.ParquetWriter(stream, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def read_parquet(stream: BinaryIO) -> list[dict[str, Any]]:
    """Read what `write_parquet` wrote; times are in UTC, for no clocks of a zone show an hour twice there."""
    file = pq.ParquetFile(stream)
    check_number(file.metadata.num_rows)
    moment = ARROW_TYPES[Time]
    kinds = [moment if pa.types.is_timestamp(field.type) else field.type for field in file.schema_arrow]
    found: list[dict[str, Any]] = (
        file.read().cast(pa.schema(zip(file.schema_arrow.names, kinds, strict=True))).to_pylist()
    )
    return found


def write_json_lines(stream: BinaryIO, fields: Fields, pieces: Iterator[list[Column]]) -> None:
    """Write an object for each row; times are in UTC."""
    cells = [json_text(name).replace("%", "%%") + ": %s" for name in fields]
    line = "{" + ", ".join(cells) + "}\n"
    for columns in pieces:
        texts = [
            _texts(kind, column, json_text, iso_8601) for kind, column in zip(fields.values(), columns, strict=True)
        ]
        stream.write("".join([line % row for row in zip(*texts, strict=True)]).encode())


def write_csv(stream: BinaryIO, fields: Fields, pieces: Iterator[list[Column]], layout: Layout) -> None:
    """Write a header and a line for each row."""
    quoted = re.compile(rf'["\r\n{re.escape(layout.delimiter)}]|^$|^\s|\s$')

    def cell(value: Any) -> str:
        """Write a text as it is or in quotes, no number as nothing, anything else as in JSON."""
        if value is None:
            return ""
        text = value if isinstance(value, str) else json_text(value)
        if isinstance(value, float):
            text = text.replace(".", layout.decimal)
        return '"' + text.replace('"', '""') + '"' if quoted.search(text) else text

    stream.write((layout.delimiter.join(map(cell, fields)) + "\n").encode())
    for columns in pieces:
        pairs = zip(fields.values(), columns, strict=True)
        texts = [_texts(kind, column, cell, layout.time) for kind, column in pairs]
        stream.write("".join([layout.delimiter.join(row) + "\n" for row in zip(*texts, strict=True)]).encode())


def read_csv(stream: BinaryIO, first: str) -> list[dict[str, str]]:
    """Read what `write_csv` wrote: the header, which begins with the field `first`, shows the delimiter."""
    lines = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    header = lines.readline()
    found = re.match(rf'"?{re.escape(first)}"?(.)', header)
    return list(csv.DictReader(chain([header], lines), delimiter=found[1] if found else COMMA, strict=True))


def _texts(kind: type, column: Column, write: Callable[[Any], str], time: Callable[[int], str]) -> list[str]:
    """Return what is written for the values of a column, made once for those that are the same."""
    plain: dict[type, Callable[[Any], Any]] = {Time: time, float: plain_number}
    say = plain.get(kind, lambda value: value)
    if isinstance(column, pa.Array):
        found = column.dictionary_encode("encode")  # by bits: 0.0 and -0.0 are two values
        different = np.array([write(say(value)) for value in found.dictionary.to_pylist()], object)
        texts: list[str] = different[found.indices.to_numpy()].tolist()
        return texts
    shown = [*map(repr, column)]  # which tells 0.0 from -0.0, and 1 from True: these are equal
    made = {text: write(say(value)) for text, value in dict(zip(shown, column, strict=True)).items()}
    return [made[text] for text in shown]


def plain_number(value: float | None) -> float | int | None:
    """Return a number without what binary fractions add; whole ones are written without a fraction."""
    if not isinstance(value, float):
        return value
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() and abs(number) < 10**DIGITS else number


SHEET_ROWS = 1_000_000
"""Rows of a sheet; more go into further ones."""

LONGEST_CELL = 32_767
HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
"""What XML has no room for, and what looks like one that is written out."""

SHOWN = re.compile(r"_x([0-9A-Fa-f]{4})_")
CLOCK = 'yyyy-mm-dd hh:mm:ss "{}"'
"""How a time is shown: a date of Excel has no zone, so its form says how far it is from UTC."""


def openpyxl() -> Any:
    """Import the library of workbooks.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return importlib.import_module("openpyxl")
    except ImportError:
        raise ValueError("--output of .xlsx needs an extra: pip install 'privstream[xlsx]'") from None


def write_xlsx(stream: BinaryIO, fields: Fields, pieces: Iterator[list[Column]], layout: Layout) -> None:
    """Write a workbook whose times are dates by the clocks of the layout; no text of it is a formula."""
    library = openpyxl()
    write_only = importlib.import_module("openpyxl.cell")
    book, number, clocks = library.Workbook(write_only=True), SHEET_ROWS, Clocks(layout.zone)
    sheet: Any = None

    def cell(kind: type, value: Any) -> Any:
        made = write_only.WriteOnlyCell(sheet)
        if kind is Time:
            local = clocks.local(value)
            made.value, made.number_format = local.replace(tzinfo=None), CLOCK.format(local.isoformat()[-6:])
        elif kind is str:
            made.value = HIDDEN.sub(lambda found: f"_x{ord(found[0]):04X}_", value)[:LONGEST_CELL]
            made.data_type = "s"  # also where it begins with an equals sign
        else:
            made.value = plain_number(value)
        return made

    for columns in chain([None], pieces):
        rows = () if columns is None else zip(*(_listed(column) for column in columns), strict=True)
        for row in chain([None] if sheet is None else [], rows):
            if number == SHEET_ROWS:
                sheet, number = book.create_sheet(), 0
                sheet.append([cell(str, name) for name in fields])
            if row is not None:
                sheet.append([cell(kind, value) for kind, value in zip(fields.values(), row, strict=True)])
                number += 1
    book.save(stream)


def read_xlsx(stream: BinaryIO, fields: Fields) -> list[dict[str, Any]]:
    """Read what `write_xlsx` wrote."""
    found: list[dict[str, Any]] = []
    for sheet in openpyxl().load_workbook(io.BytesIO(stream.read()), read_only=True).worksheets:
        rows = sheet.iter_rows()
        names = [str(_of_cell(cell)) for cell in next(rows, ())]
        for row in rows:
            values = dict(zip(names, map(_of_cell, row), strict=False))
            missing = {name: "" if fields.get(name, str) is str else None for name in names if values.get(name) is None}
            found.append(values | missing)
    return found


def _of_cell(cell: Any) -> Any:
    """Return the value of a cell."""
    if isinstance(cell.value, str):
        return SHOWN.sub(lambda found: chr(int(found[1], 16)), cell.value)
    if isinstance(cell.value, datetime):
        offset = datetime.strptime(cell.number_format[-7:-1], "%z").tzinfo
        micros = (cell.value.replace(tzinfo=offset) - EPOCH) // timedelta(microseconds=1)
        return EPOCH + timedelta(microseconds=round(micros / MILLISECOND) * MILLISECOND)  # days have fractions there
    return cell.value


def _listed(column: Column) -> Sequence[Any]:
    """Return the values of a column."""
    return column if isinstance(column, tuple) else column.to_pylist()


def check_end(stream: BinaryIO, kind: str) -> None:
    """Refuse text whose last line has no end, and CSV without a header."""
    size = stream.seek(0, os.SEEK_END)
    if size:
        stream.seek(-1, os.SEEK_END)
    if (not size and kind == "csv") or (size and stream.read(1) != b"\n"):
        raise ValueError("the last line must have its end: the file was cut short, or is being written")
    stream.seek(0)


def table_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Return plain values, row by row, as a table."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(values, type) for values, type in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def tables_of(schema: pa.Schema, rows: Iterator[tuple[Any, ...]], size: int) -> Iterator[pa.Table]:
    """Yield plain values, row by row, as tables of so many rows."""
    while chunk := list(islice(rows, size)):
        yield table_of(schema, chunk)


def restored(value: Any, kind: type, format: str, moment: Callable[[int], Any]) -> Any:
    """Give a value back its type: a time in all formats, anything in CSV."""
    if kind is Time:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment((time - EPOCH) // timedelta(microseconds=1))
    if format == "csv" and kind is not str:
        value = kind(json.loads(value.replace(",", ".")))  # no number has a comma but before its decimals
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"value must be {kind.__name__}, got {type(value).__name__}")
    return value


def check_number(rows: int) -> None:
    """Refuse what would not fit into memory: a small compressed file may have any number of rows."""
    if rows > MOST_ROWS:
        raise ValueError(f"rows must be at most {MOST_ROWS:,} in a file that is read whole")
