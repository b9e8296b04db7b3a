"""What every file format gives to the reader of events."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import pyarrow as pa
from privstream.pipelines.stores import opened, scheme_of
from privstream.transforms.reading.fields import describe_row

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Endings of compressed text, and Arrow's name of what reads it."""

UTF_8 = "utf-8"


class InputFileError(ValueError):
    """A file of events that cannot be read at all; the message names the file and never quotes what is in it."""


class UnfitError(ValueError):
    """A rule that a file breaks; the message quotes nothing of its records."""


class TextForm(NamedTuple):
    """How files of text are written."""

    encoding: str = UTF_8  # as Python calls it
    delimiter: bytes | None = None  # of CSV, one byte; None if the line with the names of fields shows it
    names: tuple[str, ...] = ()  # that this line has
    quote: bool = True  # whether a quote at the beginning of a field of CSV opens it; else it is text


PLAIN = TextForm()


@dataclass(frozen=True, eq=False)
class RawEvents:
    """Rows of a file, column by column; functions say where a row stands, and quote it for its dead letter."""

    columns: dict[str, pa.Array]
    position: Callable[[int], str]
    record: Callable[[int], str]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.columns.values())))


class Damage(NamedTuple):
    """What cannot be used: the end of a counter's name, the rule, where, the text, and the questions that cannot."""

    code: str
    reason: str
    position: str
    record: str = ""
    by: tuple[str, ...] = ("",)


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


def places(what: str, numbers: Sequence[int]) -> Callable[[int], str]:
    """Return where rows stand, by their numbers among some: a name and the number in the file."""
    return lambda row: f"{what} {numbers[row]}"


def numbered(columns: dict[str, pa.Array], what: str, numbers: Sequence[int]) -> RawEvents:
    """Return rows that are found by their numbers in the file, and quoted as their columns have them."""
    return RawEvents(columns, places(what, numbers), describe_row(columns))
