"""Rows of a query as events, from PostgreSQL or DuckDB.

The query is asked once, and its rows go into a file of this machine, which the run then reads: so what the noise of the
run is bound to is what it reads, whatever becomes of the database meanwhile.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.frame_files import write_events

POSTGRESQL = "postgresql://"
FORM = "postgresql://user@host:port/database"
DUCKDB = (".duckdb", ".db")
ROWS = 1 << 17
"""So many rows are in memory at once, and in a row group of the file."""

THE_QUERY = "the query"
"""What stands for a file's name in messages about fields."""


def is_query(input: str, query: str | None) -> bool:
    """Tell whether the input is a query; what can be one only with the other is refused without it.

    Raises:
        ValueError: naming the option.
    """
    database = input.startswith(POSTGRESQL) or input.endswith(DUCKDB)
    if query is None and database:
        raise ValueError("query must be given with an --input that is a database: the SELECT whose rows are the events")
    if query is not None and not database:
        raise ValueError(f"query must be given with an --input of {FORM} or a file of DuckDB ({', '.join(DUCKDB)})")
    return query is not None


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
