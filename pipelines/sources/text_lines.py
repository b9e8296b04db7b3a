"""Reads text, compressed or not and in any encoding: as pieces of UTF-8, as lines with their numbers, as JSON lines.

Arrow's own reader of JSON lines ends the process at a line `null` (pyarrow 25.0).
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

import pyarrow as pa
from privstream.pipelines.sources.event_files import (
    COMPRESSED,
    PLAIN,
    UTF_8,
    Damage,
    InputFileError,
    RawEvents,
    TextForm,
    open_file,
    places,
)
from privstream.transforms.reading.fields import column_of, quote
from pydantic_core import from_json

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 24
NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
"""Encodings of names and of source text, or with several spellings of one character."""

SHIFTED = ("hz", "iso2022")
"""How the names of encodings begin in which bytes of one record can change what all bytes after it mean."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NO_TEXT = "privstream_no_text"
REASON = "line must be one JSON object"


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


def read_pieces(path: str, encoding: str = UTF_8) -> Iterator[bytes]:
    """Read a file as UTF-8 in pieces of about a mebibyte; what is no text in it becomes bytes that are no UTF-8."""
    with open_file(path) as raw:
        pieces = _read(raw, path)
        yield from pieces if encoding == UTF_8 else as_utf_8(pieces, encoding, path)


def as_utf_8(pieces: Iterator[bytes], encoding: str, path: str) -> Iterator[bytes]:
    """Return text of another encoding as UTF-8."""
    first = next(pieces, b"")
    if first.startswith(BYTE_ORDER_MARK):
        raise InputFileError(f"--encoding must be utf-8, or not given: {path} begins with the byte order mark of UTF-8")
    decoder = codecs.getincrementaldecoder(encoding)(NO_TEXT)
    try:
        for piece in chain([first], pieces):
            yield decoder.decode(piece).encode(UTF_8, "surrogateescape")
        yield decoder.decode(b"", True).encode(UTF_8, "surrogateescape")
    except UnicodeError:  # of its first bytes alone
        rule = f"must begin with a byte order mark, or --encoding say {encoding}-le or {encoding}-be"
        raise InputFileError(f"{path} {rule}") from None


def _read(raw: BinaryIO, path: str) -> Iterator[bytes]:
    """Read what a file has, decompressed. Beam would take the end of a cut file for the end of its text."""
    codec = next((codec for ending, codec in COMPRESSED.items() if path.endswith(ending)), None)
    stream: Any = raw
    try:
        if codec is not None:
            if not raw.read(1):
                raise EOFError
            raw.seek(0)
            zeros = path.endswith(".gz")  # may be its end
            packed = gzip.GzipFile if zeros else pa.CompressedInputStream
            stream = packed(fileobj=raw) if zeros else packed(pa.PythonFile(raw, mode="r"), codec)
        while piece := bytes(stream.read(BLOCK_BYTES)):
            yield piece
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of a disk or network
            raise
        rule = "cannot be decompressed to its end: it ends early, or it is damaged"
        raise InputFileError(f"{path} {rule}") from None


def check(path: str, form: TextForm = PLAIN) -> None:
    """Refuse compressed text that cannot be decompressed to its end."""
    for _ in read_pieces(path) if path.endswith(tuple(COMPRESSED)) else ():
        pass


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[list[tuple[int, bytes]] | Damage]:
    """Read lines that are not blank, with their numbers, in blocks of about a mebibyte; too long ones are reported."""
    line, rest = 1, b""
    for number, piece in enumerate(chain(read_pieces(path, encoding), [b"\n"])):
        text = rest + (piece if number else piece.removeprefix(BYTE_ORDER_MARK))
        whole, newline, rest = text.rpartition(b"\n")
        if newline:
            yield from _split(whole, line)
            line += whole.count(b"\n") + 1
        rest = rest[: MAX_LINE_BYTES + 2]  # is too long, whatever follows: a carriage return at the end does not count


def _split(block: bytes, first: int) -> Iterator[list[tuple[int, bytes]] | Damage]:
    found: list[tuple[int, bytes]] = []
    for number, line in enumerate(block.split(b"\n"), first):
        text = line.removesuffix(b"\r")
        if len(text) > MAX_LINE_BYTES:
            rule = f"line must be at most {MAX_LINE_BYTES} bytes"
            yield Damage("long_line", rule, f"line {number}", quote(line[:MAX_LINE_BYTES]))
        elif line.strip():
            found.append((number, text))
    if found:
        yield found


def schema(path: str, form: TextForm = PLAIN) -> None:
    """Make sure that the file can be opened; which fields a line of JSON has is decided line by line."""
    open_file(path).close()


def read(path: str, fields: Sequence[str], form: TextForm = PLAIN, group: int = 0) -> Iterator[RawEvents | Damage]:
    """Read some fields of JSON lines; lines that are no JSON objects are reported with their number."""
    for lines in read_lines(path, form.encoding):
        if isinstance(lines, Damage):
            yield lines
        else:
            numbers, texts = zip(*lines, strict=True)
            yield from read_objects(texts, fields, places("line", numbers))


def read_objects(
    texts: Sequence[bytes], fields: Sequence[str], position: Callable[[int], str], what: str = "line"
) -> Iterator[RawEvents | Damage]:
    """Read some fields of JSON objects, one in each text; other texts are reported."""
    found: dict[int, dict[str, Any]] = {}
    for number, text in enumerate(texts):
        if (row := parse_line(text)) is not None:
            found[number] = row
        else:
            yield Damage(f"malformed_{what}", REASON.replace("line", what), position(number), quote(text))
    if found:
        good, rows = list(found), list(found.values())
        columns = {name: column_of([row.get(name) for row in rows]) for name in fields}
        yield RawEvents(columns, lambda row: position(good[row]), lambda row: quote(texts[good[row]]))


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Parse one line; None if it is not one object."""
    try:
        row = from_json(text)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
