"""Files of rows: what their columns are, how they are written in each format, and how they come back."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any, BinaryIO, TypeAlias, get_args

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.mechanisms.views.tables import in_micros
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.locations import WRITTEN
from privstream.pipelines.stores import imported, opened, whole_file
from privstream.pipelines.terminal import json_text
from privstream.transforms.reading.domain import join_columns, split_item
from privstream.transforms.reading.fields import EPOCH
from privstream.transforms.row_types import Time, number_of, types_of
from privstream.transforms.timing.steps import MILLISECOND, timestamp

COMPLETE = "outputs_complete"
"""Counter of complete outputs: a run without it has no counters at all."""

CHUNK_ROWS = 1 << 14
OPTIONAL_NUMBERS = ((int, type(None)), (float, type(None)))
ITEM_FIELDS = ("item", "category")  # the fields of rows that have an item
TAKEN = ("run_id", "row_key")  # columns that destinations add
DIGITS = 12  # of a number as text: what binary fractions add is dropped
MOST_ROWS = 5_000_000  # rows that are read from a file at once: a small compressed file may have any number
COMMA = ","

MOMENT = pa.timestamp("us", "UTC")
ARROW_TYPES: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    Time: MOMENT,
}
MOMENT_OF_AVRO = {"type": "long", "logicalType": "timestamp-micros"}
AVRO_TYPES: dict[Any, Any] = {pa.string(): "string", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean"}


@dataclass(frozen=True)
class Layout:
    """How rows are written for people: as the input is."""

    zone: str = "UTC"  # of times in CSV and XLSX, which say how far they are from UTC, and in Parquet, which names it
    delimiter: str = COMMA  # between the cells of CSV
    decimal: str = "."  # what stands before decimals in CSV

    @classmethod
    def of(cls, zone: str | None, delimiter: str | None, decimal: str | None) -> Layout:
        """Return the layout of options, as far as they are given; a decimal comma alone means semicolons."""
        return cls(zone or "UTC", delimiter or (";" if decimal == COMMA else COMMA), decimal or ".")

    def time(self, micros: int) -> str:
        """Write a time with its distance from UTC."""
        local = Clocks(self.zone).local(micros).isoformat()
        return local.replace("+00:00", "Z") if self.zone == "UTC" else local

    def cell(self, value: Any) -> str:
        """Write a text as it is or in quotes, no number as nothing, anything else as in JSON."""
        if value is None:
            return ""
        text = value if isinstance(value, str) else json_text(value)
        if isinstance(value, float):
            text = text.replace(".", self.decimal)
        quoted = rf'["\r\n{re.escape(self.delimiter)}]|^$|^\s|\s$'  # also a carriage return, unlike `csv`
        return '"' + text.replace('"', '""') + '"' if re.search(quoted, text) else text


PLAIN = Layout()


def plain_number(value: Any) -> Any:
    """Return a number without what binary fractions add; whole ones are written without a fraction."""
    if not isinstance(value, float):
        return value
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() and abs(number) < 10**DIGITS else number


def arrow_schema(fields: Mapping[str, type], layout: Layout = PLAIN, optional: Container[str] = ()) -> pa.Schema:
    """Return fields and their types as Arrow has them; those that may have no number have nulls."""
    types = ARROW_TYPES | {Time: pa.timestamp("us", layout.zone)}
    return pa.schema([pa.field(name, types[kind], nullable=name in optional) for name, kind in fields.items()])


Rows: TypeAlias = Iterable[Any] | pa.Table
"""NamedTuples; or a table of their fields with times in microseconds since 1970."""


@dataclass(frozen=True)
class Shape:
    """How rows of a type are written."""

    fields: dict[str, type]  # of a row: `Time` for times, the type of the number where there may be none
    item: str | None  # the field with the item
    parts: tuple[str, ...]  # columns that are written in place of it; none where it is one column
    columns: dict[str, type]  # that are written
    schema: pa.Schema  # the same as Arrow has it; fields that may have no number are nullable
    plain: pa.Schema  # the fields as Arrow has them, times as microseconds since 1970
    layout: Layout  # for people

    def values(self, row: Any) -> tuple[Any, ...]:
        """Return the values of a row, by column."""
        if not self.parts:
            return tuple(row)
        place = [*self.fields].index(str(self.item))
        return (*row[:place], *split_item(row[place], len(self.parts)), *row[place + 1 :])

    def split(self, plain: pa.Table) -> pa.Table:
        """Return a table of the fields with the several columns of the item in its place."""
        texts = [split_item(each, len(self.parts)) for each in plain[str(self.item)].to_pylist()]
        columns = dict(zip(plain.column_names, plain.columns, strict=True))
        columns |= {name: pa.array([each[at] for each in texts], pa.string()) for at, name in enumerate(self.parts)}
        return pa.table(columns)


def plain_table(row_type: Any, rows: Iterable[Any]) -> pa.Table:
    """Return rows as a table of their fields, with times in microseconds."""
    shape = shape_of(row_type)
    columns = zip(*rows, strict=True)
    arrays = [_column(kind, values) for kind, values in zip(shape.fields.values(), columns, strict=False)]
    return pa.table(arrays, schema=shape.plain) if arrays else shape.plain.empty_table()


def _column(kind: type, values: Sequence[Any]) -> pa.Array:
    """Return values of a field as a column; of text that no file may have, as of dead letters, what it is escaped."""
    if kind is Time:
        return pa.array([value.micros for value in values], pa.int64())
    try:
        return pa.array(values, ARROW_TYPES[kind])
    except UnicodeEncodeError:
        return pa.array([value.encode("utf-8", "backslashreplace") for value in values]).cast(pa.string())


@cache
def shape_of(row_type: Any) -> Shape:
    """Return how rows of a NamedTuple are written."""
    hints = {name: (hint, get_args(hint)) for name, hint in types_of(row_type).items()}
    optional = {name for name, (_, kinds) in hints.items() if kinds in OPTIONAL_NUMBERS}
    fields = {name: kinds[0] if name in optional else hint for name, (hint, kinds) in hints.items()}
    item = next((name for name in ITEM_FIELDS if name in fields), None)
    parts, layout = getattr(row_type, "item_columns", ()), getattr(row_type, "layout", PLAIN)
    columns = {column: kind for name, kind in fields.items() for column in (parts if name == item else ()) or (name,)}
    schema, plain = arrow_schema(columns, layout, optional), arrow_schema(fields, PLAIN, optional)
    return Shape(fields, item, parts, columns, schema, in_micros(plain.empty_table()).schema, layout)


def with_item_columns(row_type: type, names: Sequence[str], layout: Layout = PLAIN) -> type:
    """Return a type of the same rows that are written with the columns of an item in place of the item.

    Where there is but one column, or rows have no item, the type stays.
    """
    shape = shape_of(row_type)
    names = () if shape.item is None or len(names) < 2 else tuple(names)
    if not names and layout == PLAIN:
        return row_type
    for name in names:
        if name != shape.item and name in (*shape.fields, *TAKEN):
            raise ValueError(f"item must not name `{name}`, which is another column of the rows: rename that one")
    return type(row_type.__name__, (row_type,), {"__slots__": (), "item_columns": names, "layout": layout})


def output_format(path: str, option: str = "--output") -> str:
    """Return the format to write: what the path ends in."""
    ending = path.rpartition(".")[2].lower()
    if ending not in WRITTEN:
        raise ValueError(f"{option} must end in {', '.join('.' + known for known in WRITTEN)}, got {path}")
    if ending == "xlsx":
        imported("openpyxl", "xlsx", f"{option} of .xlsx")
    return ending


def write_row_file(path: str, row_type: type, rows: Rows) -> None:
    """Write rows as one file, whole or not at all."""
    table = rows if isinstance(rows, pa.Table) else plain_table(row_type, rows)
    with whole_file(path) as stream:
        write_rows(stream, row_type, [table], output_format(path))


def write_rows(stream: BinaryIO, row_type: type, plain: Iterable[pa.Table], format: str) -> None:
    """Write tables of fields, with times in microseconds, into an open file, some thousands of rows at a time."""
    shape = shape_of(row_type)
    pieces = (each.slice(first, CHUNK_ROWS) for each in plain for first in range(0, each.num_rows, CHUNK_ROWS))
    if shape.parts:
        pieces = (shape.split(piece) for piece in pieces)
    tables = (piece.select(shape.schema.names).cast(shape.schema) for piece in pieces)
    write_tables(stream, row_type.__name__, shape.schema, tables, format, shape.layout)


def key_of(order: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of an order of rows that no two rows have in common: all but the falling numbers."""
    return tuple(name for name in order if not name.startswith("-"))


