"""A frame of events, or what a query of PostgreSQL or DuckDB finds, as a Parquet file that every runner can read."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.pipelines.locations import POSTGRESQL
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields
from privstream.transforms.reading.fields import is_text

FRAMES = "have __arrow_c_stream__, as those of pandas (2.2 or newer), Polars (collected), pyarrow and DuckDB have"
COLUMN = re.compile(r"Conversion failed for column (.+) with type ")
MOST_SECONDS = (1 << 63) // 1000 - 1
ROWS = 1 << 17
"""So many rows are in memory at once, and in a row group of the file."""


def as_table(frame: Any) -> pa.Table:
    """Return a frame as an Arrow table; errors quote no value of it."""
    if not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(f"frame must {FRAMES}, got {type(frame).__name__}")
    try:
        return pa.table(frame)
    except Exception as error:  # each library has its own, and they quote values
        column = COLUMN.match(str(error.args[-1])) if error.args else None
        which = f"column `{column[1]}` is not" if column else "a column is not"
        raise TypeError(f"frame must have columns of one type each: {which} ({type(error).__name__})") from None


def write_events(tables: Iterable[pa.Table], names: Sequence[str], path: str) -> None:
    """Write some columns of tables, at least one, as a new Parquet file, which its owner alone can read.

    The same values in the same order give the same bytes, whatever library the frame is of, however it is cut into
    chunks, and whatever else it has: so the file's fingerprint is that of its contents.
    """
    try:
        plain = (pa.table({name: _plain(table.column(name)) for name in names}) for table in tables)
        first = next(plain)
        with (
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream,
            pq.ParquetWriter(stream, first.schema, store_schema=False) as writer,
        ):
            for table in chain([first], plain):
                writer.write_table(table)
    except pa.ArrowException as error:  # its words quote values
        raise TypeError(f"frame must have columns that Parquet can hold ({type(error).__name__})") from None


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as one chunk, with text written out where it is a dictionary or a view."""
    kind = column.type
    if is_text(kind):
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
        plain = pa.large_string() if text else pa.large_binary()
        if pa.types.is_dictionary(kind):  # Arrow does not cast those of views
            parts = [part.dictionary.cast(plain).take(part.indices) for part in column.chunks]
            column = pa.chunked_array(parts, plain)
        column = column.cast(plain)
    elif pa.types.is_timestamp(kind) and kind.unit == "s":  # Parquet has no seconds; what is too large is no time
        seconds = column.cast(pa.int64())
        fits = pc.and_(pc.less_equal(seconds, MOST_SECONDS), pc.greater_equal(seconds, -MOST_SECONDS))
        column = pc.if_else(fits, seconds, pa.scalar(None, pa.int64())).cast(kind)
    return pa.chunked_array([column.combine_chunks()], column.type)


def save_rows(input: str, query: str, fields: AnyFields, path: str) -> None:
    """Write the columns of a SELECT's rows that are read, in their order, as a Parquet file that its owner alone reads.

    Args:
        input: the database: `postgresql://user@host:port/database`, or a file of DuckDB.
        query: the SELECT.
        fields: which columns are what.
        path: of the file.

    Raises:
        InputFileError: the database cannot be asked, or refuses the query; the message has no value and no password.
        ValueError, TypeError: a column is missing, or is of a type that cannot be used.
    """
    batches = _of_postgresql(input, query) if input.startswith(POSTGRESQL) else _of_duckdb(input, query)
    with closing(batches):
        first = next(batches)
        fields.check(first.schema, "the query")
        write_events(_tables(chain([first], batches)), fields.names, path)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Give the rows of batches in tables of as many rows each, so that the file does not depend on how they came."""
    rest: list[pa.RecordBatch] = []
    for batch in batches:
        rest.append(batch)
        while sum(each.num_rows for each in rest) >= ROWS:
            table = pa.Table.from_batches(rest)
            yield table.slice(0, ROWS)
            rest = table.slice(ROWS).to_batches() or [batch.slice(0, 0)]
    yield pa.Table.from_batches(rest)


def _imported(module: str, extra: str) -> Any:
    """Import what an extra brings."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"--input of a database needs an extra: pip install 'privstream[{extra}]'") from None


