"""The lines of a ledger in a table of PostgreSQL, for several machines; needs the extra `postgresql`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any

import psycopg
from privstream.pipelines.postgresql import connect, parse_url, reason
from psycopg import sql

CREATE = "CREATE TABLE IF NOT EXISTS {table} (number bigint PRIMARY KEY, line text NOT NULL)"


class TableLines:
    """The lines of a table, made by the first one."""

    def __init__(self, url: str) -> None:
        self.where, names = parse_url(url, "ledger")
        self.table = sql.Identifier(*names)
        self.lock = int.from_bytes(blake2b(".".join(names).encode(), digest_size=8).digest(), signed=True)

    def read(self) -> list[bytes]:
        """Return all lines; none if there is no such table."""
        with self._connected() as connection:
            return self._all_lines(connection) if self._is_there(connection) else []

    @contextmanager
    def writing(self) -> Iterator[tuple[list[bytes], Callable[[bytes], None]]]:
        """Give all lines, and what inserts one, in a transaction; those that write wait for each other."""
        with self._connected() as connection:
            connection.execute("SET LOCAL synchronous_commit TO on")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [self.lock])
            if not self._is_there(connection):  # a role that may not make tables needs none
                connection.execute(sql.SQL(CREATE).format(table=self.table))
            yield self._all_lines(connection), partial(self._append, connection)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with connect(self.where) as connection:
                yield connection
        except psycopg.Error as error:
            raise ValueError(f"ledger must be a table that can be used: {reason(error)}") from None

    def _is_there(self, connection: psycopg.Connection[Any]) -> bool:
        name = self.table.as_string(connection)
        return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,)

    def _all_lines(self, connection: psycopg.Connection[Any]) -> list[bytes]:
        query = sql.SQL("SELECT line FROM {table} ORDER BY number").format(table=self.table)  # the chain finds gaps
        return [line.encode() + b"\n" for (line,) in connection.execute(query)]

    def _append(self, connection: psycopg.Connection[Any], line: bytes) -> None:
        """Insert a line after all others; the primary key is there for whoever does not wait."""
        query = sql.SQL("INSERT INTO {table} SELECT coalesce(max(number), 0) + 1, %s FROM {table}")
        connection.execute(query.format(table=self.table), [line.decode().removesuffix("\n")])
