"""What every format of events gives to the reader: rows, and what cannot be used; and text in any encoding."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
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
    rows: int
    position: Callable[[int], str]
    record: Callable[[int], str]


class Damage(NamedTuple):
    """What cannot be used: the end of a counter's name, the rule, where, the text, and the questions that cannot."""

    code: str
    reason: str
    position: str
    record: str = ""
    by: tuple[str, ...] = ("",)


def places(what: str, numbers: Sequence[int]) -> Callable[[int], str]:
    """Return where rows stand, by their numbers among some: a name and the number in the file."""
    return lambda row: f"{what} {numbers[row]}"


def numbered(columns: dict[str, pa.Array], what: str, numbers: Sequence[int]) -> RawEvents:
    """Return rows that are found by their numbers in the file, and quoted as their columns have them."""
    return RawEvents(columns, len(numbers), places(what, numbers), describe_row(columns))


BLOCK_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NO_TEXT = "privstream_no_text"
NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
"""Encodings of names and of source text, or with several spellings of one character."""

SHIFTED = ("hz", "iso2022")
"""How the names of encodings begin in which bytes of one record can change what all bytes after it mean."""

TEXT_RULE = "cannot be read to its end: it ends early, or it is damaged"


def encoding_of(name: str) -> str:
    """Return the name that Python has for an encoding, in which each record can be read alone."""
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        found = None
    text = found is not None and found._is_text_encoding and found.incrementaldecoder is not None
    if found is None or not text or found.name in NOT_OF_FILES or found.name.startswith(SHIFTED):
        rule = "one that Python knows, in which records stand alone, such as utf-8 or windows-1252"
        raise ValueError(f"encoding must be {rule}, got {name!r}")
    return UTF_8 if found.name == "utf-8-sig" else found.name


def _as_no_text(error: UnicodeError) -> tuple[str, int]:
    """Put what no UTF-8 has, a byte 255, in the place of bytes that are no text: neighbours cannot make text of it."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(NO_TEXT, _as_no_text)


def as_utf_8(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Return text of another encoding as UTF-8; what is no text in it becomes bytes that are no UTF-8."""
    first = next(pieces, b"")
    if first.startswith(BYTE_ORDER_MARK):
        raise UnfitError("it begins with the byte order mark of UTF-8: --encoding must be utf-8, or not given")
    decoder = codecs.getincrementaldecoder(encoding)(NO_TEXT)
    try:
        for piece in chain([first], pieces):
            yield decoder.decode(piece).encode(UTF_8, "surrogateescape")
        yield decoder.decode(b"", True).encode(UTF_8, "surrogateescape")
    except UnicodeError:  # of its first bytes alone
        rule = f"it must begin with a byte order mark, or --encoding say {encoding}-le or {encoding}-be"
        raise UnfitError(rule) from None