def sort_table(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """Sort a table by fields, `-` before a name for falling numbers; rows without a number follow those with one.

    In the place of an item there may be its columns.
    """
    names, by = table.column_names, list[tuple[str, str]]()
    for field in order:
        name = field.removeprefix("-")
        parts = [name] if name in names else [each for each in names if pa.types.is_string(table[each].type)]
        by += [(each, "descending" if name != field else "ascending") for each in parts]
    return table.take(pc.sort_indices(table, sort_keys=by)) if by else table


def read_table(path: str, row_type: Any) -> pa.Table:
    """Return the rows of a file that `write_row_file` wrote, with the columns of an item, times as timestamps in UTC.

    Raises:
        ValueError, TypeError: it has not all of their columns or too many rows, a value has another type, or its last
            line has no end: it was cut short.
    """
    shape, format = shape_of(row_type), output_format(path, "path")
    with opened(path) as stream:
        stored = read_columns(stream, format, next(iter(shape.fields)))
    stored = stored or dict.fromkeys(shape.fields, ())  # JSON lines without any
    columns, optional = dict[str, Any](), [each.name for each in shape.schema if each.nullable]
    for place, (field, kind) in enumerate(shape.fields.items()):
        parts = [field]
        if field == shape.item:
            parts = [*takewhile(lambda name: name == shape.item or name not in shape.fields, [*stored][place:])]
        for name in parts if len(parts) > 1 else [field]:
            if name not in stored:
                raise ValueError(f"rows must have a column {name}")
            columns[name] = restored(stored[name], ARROW_TYPES[kind], format)
            if columns[name].null_count and name not in optional:
                raise TypeError(f"column {name} must have a value in each row")
    return pa.table(columns)


def read_plain(path: str, row_type: Any) -> pa.Table:
    """Return the rows of a file as a table of their fields, with times in microseconds."""
    shape, table = shape_of(row_type), in_micros(read_table(path, row_type))
    columns = dict(zip(table.column_names, table.columns, strict=True))
    parts = [columns[name] for name in columns if name == shape.item or name not in shape.fields]
    if len(parts) > 1:
        columns[str(shape.item)] = join_columns([part.combine_chunks() for part in parts])
    return pa.table([columns[name] for name in shape.fields], schema=shape.plain)


def read_row_file(path: str, row_type: Any) -> list[Any]:
    """Return the rows of a file, whose times are those of Beam."""
    table, times = read_plain(path, row_type), cache(timestamp)  # the same ones come again and again
    columns = (
        map(times, table[name].to_pylist()) if kind is Time else table[name].to_pylist()
        for name, kind in shape_of(row_type).fields.items()
    )
    return [*map(row_type, *columns)]


def read_rows(option: str, path: str, row_type: Any) -> pa.Table:
    """Read a file of rows as `read_table` does; what is wrong with it is a ValueError that names it."""
    output_format(path, option)
    try:
        return read_table(path, row_type)
    except OSError as error:
        raise ValueError(f"{option} must be a readable file, got {path}: {error.strerror}") from None
    except Exception as error:  # each format has its own errors
        rule = f"{option} must have {row_type.__name__} rows that privstream wrote"
        raise ValueError(f"{rule}, got {path} ({type(error).__name__})") from None


def write_tables(
    stream: BinaryIO, name: str, schema: pa.Schema, tables: Iterable[pa.Table], format: str, layout: Layout = PLAIN
) -> None:
    """Write pieces of a table, whose rows have a name, into an open file; equal rows give equal bytes.

    But for workbooks, which have the time at which they were written.
    """
    if format == "avro":
        _write_avro(stream, name, schema, tables)
    elif format == "parquet":
        with pq.ParquetWriter(stream, schema) as writer:
            for table in tables:
                writer.write_table(table)
    elif format == "xlsx":
        _write_xlsx(stream, schema, tables, layout)
    else:
        _write_text(stream, schema, tables, layout if format == "csv" else None)


def _write_avro(stream: BinaryIO, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    fields = []
    for each in schema:
        type = AVRO_TYPES.get(each.type, MOMENT_OF_AVRO)
        fields.append({"name": each.name, "type": ["null", type] if each.nullable else type})
    described = {"type": "record", "name": name, "namespace": "privstream", "fields": fields}
    marker = blake2b(json.dumps(described).encode(), digest_size=16).digest()  # a random one is the custom
    records = (record for table in tables for record in in_micros(table).to_pylist())
    fastavro.writer(stream, described, records, codec="deflate", sync_marker=marker)


def _write_text(stream: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table], layout: Layout | None) -> None:
    """Write a line for each row: an object with times in UTC; or, with a layout, cells of CSV below a header."""
    cell: Callable[[Any], str] = json_text
    if layout is None:
        line = "{" + ", ".join(f"{json_text(name).replace('%', '%%')}: %s" for name in schema.names) + "}\n"
    else:
        line, cell = layout.delimiter.join(["%s"] * len(schema)) + "\n", layout.cell
        stream.write((line % (*map(cell, schema.names),)).encode())
    for table in tables:
        texts = [_mapped(column, layout or PLAIN, cell) for column in table.columns]
        stream.write("".join([line % row for row in zip(*texts, strict=True)]).encode())


def _mapped(column: pa.ChunkedArray, layout: Layout, cell: Callable[[Any], Any]) -> list[Any]:
    """Return what is written for the values of a column, made once for those that are the same."""
    say: Callable[[Any], Any] = plain_number
    if pa.types.is_timestamp(column.type):
        column, say = column.cast(pa.int64()), layout.time
    found = column.combine_chunks().dictionary_encode("encode")  # by bits: 0.0 and -0.0 are two values
    different = [cell(say(value)) for value in found.dictionary.to_pylist()]
    return [different[place] for place in found.indices.to_pylist()]


def json_objects(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON says them: times are ISO 8601 in UTC, numbers without what binary fractions add."""
    columns = [_mapped(column, PLAIN, lambda value: value) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


SHEET_ROWS, LONGEST_CELL = 1_000_000, 32_767  # more rows go into further sheets
HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
"""What XML has no room for, and what looks like one that is written out."""

SHOWN = re.compile(r"_x([0-9A-Fa-f]{4})_")
CLOCK = 'yyyy-mm-dd hh:mm:ss "{}"'
"""How a time is shown: a date of Excel has no zone, so its form says how far it is from UTC."""


def _write_xlsx(stream: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table], layout: Layout) -> None:
    """Write a workbook whose times are dates by the clocks of the layout; no text of it is a formula."""
    library, clocks = importlib.import_module("openpyxl"), Clocks(layout.zone)
    book = library.Workbook(write_only=True)

    def cell(value: Any, *, is_time: bool = False) -> Any:
        made = library.cell.WriteOnlyCell(sheet)
        if is_time:
            local = clocks.local(value)
            made.value, made.number_format = local.replace(tzinfo=None), CLOCK.format(local.isoformat()[-6:])
        elif isinstance(value, str):
            made.value = HIDDEN.sub(lambda found: f"_x{ord(found[0]):04X}_", value)[:LONGEST_CELL]
            made.data_type = "s"  # also where it begins with an equals sign
        else:
            made.value = plain_number(value)
        return made

    times = [pa.types.is_timestamp(type) for type in schema.types]
    table = in_micros(pa.concat_tables([schema.empty_table(), *tables]))
    for first in range(0, table.num_rows or 1, SHEET_ROWS):
        sheet = book.create_sheet()
        sheet.append([cell(name) for name in schema.names])
        for row in zip(*table.slice(first, SHEET_ROWS).to_pydict().values(), strict=True):
            sheet.append([cell(value, is_time=is_time) for value, is_time in zip(row, times, strict=True)])
    book.save(stream)


def read_columns(stream: BinaryIO, format: str, first: str) -> dict[str, Any]:
    """Read the columns that `write_tables` wrote; the first one is called `first`.

    Raises:
        ValueError: there are too many rows; or the last line has no end: the file was cut short.
    """
    names: Iterable[str]
    rows: Iterator[Any]
    if format == "parquet":
        file = pq.ParquetFile(stream)
        _check_number(file.metadata.num_rows)
        table = file.read()
        return dict(zip(table.column_names, table.columns, strict=True))
    if format == "avro":
        reader: Any = fastavro.reader(stream)
        names, rows = [each["name"] for each in reader.writer_schema["fields"]], map(dict.values, reader)
    elif format == "xlsx":
        names = next(rows := _rows_of(stream))
    else:
        data = stream.read()
        if not data.endswith(b"\n") and (data or format == "csv"):
            raise ValueError("the last line must have its end: the file was cut short, or is being written")
        if format == "jsonl":
            objects = [json.loads(line) for line in data.split(b"\n")[:-1]]
            names = [*objects[0]] if objects else []
            rows = ([row[name] for name in names] for row in objects)
        else:
            text = data.decode()
            found = re.match(rf'"?{re.escape(first)}"?(.)', text)  # what follows the first name
            delimiter = found[1] if found else COMMA
            names = next(rows := csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    some = [*islice(rows, MOST_ROWS + 1)]
    _check_number(len(some))
    return dict(zip(names, zip(*some, strict=True), strict=True)) if some else dict.fromkeys(names, ())


def _check_number(rows: int) -> None:
    if rows > MOST_ROWS:
        raise ValueError(f"rows must be at most {MOST_ROWS:,} in a file that is read whole")


def _rows_of(stream: BinaryIO) -> Iterator[list[Any]]:
    book = importlib.import_module("openpyxl").load_workbook(io.BytesIO(stream.read()), read_only=True)
    for number, sheet in enumerate(book.worksheets):
        for row in islice(sheet.iter_rows(), int(number > 0), None):
            yield [_of_cell(cell) for cell in row]


def _of_cell(cell: Any) -> Any:
    if isinstance(cell.value, str):
        return SHOWN.sub(lambda found: chr(int(found[1], 16)), cell.value)
    if isinstance(cell.value, datetime):
        offset = datetime.strptime(cell.number_format[-7:-1], "%z").tzinfo
        micros = (cell.value.replace(tzinfo=offset) - EPOCH) // timedelta(microseconds=1)
        return EPOCH + timedelta(microseconds=round(micros / MILLISECOND) * MILLISECOND)  # days have fractions there
    return cell.value


def restored(values: Any, kind: pa.DataType, format: str) -> Any:
    """Give a column back its type, which CSV does not have, nor JSON for times."""
    if isinstance(values, pa.ChunkedArray):
        return values.cast(kind)
    if kind == pa.string():
        return pa.array([value or "" for value in values] if format == "xlsx" else values, kind)
    if format == "csv":  # no number has a comma but before its decimals
        values = [value.replace(",", ".") or None for value in values]
    if format == "csv" or (format == "jsonl" and kind == MOMENT):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


WIDE_FORMATS = ("csv", "xlsx", "parquet")
LABELS = ("query", "quantile", "low", "high")  # fields that tell apart what is followed over windows, besides the item


def check_wide(path: str, row_type: type, *, unbounded: bool) -> None:
    """Check before a run that its rows can be written so."""
    if unbounded or path.rpartition(".")[2].lower() not in WIDE_FORMATS:
        known = ", ".join(f".{each}" for each in WIDE_FORMATS)
        raise ValueError(f"wide must be given with a run that ends and an --output of {known}, got {path}")
    fields = shape_of(row_type).fields
    if "window_start" not in fields or not number_of(fields) or {"rule", "state"} & {*fields}:
        raise ValueError(f"wide must be given with rows that have a number in each window, not {row_type.__name__}")


def write_wide(path: str, row_type: type, rows: pa.Table) -> None:
    """Write rows side by side, the largest sum first; a window in which an item has no row is empty.

    Privacy: post-processing.
    """
    shape, plain = shape_of(row_type), in_micros(rows).to_pylist()
    types, clocks = shape.columns, Clocks(shape.layout.zone)
    number, items = number_of(types), shape.parts or ((shape.item,) if shape.item else ())
    names = [name for name in LABELS if any(row.get(name, "") != "" for row in plain)] + [*items]
    starts = sorted({row["window_start"] for row in plain})
    days = clocks.at_midnight(starts)
    heads = [clocks.local(start).date().isoformat() if days else shape.layout.time(start) for start in starts]
    lines: dict[tuple[Any, ...], dict[int, Any]] = {}
    for row in plain:
        lines.setdefault(tuple(row[name] for name in names), {})[row["window_start"]] = row[number]
    largest = sorted(lines.items(), key=lambda line: -sum(filter(None, line[1].values())))
    schema = arrow_schema({name: types[name] for name in names} | dict.fromkeys(heads, types[number]), PLAIN, heads)
    cells = zip(*((*label, *map(line.get, starts)) for label, line in largest), strict=True)
    table = pa.table([*cells], schema=schema) if largest else schema.empty_table()
    with whole_file(path) as stream:
        write_tables(stream, row_type.__name__, schema, [table], output_format(path), shape.layout)
