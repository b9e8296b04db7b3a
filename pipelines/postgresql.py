"""How PostgreSQL is reached, and what its errors say; needs the extra `postgresql`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from privstream.pipelines.locations import DATABASE, TABLE

CONNECT_SECONDS = 10


def parse_url(url: str, option: str = "--output") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return where to connect to, in the driver's words, and the table, perhaps after its schema.

    Raises:
        ValueError: never with the URL, which may have a password.
    """
    where, table = _parts(url, option, TABLE)
    names = tuple(unquote(name) for name in table.split("."))
    if not all(names) or "/" in table or len(names) > 2:
        raise ValueError(f"{option} must be of the form {TABLE}")
    return where, names


def database_of(url: str, option: str) -> dict[str, Any]:
    """Return where to connect to, in the driver's words; raises as `parse_url`."""
    where, table = _parts(url, option, DATABASE)
    if table:
        raise ValueError(f"{option} must be of the form {DATABASE}")
    return where


def _parts(url: str, option: str, form: str) -> tuple[dict[str, Any], str]:
    """Return where to connect to, without what the URL leaves open, and what follows the database."""
    try:
        parts = urlsplit(url)
        database, _, table = parts.path.removeprefix("/").partition("/")
        where = {"host": parts.hostname, "port": parts.port, "user": parts.username, "dbname": database}
    except ValueError:  # the port is no number
        raise ValueError(f"{option} must be of the form {form}") from None
    if parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            f"{option} must be of the form {form} without a password or settings: set PGPASSWORD, or write ~/.pgpass"
        )
    if not (parts.hostname and database):
        raise ValueError(f"{option} must be of the form {form}")
    return {name: unquote(value) if isinstance(value, str) else value for name, value in where.items() if value}, table


def reason(error: psycopg.Error) -> str:
    """Return why something failed, in a line that has no values."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "FATAL" in line), lines[0] if lines else type(error).__name__)


def connect(where: dict[str, Any]) -> psycopg.Connection[Any]:
    """Open a connection whose transaction is committed if the block ends well."""
    return psycopg.connect(**where, connect_timeout=CONNECT_SECONDS, application_name="privstream")
