"""The lines of a ledger in a table of PostgreSQL, for several machines; needs the extra `postgresql`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import psycopg
from privstream.pipelines.postgresql import connect, parse_url, reason
from psycopg import sql

CREATE = "CREATE TABLE IF NOT EXISTS {table} (number bigint PRIMARY KEY, line text NOT NULL)"


@dataclass(frozen=True)
class TableLines:
    """The lines of a table in a transaction that writes alone."""

    connection: psycopg.Connection[Any]
    table: sql.Identifier

    def read(self) -> list[bytes]:
        """Return all lines; the chain finds what is missing."""
        query = sql.SQL("SELECT line FROM {table} ORDER BY number").format(table=self.table)
        return [line.encode() + b"\n" for (line,) in self.connection.execute(query)]

    def append(self, line: bytes) -> None:
        """Insert a line after all others; the primary key is there for whoever does not wait."""
        query = sql.SQL("INSERT INTO {table} SELECT coalesce(max(number), 0) + 1, %s FROM {table}")
        self.connection.execute(query.format(table=self.table), [line.decode().removesuffix("\n")])


class LedgerTable:
    """A table of lines, made by the first one."""

    def __init__(self, url: str) -> None:
        self.where, self.names = parse_url(url, "ledger")
        self.table = sql.Identifier(*self.names)

    def exists(self) -> bool:
        """Tell whether there is such a table."""
        with self._connected() as connection:
            return self._is_there(connection)

    @contextmanager
    def opened(self, *, write: bool) -> Iterator[TableLines]:
        """Begin a transaction, which ends with the block; those that write wait for each other, and make the table."""
        with self._connected() as connection:
            if write:
                digest = blake2b(".".join(self.names).encode(), digest_size=8).digest()
                connection.execute("SET LOCAL synchronous_commit TO on")
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(digest, signed=True)])
                if not self._is_there(connection):  # a role that may not make tables needs none
                    connection.execute(sql.SQL(CREATE).format(table=self.table))
            yield TableLines(connection, self.table)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a transaction."""
        try:
            with connect(self.where) as connection:
                yield connection
        except psycopg.Error as error:
            raise ValueError(f"ledger must be a table that can be used: {reason(error)}") from None

    def _is_there(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether there is such a table."""
        name = self.table.as_string(connection)
        return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,)
