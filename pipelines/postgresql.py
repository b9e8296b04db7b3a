"""PostgreSQL: how it is reached, what its errors say, and a table as a destination of rows; needs its extra."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pyarrow as pa
from privstream.pipelines.locations import TABLE
from privstream.pipelines.sinks.row_files import shape_of
from privstream.pipelines.sinks.writers import RUN, Destination, UnreachableError
from privstream.transforms.row_types import Time
from typing_extensions import override

CONNECT_SECONDS = 10


def parse_url(url: str, option: str = "send", form: str = TABLE) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return where to connect to, in the driver's words, and the table if the form has one, perhaps after its schema.

    Raises:
        ValueError: never with the URL, which may have a password.
    """
    rule = f"{option} must be of the form {form}"
    try:
        parts = urlsplit(url)
        database, _, table = parts.path.removeprefix("/").partition("/")
        where = {"host": parts.hostname, "port": parts.port, "user": parts.username, "dbname": database}
    except ValueError:  # the port is no number
        raise ValueError(rule) from None
    if parts.password is not None or parts.query or parts.fragment:
        raise ValueError(f"{rule} without a password or settings: set PGPASSWORD, or write ~/.pgpass")
    names = tuple(unquote(name) for name in table.split("."))
    named = all(names) and "/" not in table and len(names) <= 2
    if not (parts.hostname and database) or (not named if form == TABLE else table):
        raise ValueError(rule)
    return {name: unquote(value) if isinstance(value, str) else value for name, value in where.items() if value}, names


def reason(error: psycopg.Error) -> str:
    """Return why something failed, in a line that has no values."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "FATAL" in line), lines[0] if lines else type(error).__name__)


def connect(where: dict[str, Any]) -> psycopg.Connection[Any]:
    """Open a connection whose transaction is committed if the block ends well."""
    return psycopg.connect(**where, connect_timeout=CONNECT_SECONDS, application_name="privstream")


ROW_KEY = "row_key"
TYPES: dict[type, str] = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}
TYPES |= {Time: "timestamp with time zone"}
AWAY = (psycopg.OperationalError, psycopg.InterfaceError)

COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


class PostgresTable(Destination):
    """Puts each row into a table once: a row whose key is there already changes nothing.

    The columns are `row_key` (the primary key: a digest of the run id and of the fields that distinguish rows),
    `run_id`, and the fields of the row. A table that is missing is created, one with other columns is refused. The rows
    of a file, which are those of one window, are one transaction.

    The password, and settings such as `sslmode`, come from where the driver looks for them: `PGPASSWORD`, `~/.pgpass`;
    on a cluster, those of the workers. PostgreSQL has no NUL character in a text; `U+2400` stands for it.

    Args:
        url: `postgresql://user@host:port/database/table`, perhaps with `schema.table`, each percent-encoded.
        replace: whether to remove the rows of this run that are there already, in the transaction that sends others.
    """

    def __init__(self, url: str, run_id: str, row_type: type, key: Sequence[str], *, replace: bool = False) -> None:
        super().__init__(run_id, row_type, key)
        self.where, self.table = parse_url(url)
        self.replace, self.quoted = replace, ".".join(map(_quoted, self.table))
        self.place = self.quoted.replace("%", "%%")  # in statements with values
        self.columns = {ROW_KEY: "text", RUN: "text"}
        self.columns |= {name: TYPES[kind] for name, kind in shape_of(row_type).columns.items()}

    @override
    def check(self, *, first: bool) -> None:
        # A table that is missing is created.
        try:
            with connect(self.where) as connection:
                self._check_columns(connection)
                connection.execute(self._insert("SELECT {} WHERE false"), [None] * len(self.columns))
                rows = f"SELECT 1 FROM {self.place} WHERE {RUN} = %s LIMIT 1".encode()
                there = connection.execute(rows, [self.run_id]).fetchone() is not None
        except AWAY as error:
            raise ValueError(f"send must be a database that answers: {reason(error)}") from None
        except psycopg.Error as error:
            rule = "send must be a table that takes rows, or may be created"
            raise ValueError(f"{rule}: {reason(error)}. Run: {self.create_statement()}") from None
        if there and first and not self.replace:
            raise ValueError(
                f"send must be a table without rows of this run, but {self.name()} has rows of {self.run_id}; "
                "go on with the output of the run that sent them"
            )

    @override
    def send(self, rows: pa.Table) -> None:
        # In one transaction, again and again while the database is away.
        found = []
        for key, values in self.keyed(rows):  # a key may be longer than an index takes
            plain = [each.replace("\0", "\u2400") if isinstance(each, str) else each for each in values.values()]
            found.append([blake2b(key.encode(), digest_size=16).hexdigest(), self.run_id, *plain])
        why = ""
        for _ in self.attempts():
            try:
                with connect(self.where) as connection, connection.cursor() as cursor:
                    if self.replace:
                        cursor.execute(f"DELETE FROM {self.place} WHERE {RUN} = %s".encode(), [self.run_id])
                    cursor.executemany(self._insert("VALUES ({})"), found)
                return
            except AWAY as error:
                why = reason(error)
            except psycopg.Error as error:
                raise UnreachableError(f"the table {self.name()} does not take the rows: {reason(error)}") from None
        raise UnreachableError(f"the rows could not be sent to {self.name()} in {self.patience:g} s: {why}")

    @override
    def name(self) -> str:
        return f"{'.'.join(self.table)} of {self.where['dbname']} on {self.where['host']}"

    def create_statement(self) -> str:
        """Return the statement that creates the table."""
        rules = {ROW_KEY: " PRIMARY KEY"} | {each.name: "" for each in shape_of(self.row_type).schema if each.nullable}
        lines = [f"{_quoted(name)} {kind}{rules.get(name, ' NOT NULL')}" for name, kind in self.columns.items()]
        return f"CREATE TABLE IF NOT EXISTS {self.quoted} ({', '.join(lines)})"

    def _check_columns(self, connection: psycopg.Connection[Any]) -> None:
        """Compare the columns, after the table has been created if it is missing."""
        if not (found := dict(connection.execute(COLUMNS, [self.quoted]).fetchall())):
            connection.execute(self.create_statement().encode())
        elif found != self.columns:
            others = sorted(name for name in found | self.columns if found.get(name) != self.columns.get(name))
            raise ValueError(
                f"send must be a table of {self.row_type.__name__} rows, but {self.name()} differs in "
                f"{', '.join(others)}. Use a new table, or: {self.create_statement()}"
            )

    def _insert(self, values: str) -> bytes:
        """Return the statement that inserts what is not there yet."""
        names = ", ".join(map(_quoted, self.columns)).replace("%", "%%")
        marks = ", ".join(f"%s::{kind}" for kind in self.columns.values())
        return f"INSERT INTO {self.place} ({names}) {values.format(marks)} ON CONFLICT ({ROW_KEY}) DO NOTHING".encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
