"""Rows of a query to PostgreSQL, as Arrow batches; needs the extra `postgresql`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pyarrow as pa
from privstream.pipelines.postgresql import connect, database_of, reason
from privstream.pipelines.sources.event_files import InputFileError
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from typing_extensions import override

EPOCH = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts, in microseconds since 1970."""

FARTHEST = 1 << 62
"""Microseconds from 1970 that a time can be away; infinity is further."""

ABOUT_THE_QUERY = ("08", "25", "28", "3D", "42", "53", "57")
"""Classes of errors of a query that has not begun, whose words are about the connection, rights, names or syntax."""

WHATEVER_ROWS_HAVE = ("08", "25", "53", "57")
"""Those of them whose words quote no value once rows are reckoned: there a row may name what does not exist, as in
`page::regclass` or `current_setting(page)`.
"""

KINDS: dict[str, tuple[pa.DataType, Callable[[Any], Any] | None]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "name"), (pa.string(), None)),
    "uuid": (pa.string(), str),
    **dict.fromkeys(("int2", "int4", "int8"), (pa.int64(), None)),
    **dict.fromkeys(("float4", "float8"), (pa.float64(), None)),
    "numeric": (pa.float64(), float),
    "bool": (pa.bool_(), None),
    "timestamp": (pa.timestamp("us"), None),
    "timestamptz": (pa.timestamp("us", "UTC"), None),
}
"""Types of columns: what they become, and what makes that of a value."""


def read_query(url: str, query: str, rows: int) -> Generator[pa.RecordBatch]:
    """Give the rows of a query, which can change nothing, from a cursor of the server.

    The password comes from where the driver looks for it: the environment (`PGPASSWORD`), `~/.pgpass`.

    Args:
        url: `postgresql://user@host:port/database`.
        query: one SELECT.
        rows: how many come at once.

    Returns:
        Batches, the first of which tells the columns and may be without rows. A time that is infinite is none.

    Raises:
        ValueError: the URL is of another form, or has a password.
        InputFileError: the server does not answer, or refuses the query.
    """
    where = database_of(url, "--input")
    try:
        opened = connect(where)
    except psycopg.Error as error:
        raise InputFileError(f"--input must be a database that answers: {_why(error, ABOUT_THE_QUERY)}") from None
    told: tuple[str, ...] = ABOUT_THE_QUERY
    try:
        with opened as connection:
            connection.read_only = True
            for name, loader in LOADERS.items():
                connection.adapters.register_loader(name, loader)
            with connection.cursor("privstream", binary=True) as cursor:
                cursor.execute(query.encode())
                columns, told = _columns(cursor), WHATEVER_ROWS_HAVE
                while True:
                    found = cursor.fetchmany(rows)
                    yield _batch(columns, found)
                    if len(found) < rows:
                        return
    except psycopg.Error as error:
        raise InputFileError(f"query must be one that the database answers: {_why(error, told)}") from None


def _columns(cursor: psycopg.ServerCursor[Any]) -> dict[str, str]:
    """Return the types of columns by their names, which differ.

    Raises:
        InputFileError: a name stands twice, or a column is of a type that is no text, number, truth value or time.
    """
    found: dict[str, str] = {}
    for column in cursor.description or ():
        known = cursor.adapters.types.get(column.type_code)
        kind = known.name if known and column.type_code == known.oid else ""
        if kind not in KINDS:
            raise InputFileError(
                f"query must give texts, numbers and times: cast `{column.name}` to text, or leave it out"
            )
        if column.name in found:
            raise InputFileError(f"query must give columns of different names: there are two called `{column.name}`")
        found[column.name] = kind
    return found


def _batch(columns: dict[str, str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as columns."""
    arrays = []
    for place, name in enumerate(columns.values()):
        kind, make = KINDS[name]
        values = [row[place] for row in rows]
        if make is not None:
            values = [None if value is None else make(value) for value in values]
        arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


class _Micros(Loader):
    """Reads a time as microseconds since 1970."""

    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> int | None:
        micros = int.from_bytes(data, "big", signed=True) + EPOCH
        return micros if abs(micros) < FARTHEST else None


LOADERS: dict[str, type[Loader]] = {"timestamp": _Micros, "timestamptz": _Micros}


def _why(error: psycopg.Error, told: tuple[str, ...]) -> str:
    """Return why a query failed, in words for classes of errors that are `told`; those of others may quote values."""
    state = error.sqlstate
    if state is None or state.startswith(told):
        return reason(error)
    return f"SQLSTATE {state} ({type(error).__name__})"