def _of_duckdb(path: str, query: str) -> Generator[pa.RecordBatch]:
    """Give the rows of a query; the first batch tells the columns, and has no rows."""
    duckdb = _imported("duckdb", "duckdb")
    if not os.path.isfile(path):
        raise InputFileError(f"--input must be a file of DuckDB that exists, got {path}")
    asked = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.SyntaxException)
    try:
        config = {"autoinstall_known_extensions": "false"}
        with duckdb.connect(path, read_only=True, config=config) as connection:
            statements = duckdb.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InputFileError("query must be one SELECT")
            connection.execute("SET TimeZone = 'UTC'")  # whatever that of this machine is
            reader = connection.sql(query).to_arrow_reader(ROWS)
            yield pa.RecordBatch.from_pylist([], reader.schema)
            yield from reader
    except asked as error:  # about the query, which is public, and not about rows; the first line has no picture of it
        rule = next(iter(str(error).splitlines()), type(error).__name__).strip()
        raise InputFileError(f"query must be one that DuckDB can answer: {rule}") from None
    except duckdb.IOException:
        raise InputFileError(f"--input must be a database that DuckDB can open, got {path}") from None
    except (duckdb.Error, pa.ArrowException) as error:  # their words may quote values
        raise InputFileError(f"query must have an answer in {path}: DuckDB has a {type(error).__name__}") from None


EPOCH = 946_684_800_000_000  # 2000-01-01, from which PostgreSQL counts, in microseconds since 1970
FARTHEST = 1 << 62  # microseconds from 1970 that a time can be away; infinity is further

WHATEVER_ROWS_HAVE = ("08", "25", "53", "57")
"""Classes of errors whose words quote no value."""

ABOUT_THE_QUERY = (*WHATEVER_ROWS_HAVE, "28", "3D", "42")
"""Likewise before rows are reckoned, which may name what does not exist, as in `page::regclass`."""

KINDS: dict[str, tuple[pa.DataType, Callable[[Any], Any] | None]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "name"), (pa.string(), None)),
    **dict.fromkeys(("int2", "int4", "int8"), (pa.int64(), None)),
    **dict.fromkeys(("float4", "float8"), (pa.float64(), None)),
    **{"uuid": (pa.string(), str), "numeric": (pa.float64(), float), "bool": (pa.bool_(), None)},
    **{"timestamp": (pa.timestamp("us"), None), "timestamptz": (pa.timestamp("us", "UTC"), None)},
}
"""Types of columns of PostgreSQL: what they become, and what makes that of a value."""


def _of_postgresql(url: str, query: str) -> Generator[pa.RecordBatch]:
    """Give the rows of a query, which can change nothing, from a cursor of the server; the first may be without rows.

    The password comes from where the driver looks for it: the environment (`PGPASSWORD`), `~/.pgpass`. A time that is
    infinite is none.
    """
    server = _imported("privstream.pipelines.postgresql", "postgresql")
    psycopg = _imported("psycopg", "postgresql")
    where = server.database_of(url, "--input")

    class Micros(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]
        """Reads a time as microseconds since 1970."""

        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> int | None:
            micros = int.from_bytes(data, "big", signed=True) + EPOCH
            return micros if abs(micros) < FARTHEST else None

    rule = "--input must be a database that answers"
    told: tuple[str, ...] = ABOUT_THE_QUERY
    try:
        with server.connect(where) as connection:
            rule, connection.read_only = "query must be one that the database answers", True
            for name in ("timestamp", "timestamptz"):
                connection.adapters.register_loader(name, Micros)
            with connection.cursor("privstream", binary=True) as cursor:
                cursor.execute(query.encode())
                columns, told = _columns(cursor), WHATEVER_ROWS_HAVE
                found = [()] * ROWS
                while len(found) == ROWS:
                    found = cursor.fetchmany(ROWS)
                    yield _batch(columns, found)
    except psycopg.Error as error:
        quoted = error.sqlstate is not None and not error.sqlstate.startswith(told)  # may quote values
        why = f"SQLSTATE {error.sqlstate} ({type(error).__name__})" if quoted else server.reason(error)
        raise InputFileError(f"{rule}: {why}") from None


def _columns(cursor: Any) -> dict[str, str]:
    """Return the types of columns by their names, which must differ."""
    found: dict[str, str] = {}
    for column in cursor.description or ():
        known = cursor.adapters.types.get(column.type_code)
        kind = known.name if known and column.type_code == known.oid else ""
        if kind not in KINDS:
            rule = f"query must give texts, numbers and times: cast `{column.name}` to text, or leave it out"
            raise InputFileError(rule)
        if column.name in found:
            raise InputFileError(f"query must give columns of different names: there are two called `{column.name}`")
        found[column.name] = kind
    return found


def _batch(columns: dict[str, str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as columns."""
    arrays = []
    for place, name in enumerate(columns.values()):
        kind, make = KINDS[name]
        values = (row[place] for row in rows)
        arrays.append(pa.array([make(each) if make and each is not None else each for each in values], kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
