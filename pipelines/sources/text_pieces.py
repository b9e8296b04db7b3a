"""Reads the bytes of a text file piece by piece, decompressed where its name says so."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
from privstream.pipelines.sources.event_files import COMPRESSED, InputFileError, open_file

BLOCK_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BROKEN = "{} cannot be decompressed to its end: it ends early, or it is damaged"


class CompressionError(InputFileError):
    """A file that cannot be decompressed to its end."""


def read_pieces(path: str, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Read a file from a byte of its text on.

    Args:
        path: the file, on any of Beam's filesystems.
        start: the first byte to read, counted in the decompressed text, with its byte order mark.
        size: bytes of the first piece; each piece is twice as long as the one before, up to a mebibyte.

    Raises:
        InputFileError: there is no such file.
        CompressionError: what is compressed ends early or is damaged; most of what comes before has been given by then.
    """
    size = size or BLOCK_BYTES
    with open_file(path) as raw:
        stream = _decompressed(raw, path)
        if stream is raw:
            raw.seek(start)
            start = 0
        while piece := _read(stream, size, path):
            if start < len(piece):
                yield piece[start:]
            start = max(start - len(piece), 0)
            size = min(2 * size, BLOCK_BYTES)


def _decompressed(raw: BinaryIO, path: str) -> BinaryIO | pa.NativeFile:
    """Return a stream of the text. Beam's own would take the end of a cut file for the end of its text."""
    codec = next((codec for ending, codec in COMPRESSED.items() if path.endswith(ending)), None)
    if codec is None:
        return raw
    if not raw.read(1):
        raise CompressionError(BROKEN.format(path))
    raw.seek(0)
    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


def _read(stream: BinaryIO | pa.NativeFile, size: int, path: str) -> bytes:
    """Read some bytes; none at the end."""
    try:
        return bytes(stream.read(size))
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of a disk or network
            raise
        raise CompressionError(BROKEN.format(path)) from None
