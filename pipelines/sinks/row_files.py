"""Files of rows, which appear whole or not at all: how they are named, written, read and compared."""

import glob
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any, BinaryIO, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.views.tables import in_micros
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.locations import WRITTEN
from privstream.pipelines.sinks.row_formats import (
    ARROW_TYPES,
    PLAIN,
    Layout,
    arrow_schema,
    openpyxl,
    read_columns,
    restored,
    write_tables,
)
from privstream.pipelines.stores import (
    check_store,
    delete,
    exists,
    filesystems,
    has_folders,
    join,
    opened,
    scheme_of,
    upload,
)
from privstream.pipelines.terminal import json_text
from privstream.transforms.reading.domain import join_columns, split_item
from privstream.transforms.row_types import Time, types_of
from privstream.transforms.timing.steps import timestamp

PARTIAL = ".partial"
COMPLETE = "outputs_complete"
"""Counter of outputs to which nothing more will come: a run of which it is not known gives no counters at all."""


def check_destination(path: str, option: str = "--output") -> None:
    """Check before a run that a file can be written, and remove what a killed run has left of it."""
    if not path:
        raise ValueError(f"{option} must not be empty")
    if scheme_of(path) is not None:
        check_store(path, option)
    elif os.path.isdir(path):
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    elif not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise ValueError(f"{option} must be in a folder that exists: there is no folder {folder}")
    else:
        for stale in glob.glob(_partial(glob.escape(path), "*")):
            with suppress(OSError):
                os.remove(stale)
    probe = _partial(path, secrets.token_hex(8))
    try:
        with _create(probe, owner_only=True) as stream:
            stream.write(b"\n")
        delete(probe)
    except Exception as error:  # each store has its own
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"{option} must be writable: {path} ({reason})") from None


def check_new(path: str, option: str = "--output") -> None:
    """Refuse a file that is there already."""
    if exists(path):
        raise ValueError(f"{option} must be a new file, but {path} exists; --overwrite replaces it")


@contextmanager
def whole_file(path: str, *, owner_only: bool = False) -> Iterator[BinaryIO]:
    """Write a file under a name of its own in the same folder, and rename it when it is complete.

    If the block fails, a file that was there before stays as it was. An `owner_only` file is, from its first byte on,
    for its owner alone where the file system is that of this machine.
    """
    partial = _partial(path, secrets.token_hex(8))
    try:
        with _create(partial, owner_only) as stream:
            yield stream
            stream.flush()
        move_file(partial, path)
    except BaseException:
        with suppress(OSError):
            delete(partial)
        raise


def write_once(path: str, data: bytes, *, owner_only: bool = False) -> str:
    """Write a file, whole, unless there is one of that name: what was published first stays.

    Returns:
        `written`; or `repeated` if there is one with the same bytes, `refused` if there is one with others.
    """
    if not exists(path):
        partial = _partial(path, secrets.token_hex(8))
        try:
            with _create(partial, owner_only) as stream:
                stream.write(data)
            if scheme_of(path) is not None:
                filesystems().rename([partial], [path])
                return "written"
            with suppress(FileExistsError):  # unlike a rename, it fails if another worker has just been here
                os.link(partial, path)
                return "written"
        finally:
            with suppress(OSError):
                delete(partial)
    with opened(path) as stream:
        return "repeated" if stream.read() == data else "refused"


def write_json(path: str, value: Any) -> None:
    """Write a value as a JSON file, whole or not at all; NaN and infinity are refused."""
    with whole_file(path) as stream:
        stream.write(json_text(value, indent=2).encode() + b"\n")


def fingerprint(path: str) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _create(path: str, owner_only: bool) -> Iterator[BinaryIO]:
    """Open a new file for writing; an `owner_only` one can be read by its owner alone.

    Beyond this machine it is written when the block has ended well: a stream that is closed early would be a whole
    object there.
    """
    if scheme_of(path) is not None:
        with tempfile.TemporaryFile() as stream:
            yield stream
            upload(stream, path)
        return
    mode = 0o600 if owner_only else 0o666
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if owner_only else os.O_TRUNC)
    with open(os.open(path, flags, mode), "wb") as stream:
        yield stream


def _partial(path: str, token: str) -> str:
    folder, name = os.path.split(path) if scheme_of(path) is None else filesystems().split(path)
    return join(folder, f".{name}.{token}{PARTIAL}")


