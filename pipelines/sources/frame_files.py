"""A frame of events, or what a query of PostgreSQL or DuckDB finds, as a Parquet file that every runner can read."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
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

BLOCK_BYTES = 1 << 24
"""Largest row of PostgreSQL, in bytes, about."""


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
        fields.check(next(batches).schema, "the query")
        write_events(_tables(batches), fields.names, path)


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
            columns = pa.RecordBatch.from_pylist([], reader.schema)
            yield from chain([columns, columns], reader)
    except asked as error:  # about the query, which is public, and not about rows; the first line has no picture of it
        rule = next(iter(str(error).splitlines()), type(error).__name__).strip()
        raise InputFileError(f"query must be one that DuckDB can answer: {rule}") from None
    except duckdb.IOException:
        raise InputFileError(f"--input must be a database that DuckDB can open, got {path}") from None
    except (duckdb.Error, pa.ArrowException) as error:  # their words may quote values
        raise InputFileError(f"query must have an answer in {path}: DuckDB has a {type(error).__name__}") from None


WHATEVER_ROWS_HAVE = ("08", "25", "53", "57")
"""Classes of errors whose words quote no value."""

ABOUT_THE_QUERY = (*WHATEVER_ROWS_HAVE, "28", "3D", "42")
"""Likewise before rows are reckoned, which may name what does not exist, as in `page::regclass`."""

KINDS = {
    **dict.fromkeys(("int2", "int4", "int8"), pa.int64()),
    **dict.fromkeys(("float4", "float8", "numeric"), pa.float64()),
    **{"bool": pa.bool_(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC")},
}
"""Types of columns of PostgreSQL that are no text; any other one is read as its text."""

ROWS_AS_CSV = "COPY ({}\n) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *, ENCODING 'UTF8')"


def _of_postgresql(url: str, query: str) -> Generator[pa.RecordBatch]:
    """Give the rows of a query, which can change nothing; the first batch tells the columns, and has no rows.

    The password comes from where the driver looks for it: the environment (`PGPASSWORD`), `~/.pgpass`. Times come as
    texts, so that one that Arrow does not have costs its own row alone.
    """
    server = _imported("privstream.pipelines.postgresql", "postgresql")
    psycopg = _imported("psycopg", "postgresql")
    where, rule = server.database_of(url, "--input"), "--input must be a database that answers"
    told: tuple[str, ...] = ABOUT_THE_QUERY
    with tempfile.TemporaryFile() as file:  # of its owner alone, and without a name
        try:
            with server.connect(where) as connection:
                rule, connection.read_only = "query must be one that the database answers", True
                connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
                asked = connection.execute(f"SELECT * FROM ({query}\n) AS asked LIMIT 0".encode(), binary=True)
                types = {column.name: _kind_of(asked, column.type_code) for column in asked.description}
                if len(types) < len(asked.description):
                    raise InputFileError("query must give columns of different names")
                yield pa.RecordBatch.from_pylist([], pa.schema(list(types.items())))
                told = WHATEVER_ROWS_HAVE
                with connection.cursor().copy(ROWS_AS_CSV.format(query).encode()) as rows:
                    file.writelines(rows)
        except psycopg.Error as error:
            quoted = error.sqlstate is not None and not error.sqlstate.startswith(told)  # may quote values
            why = f"SQLSTATE {error.sqlstate} ({type(error).__name__})" if quoted else server.reason(error)
            raise InputFileError(f"{rule}: {why}") from None
        file.seek(0)
        types |= {name: pa.string() for name, kind in types.items() if pa.types.is_timestamp(kind)}
        reader = pa_csv.open_csv(
            file,
            pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(column_types=types, check_utf8=False, **AS_COPIED),
        )
        try:
            yield from chain([pa.RecordBatch.from_pylist([], reader.schema)], reader)
        except pa.ArrowException as error:  # its words may quote values
            rule = f"query must have rows of at most {BLOCK_BYTES >> 20} MiB each"
            raise InputFileError(f"{rule} ({type(error).__name__})") from None


AS_COPIED: dict[str, Any] = {
    **{"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False},
    **{"true_values": ["t"], "false_values": ["f"]},
}


def _kind_of(asked: Any, code: int) -> pa.DataType:
    """Return what a type of PostgreSQL is in Arrow."""
    known = asked.adapters.types.get(code)
    return KINDS.get(known.name, pa.string()) if known and code == known.oid else pa.string()
