"""What every file format gives to the reader of events, and how records are quoted in their dead letters."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
from privstream.pipelines.stores import opened, scheme_of

MAX_RECORD_CHARACTERS = 1 << 12
"""A dead letter quotes at most so much of its record; its position leads to the rest."""

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".deflate": "gzip"}
"""Endings of compressed text, and Arrow's name of what reads it: its gzip knows the header of zlib, too."""

UTF_8 = "utf-8"


class InputFileError(ValueError):
    """A file of events that cannot be read at all; the message names the file and never quotes what is in it."""


class UnfitError(ValueError):
    """A rule that a file breaks; the message quotes nothing of its records."""


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """How files of text are written.

    Attributes:
        encoding: as Python calls it.
        delimiter: of the fields of CSV, one byte; None if the line with their names shows it.
        names: fields that this line has.
        quote: whether a quote at the beginning of a field of CSV opens it; else it is text.
    """

    encoding: str = UTF_8
    delimiter: bytes | None = None
    names: tuple[str, ...] = ()
    quote: bool = True


PLAIN = TextForm()


@dataclass(frozen=True, eq=False)
class RawEvents:
    """Rows of a file, column by column; functions say where a row stands, and quote it for its dead letter."""

    columns: dict[str, pa.Array]
    position: Callable[[int], str]
    record: Callable[[int], str]


@dataclass(frozen=True)
class Damage:
    """What cannot be used: the end of a counter's name, the rule, where, the text, and the questions that cannot."""

    code: str
    reason: str
    position: str
    record: str = ""
    by: tuple[str, ...] = ("",)


HELD: dict[type, pa.DataType] = {
    **{NoneType: pa.null(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_(), int: pa.int64()},
    **{float: pa.float64(), datetime: pa.timestamp("us"), list: pa.list_(pa.string())},
}
"""Kinds of Python values and how Arrow holds them; a list has the text of a value of another kind."""


def column_of(values: Sequence[Any]) -> pa.Array:
    """Return Python values as a column: a union where they are of several kinds, so that none decides for another."""
    kinds = set(map(type, values)) - {NoneType}
    if len(kinds) < 2 and list not in kinds:
        with suppress(KeyError, OverflowError, UnicodeEncodeError):
            return pa.array(values, HELD[next(iter(kinds), str)])
    held = [_held(value) for value in values]
    found = list(dict.fromkeys(map(type, held)))
    codes = np.array([found.index(type(value)) for value in held], np.int8)
    offsets = np.zeros(len(codes), np.int32)
    for code in range(len(found)):
        offsets[codes == code] = np.arange(np.count_nonzero(codes == code))
    parts = [pa.array([value for value in held if type(value) is kind], HELD[kind]) for kind in found]
    return pa.UnionArray.from_dense(pa.array(codes), pa.array(offsets), parts)


def _held(value: Any) -> Any:
    """Return a value of one of the kinds of `HELD` that Arrow has room for; of text that is no Unicode, bytes."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    return [str(value)] if type(value) is list or type(value) not in HELD else value


class EventFormat(Protocol):
    """Reads one file format; a module's functions under one name."""

    def schema(self, path: str, form: TextForm = PLAIN) -> pa.Schema | None:
        """Return the types of a file's fields; None if they are said record by record, or the file is empty."""

    def check(self, path: str, form: TextForm = PLAIN) -> None:
        """Refuse a file that is cut short or damaged, as far as that shows without decoding its records."""

    def read(
        self, path: str, fields: Sequence[str], form: TextForm = PLAIN, group: int = 0
    ) -> Iterator[RawEvents | Damage]:
        """Read some fields of a file, or of one of its row groups if it has these."""


def check_regular(path: str) -> None:
    """Refuse what is no file, since a pipe may give nothing and a device have no end, and names that are no UTF-8."""
    name = path.encode("utf-8", "backslashreplace").decode()
    if name != path:
        raise InputFileError(f"cannot read {name}: its name must be UTF-8")
    if scheme_of(path) is not None:
        return
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}") from None
    if not regular:
        raise InputFileError(f"cannot read {path}: it is a folder, a pipe or a device, not a file")


def open_file(path: str) -> BinaryIO:
    """Open a file on any of Beam's filesystems, as it stands there."""
    check_regular(path)
    try:
        return opened(path)
    except OSError as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputFileError(f"cannot read {path}: {reason}") from None


@contextmanager
def opened_as(path: str, rule: str) -> Iterator[BinaryIO]:
    """Open a file; errors of libraries in the block, which may quote its bytes, become one that says the rule."""
    with open_file(path) as stream:
        try:
            yield stream
        except InputFileError:
            raise
        except UnfitError as error:
            raise InputFileError(f"{path} cannot be read: {error}") from None
        except Exception as error:
            raise InputFileError(f"{path} {rule} ({type(error).__name__})") from None


def quote(text: Any) -> str:
    """Quote a piece of a file, text or bytes that need not be UTF-8, for its dead letter."""
    if not isinstance(text, str):
        text = bytes(text[: 4 * MAX_RECORD_CHARACTERS + 4]).decode("utf-8", "backslashreplace")
    quoted: str = text.encode("utf-8", "backslashreplace").decode()
    return quoted if len(quoted) <= MAX_RECORD_CHARACTERS else quoted[:MAX_RECORD_CHARACTERS] + "…"


def places(what: str, numbers: Sequence[int]) -> Callable[[int], str]:
    """Return where rows stand, by their numbers among some: a name and the number in the file."""
    return lambda row: f"{what} {numbers[row]}"


def describe_row(columns: dict[str, Any]) -> Callable[[int], str]:
    """Return a function that writes one row of some columns as JSON."""

    def record(row: int) -> str:
        values = {name: _plain(column[row]) for name, column in columns.items()}
        return quote(json.dumps(values, ensure_ascii=False, default=str))

    return record


def _plain(value: Any) -> Any:
    """Take an Arrow value out of its wrapper; of long text as much as is quoted."""
    if isinstance(value, pa.DictionaryScalar | pa.UnionScalar):
        value = value.value
    if value is None or not value.is_valid:
        return None
    if isinstance(value, pa.StringScalar | pa.BinaryScalar):
        return quote(value.as_buffer())
    if pa.types.is_timestamp(value.type) or pa.types.is_date(value.type):  # Python has fewer years
        return value.cast(pa.string()).as_py()
    return value.as_py()
