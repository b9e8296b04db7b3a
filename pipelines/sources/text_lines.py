"""Reads text files in blocks of whole lines, each with the number of its first line."""

import codecs
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import pyarrow as pa
from privstream.pipelines.sources.event_files import (
    COMPRESSED,
    MAX_RECORD_CHARACTERS,
    UTF_8,
    Damage,
    InputFileError,
    cut,
    open_file,
)

BLOCK_BYTES = 1 << 20
NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
"""Encodings of names and of source text, or with several spellings of one character."""

SHIFTED = ("hz", "iso2022")
"""How the names of encodings begin in which bytes of one record can change what all bytes after it mean."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BROKEN = "{} cannot be decompressed to its end: it ends early, or it is damaged"


class CompressionError(InputFileError):
    """A file that cannot be decompressed to its end."""


def read_pieces(path: str, start: int = 0, size: int | None = None, encoding: str = UTF_8) -> Iterator[bytes]:
    """Read a file as UTF-8, from a byte of its text on.

    Args:
        path: the file, on any of Beam's filesystems.
        start: the first byte to read, counted in the text as it is given, with its byte order mark.
        size: bytes of the first piece; each piece is twice as long as the one before, up to a mebibyte.
        encoding: of the file; what is no text in it becomes bytes that are no UTF-8.

    Raises:
        InputFileError: there is no such file, it has no byte order mark where its encoding needs one, or that of UTF-8
            where another encoding is named.
        CompressionError: what is compressed ends early or is damaged; most of what comes before has been given by then.
    """
    size = size or BLOCK_BYTES
    with open_file(path) as raw:
        stream = _decompressed(raw, path)
        if stream is raw and encoding == UTF_8:
            raw.seek(start)
            start = 0
        try:
            pieces = _pieces(stream, size, path)
            for piece in pieces if encoding == UTF_8 else _as_utf_8(pieces, encoding, path):
                if start < len(piece):
                    yield piece[start:]
                start = max(start - len(piece), 0)
        except UnicodeError:  # of its first bytes alone
            rule = f"must begin with a byte order mark, or --encoding say {encoding}-le or {encoding}-be"
            raise InputFileError(f"{path} {rule}") from None


def _pieces(stream: BinaryIO | gzip.GzipFile | pa.NativeFile, size: int, path: str) -> Iterator[bytes]:
    """Read what a stream has left."""
    while piece := _read(stream, size, path):
        yield piece
        size = min(2 * size, BLOCK_BYTES)


def _as_utf_8(pieces: Iterator[bytes], encoding: str, path: str) -> Iterator[bytes]:
    """Return text of another encoding as UTF-8."""
    first = next(pieces, b"")
    if first.startswith(BYTE_ORDER_MARK):
        raise InputFileError(f"--encoding must be utf-8, or left out: {path} begins with the byte order mark of UTF-8")
    for text in _decoded(chain([first], pieces), encoding):
        yield text.encode(UTF_8, "surrogateescape")


def _decoded(pieces: Iterator[bytes], encoding: str) -> Iterator[str]:
    """Decode text, with `\\udcff` in the place of what is none."""
    decoder = codecs.getincrementaldecoder(encoding)(NO_TEXT)
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", True)


def _as_no_text(error: UnicodeError) -> tuple[str, int]:
    """Put what no UTF-8 has, a byte 255, in the place of bytes that are no text: neighbours cannot make text of it."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


NO_TEXT = "privstream_no_text"
codecs.register_error(NO_TEXT, _as_no_text)


def encoding_of(name: str) -> str:
    """Return the name that Python has for an encoding.

    Raises:
        ValueError: it knows none of that name, or none in which each record can be read by itself.
    """
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        found = None
    if found is not None and found.name.startswith(SHIFTED):
        rule = "in which no bytes of one record change what those of the next one mean, as utf-8"
        raise ValueError(f"encoding must be one {rule}, got {name!r}")
    text = found is not None and found._is_text_encoding and found.incrementaldecoder is not None
    if found is None or not text or found.name in NOT_OF_FILES:
        raise ValueError(f"encoding must be one that Python knows, such as utf-8 or windows-1252, got {name!r}")
    return UTF_8 if found.name == "utf-8-sig" else found.name


def _decompressed(raw: BinaryIO, path: str) -> BinaryIO | gzip.GzipFile | pa.NativeFile:
    """Return a stream of the text. Beam's own would take the end of a cut file for the end of its text."""
    codec = next((codec for ending, codec in COMPRESSED.items() if path.endswith(ending)), None)
    if codec is None:
        return raw
    if not raw.read(1):
        raise CompressionError(BROKEN.format(path))
    raw.seek(0)
    if codec == "gzip" and path.endswith(".gz"):  # of which zeros may be the end
        return gzip.GzipFile(fileobj=raw)
    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


def _read(stream: BinaryIO | gzip.GzipFile | pa.NativeFile, size: int, path: str) -> bytes:
    """Read some bytes; none at the end."""
    try:
        return bytes(stream.read(size))
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of a disk or network
            raise
        raise CompressionError(BROKEN.format(path)) from None


MAX_LINE_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines of a file that are not blank, and the number of each (the file's first line is 1)."""

    numbers: list[int]
    texts: list[bytes]

    def position(self, row: int) -> str:
        """Say where a line stands."""
        return f"line {self.numbers[row]}"

    def record(self, row: int) -> str:
        """Quote a line for its dead letter."""
        return quote(self.texts[row])

    def take(self, rows: Sequence[int]) -> "Lines":
        """Keep some of the lines."""
        return Lines([self.numbers[row] for row in rows], [self.texts[row] for row in rows])


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[Lines | Damage]:
    """Read a file, compressed or not, in blocks of about a mebibyte; lines that are too long are reported."""
    first, rest, passing = 1, b"", False
    for number, piece in enumerate(read_pieces(path, encoding=encoding)):
        text = piece if number else piece.removeprefix(BYTE_ORDER_MARK)
        if passing:
            _, newline, text = text.partition(b"\n")
            first, passing = first + len(newline), not newline
        whole, newline, rest = (rest + text).rpartition(b"\n")
        if newline:
            yield from _split(whole, first)
            first += whole.count(b"\n") + 1
        if len(rest) > MAX_LINE_BYTES + 1:  # a carriage return at the end does not count
            yield too_long("line", first, rest)
            rest, passing = b"", True
    if rest:
        yield from _split(rest, first)


def quote(text: bytes) -> str:
    """Quote a piece of a file for its dead letter."""
    return cut(text[: 4 * MAX_RECORD_CHARACTERS + 4].decode("utf-8", "backslashreplace"))


def too_long(what: str, number: int, text: bytes) -> Damage:
    """Report a line or record that is not read to its end; `text` is at least its beginning."""
    return Damage(
        "long_line", f"{what} must be at most {MAX_LINE_BYTES} bytes", f"line {number}", quote(text[:MAX_LINE_BYTES])
    )


def _split(block: bytes, first: int) -> Iterator[Lines | Damage]:
    """Split a block into lines and leave out blank ones."""
    texts = [line.removesuffix(b"\r") for line in block.split(b"\n")]
    lines = Lines(list(range(first, first + len(texts))), texts)
    kept = [row for row, text in enumerate(texts) if text.strip()]
    if len(block) > MAX_LINE_BYTES:
        for row in [row for row in kept if len(texts[row]) > MAX_LINE_BYTES]:
            kept.remove(row)
            yield too_long("line", lines.numbers[row], texts[row])
    if kept:
        yield lines if len(kept) == len(texts) else lines.take(kept)