def move_file(partial: str, path: str) -> None:
    """Give a complete file its name, in place of what has that name.

    In a store of objects, such as S3, this copies the object, which is there as a whole or not at all, and overwrites
    at once. Other filesystems refuse to overwrite, and what was there is removed first.
    """
    if scheme_of(path) is None:
        os.replace(partial, path)
        return
    if has_folders(path) and exists(path):
        delete(path)
    filesystems().rename([partial], [path])


CHUNK_ROWS = 1 << 14
OPTIONAL_NUMBERS = ((int, type(None)), (float, type(None)))
ITEM_FIELDS = ("item", "category")  # the fields of rows that have an item
TAKEN = ("run_id", "row_key")  # columns that destinations add

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

    def written(self, plain: pa.Table) -> pa.Table:
        """Return a table of the fields, with times in microseconds, as it is written."""
        columns: dict[str, Any] = dict(zip(plain.column_names, plain.columns, strict=True))
        if self.parts:
            texts = [split_item(each, len(self.parts)) for each in columns[str(self.item)].to_pylist()]
            columns |= {name: pa.array([each[at] for each in texts], pa.string()) for at, name in enumerate(self.parts)}
        return pa.table([columns[each.name].cast(each.type) for each in self.schema], schema=self.schema)


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
    for name, kind in fields.items():
        if kind not in ARROW_TYPES:
            raise TypeError(
                f"field `{name}` of {row_type.__name__} must be str, int, float, bool or Timestamp (a number perhaps "
                f"Optional), got {kind}"
            )
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
        openpyxl()
    return ending


def write_row_file(path: str, row_type: type, rows: Rows, *, owner_only: bool = False) -> None:
    """Write rows as one file, whole or not at all."""
    table, format = rows if isinstance(rows, pa.Table) else plain_table(row_type, rows), output_format(path)
    with whole_file(path, owner_only=owner_only) as stream:
        write_rows(stream, row_type, [table], format)


def write_rows(stream: BinaryIO, row_type: type, plain: Iterable[pa.Table], format: str) -> None:
    """Write tables of fields, with times in microseconds, into an open file, some thousands of rows at a time."""
    shape = shape_of(row_type)
    pieces = (each.slice(first, CHUNK_ROWS) for each in plain for first in range(0, each.num_rows, CHUNK_ROWS))
    write_tables(stream, row_type.__name__, shape.schema, map(shape.written, pieces), format, shape.layout)


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
    try:
        return read_table(path, row_type)
    except OSError as error:
        raise ValueError(f"{option} must be a readable file, got {path}: {error.strerror}") from None
    except Exception as error:  # each format has its own errors
        if isinstance(error, ValueError) and "must end in" in str(error):
            raise ValueError(str(error).replace("path", option, 1)) from None
        rule = f"{option} must have {row_type.__name__} rows that privstream wrote"
        raise ValueError(f"{rule}, got {path} ({type(error).__name__})") from None


WIDE_FORMATS = ("csv", "xlsx", "parquet")
NUMBERS = ("people", "value", "estimate")  # fields with the number of a row; the first that it has is shown
LABELS = ("query", "quantile", "low", "high")  # fields that tell apart what is followed over windows, beside the item


def check_wide(path: str, row_type: type, *, unbounded: bool) -> None:
    """Check before a run that its rows can be written so."""
    if unbounded or path.rpartition(".")[2].lower() not in WIDE_FORMATS:
        known = ", ".join(f".{each}" for each in WIDE_FORMATS)
        raise ValueError(f"wide must be given with a run that ends and an --output of {known}, got {path}")
    fields = shape_of(row_type).fields
    if "window_start" not in fields or not {*NUMBERS} & {*fields} or {"rule", "state"} & {*fields}:
        raise ValueError(f"wide must be given with rows that have a number in each window, not {row_type.__name__}")


def write_wide(path: str, row_type: type, rows: pa.Table) -> None:
    """Write rows side by side, the largest sum first; a window in which an item has no row is empty.

    Privacy: post-processing.
    """
    shape, plain = shape_of(row_type), in_micros(rows).to_pylist()
    types, clocks = shape.columns, Clocks(shape.layout.zone)
    number = next(name for name in NUMBERS if name in types)
    items = shape.parts or ((shape.item,) if shape.item else ())
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
