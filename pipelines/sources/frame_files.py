"""A frame of events, or what a query finds, as a file that every runner can read."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.pipelines.locations import POSTGRESQL
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields
from privstream.transforms.reading.columns import is_text

FRAMES = "have __arrow_c_stream__, as those of pandas (2.2 or newer), Polars (collected), pyarrow and DuckDB have"
COLUMN = re.compile(r"Conversion failed for column (.+) with type ")
LEAST, MOST_SECONDS = -(1 << 63), (1 << 63) // 1000 - 1


def as_table(frame: Any) -> pa.Table:
    """Return a frame as an Arrow table.

    Raises:
        TypeError: it is none, or has a column that Arrow cannot take; no value of it is quoted.
    """
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
    chunks, and whatever other columns, index or metadata it has: so the file's fingerprint is that of its contents.
    Another order gives other bytes, because where a person's events are limited, which of them count may depend on it.
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
        fits = pc.less_equal(pc.abs(pc.if_else(pc.equal(seconds, LEAST), 0, seconds)), MOST_SECONDS)
        fits = pc.and_(fits, pc.not_equal(seconds, LEAST))
        column = pc.if_else(fits, seconds, pa.scalar(None, pa.int64())).cast(kind)
    return pa.chunked_array([column.combine_chunks()], column.type)


ROWS = 1 << 17
"""So many rows are in memory at once, and in a row group of the file."""

THE_QUERY = "the query"
"""What stands for a file's name in messages about fields."""


def save_rows(input: str, query: str, fields: AnyFields, path: str) -> None:
    """Write the columns of a query's rows that are read as a Parquet file, which its owner alone can read.

    Args:
        input: the database: `postgresql://user@host:port/database`, or a file of DuckDB.
        query: one SELECT. Its rows stay in the order in which they come.
        fields: which columns are what.
        path: of the file.

    Raises:
        InputFileError: the database cannot be asked, or refuses the query; the message has no value and no password.
        ValueError, TypeError: a column is missing, or is of a type that cannot be used.
    """
    batches = _of_postgresql(input, query) if input.startswith(POSTGRESQL) else _of_duckdb(input, query)
    with closing(batches):
        first = next(batches)
        fields.check(first.schema, THE_QUERY)
        write_events(_tables(chain([first], batches)), fields.names(), path)


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


def _of_postgresql(url: str, query: str) -> Generator[pa.RecordBatch]:
    """Give the rows of a query; the first batch tells the columns, and may be without rows."""
    try:
        postgres = importlib.import_module("privstream.pipelines.sources.postgres_query")
    except ImportError:
        raise ValueError("--input of PostgreSQL needs an extra: pip install 'privstream[postgresql]'") from None
    found: Generator[pa.RecordBatch] = postgres.read_query(url, query, ROWS)
    return found


def _of_duckdb(path: str, query: str) -> Generator[pa.RecordBatch]:
    """Give the rows of a query; the first batch tells the columns, and has no rows."""
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        raise ValueError("--input of DuckDB needs an extra: pip install 'privstream[duckdb]'") from None
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
            nothing = [pa.nulls(0, field.type) for field in reader.schema]
            yield pa.RecordBatch.from_arrays(nothing, schema=reader.schema)
            yield from reader
    except asked as error:  # about the query, which is public, and not about rows
        raise InputFileError(f"query must be one that DuckDB can answer: {_first_line(error)}") from None
    except duckdb.IOException:
        raise InputFileError(f"--input must be a database that DuckDB can open, got {path}") from None
    except (duckdb.Error, pa.ArrowException) as error:  # their words may quote values
        raise InputFileError(f"query must have an answer in {path}: DuckDB has a {type(error).__name__}") from None


def _first_line(error: Exception) -> str:
    """Return what an error says, without the picture of the query."""
    return next(iter(str(error).splitlines()), type(error).__name__).strip()
