"""A frame of events as a Parquet file, and what a query of PostgreSQL or DuckDB finds as CSV, for every runner."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from privstream.pipelines.locations import DATABASE, POSTGRESQL
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.stores import imported
from privstream.transforms.reading.fields import TEXT, kind_of

COLUMN = re.compile(r"Conversion failed for column (.+) with type ")
MOST_SECONDS = (1 << 63) // 1000 - 1
ROWS = 1 << 17  # of DuckDB, in memory at once


def as_table(frame: Any) -> pa.Table:
    """Return a frame as an Arrow table; errors quote no value of it."""
    if not hasattr(frame, "__arrow_c_stream__"):
        known = "pandas (2.2 or newer), Polars (collected), pyarrow and DuckDB"
        raise TypeError(f"frame must have __arrow_c_stream__, as those of {known} have, got {type(frame).__name__}")
    try:
        return pa.table(frame)
    except Exception as error:  # each library has its own, and they quote values
        column = COLUMN.match(str(error.args[-1])) if error.args else None
        which = f"column `{column[1]}` is not" if column else "a column is not"
        raise TypeError(f"frame must have columns of one type each: {which} ({type(error).__name__})") from None


def write_events(table: pa.Table, names: Sequence[str], path: str) -> None:
    """Write some columns of a table, at least one, as a new Parquet file, which its owner alone can read.

    The same values in the same order give the same bytes, whatever library the frame is of, however it is cut into
    chunks, and whatever else it has: so the file's fingerprint is that of its contents.
    """
    try:
        plain = pa.table({name: _plain(table.column(name)) for name in names})
        with _created(path) as stream:
            pq.write_table(plain, stream, store_schema=False)
    except pa.ArrowException as error:  # its words quote values
        raise TypeError(f"frame must have columns that Parquet can hold ({type(error).__name__})") from None


def _created(path: str) -> BinaryIO:
    """Open a new file for its owner alone."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as one chunk, with text written out where it is a dictionary or a view."""
    kind = column.type
    if kind_of(kind) == TEXT:
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        plain = pa.large_string() if value in (pa.string(), pa.large_string(), pa.string_view()) else pa.large_binary()
        if pa.types.is_dictionary(kind):  # Arrow does not cast those of views
            parts = [part.dictionary.cast(plain).take(part.indices) for part in column.chunks]
            column = pa.chunked_array(parts, plain)
        column = column.cast(plain)
    elif pa.types.is_timestamp(kind) and kind.unit == "s":  # Parquet has no seconds; what is too large is no time
        seconds = column.cast(pa.int64())
        fits = pc.and_(pc.less_equal(seconds, MOST_SECONDS), pc.greater_equal(seconds, -MOST_SECONDS))
        column = pc.if_else(fits, seconds, pa.scalar(None, pa.int64())).cast(kind)
    return pa.chunked_array([column.combine_chunks()], column.type)


def save_rows(input: str, query: str, fields: Readings, path: str) -> None:
    """Write the columns of a SELECT's rows that are read, as texts in their order, as CSV for its owner alone.

    The input is `postgresql://user@host:port/database`, or a file of DuckDB.

    Raises:
        InputFileError: the database cannot be asked, or refuses the query; the message has no value and no password.
        ValueError: a column is missing.
    """
    with _created(path) as stream:
        (_of_postgresql if input.startswith(POSTGRESQL) else _of_duckdb)(input, query, fields, stream)


def _texts(fields: Readings, names: Sequence[str]) -> str:
    """Return what to select of a query with some columns: those that are read, as texts."""
    fields.check(pa.schema([(name, pa.string()) for name in names]), "the query")
    quoted = ['"' + name.replace('"', '""') + '"' for name in fields.names]
    return ", ".join(f"CAST({name} AS varchar) AS {name}" for name in quoted)


def _of_duckdb(path: str, query: str, fields: Readings, stream: BinaryIO) -> None:
    duckdb = imported("duckdb", "duckdb", "--input of a database")
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
            found = connection.sql(query)
            reader = found.project(_texts(fields, found.columns)).to_arrow_reader(ROWS)
            with pa_csv.CSVWriter(stream, reader.schema) as file:
                for batch in reader:
                    file.write(batch)
    except asked as error:  # about the query, which is public, and not about rows; the first line has no picture of it
        rule = next(iter(str(error).splitlines()), type(error).__name__).strip()
        raise InputFileError(f"query must be one that DuckDB can answer: {rule}") from None
    except duckdb.IOException:
        raise InputFileError(f"--input must be a database that DuckDB can open, got {path}") from None
    except (duckdb.Error, pa.ArrowException) as error:  # their words may quote values
        raise InputFileError(f"query must have an answer in {path}: DuckDB has a {type(error).__name__}") from None


WHATEVER_ROWS_HAVE = ("08", "25", "53", "57")  # classes of errors whose words quote no value
ABOUT_THE_QUERY = (*WHATEVER_ROWS_HAVE, "28", "3D", "42")
"""Likewise before rows are reckoned, which may name what does not exist, as in `page::regclass`."""

ROWS_AS_CSV = "COPY (SELECT {} FROM ({}\n) AS asked) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *, ENCODING 'UTF8')"


def _of_postgresql(url: str, query: str, fields: Readings, stream: BinaryIO) -> None:
    """Write the rows of a query, which can change nothing."""
    server = imported("privstream.pipelines.postgresql", "postgresql", "--input of a database")
    psycopg = importlib.import_module("psycopg")
    where, rule = server.parse_url(url, "--input", DATABASE)[0], "--input must be a database that answers"
    told: tuple[str, ...] = ABOUT_THE_QUERY
    try:
        with server.connect(where) as connection:
            rule, connection.read_only = "query must be one that the database answers", True
            connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
            asked = connection.execute(f"SELECT * FROM ({query}\n) AS asked LIMIT 0".encode(), binary=True)
            texts, told = _texts(fields, [column.name for column in asked.description]), WHATEVER_ROWS_HAVE
            with connection.cursor().copy(ROWS_AS_CSV.format(texts, query).encode()) as rows:
                stream.writelines(rows)
    except psycopg.Error as error:
        quoted = error.sqlstate is not None and not error.sqlstate.startswith(told)  # may quote values
        why = f"SQLSTATE {error.sqlstate} ({type(error).__name__})" if quoted else server.reason(error)
        raise InputFileError(f"{rule}: {why}") from None
