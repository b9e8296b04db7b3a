"""The blocks of an Avro file: their framing, and what is in them, decompressed but not decoded.

A block states itself how many records and bytes it has, and a few bytes of it may stand for gigabytes. So nothing is
believed, and nothing decompressed, beyond `BLOCK_BYTES`.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import zstandard

BLOCK_BYTES = 1 << 24
"""A block may have so many bytes, compressed and decompressed; writers make blocks of 16 KiB to 2 MiB."""

SYNC_BYTES = 16
CRC_BYTES = 4
LENGTH_BYTES = 4  # before what lz4 has compressed


class BlockError(ValueError):
    """A block that cannot be used; the message says which rule it breaks."""


class Frame(NamedTuple):
    """Where a block stands in its file, what it says of itself, and its bytes: None if they are too many."""

    offset: int
    records: int
    end: int
    data: bytes | None


class Block(NamedTuple):
    """A block without compression."""

    offset: int
    records: int
    data: bytes

    def framed(self, sync: bytes) -> bytes:
        """Return the block as it stands in a file without compression."""
        return b"".join([_write_long(self.records), _write_long(len(self.data)), self.data, sync])


def read_frame(stream: BinaryIO, offset: int, sync: bytes, file_end: int) -> Frame | None:
    """Read the block at an offset up to the sync marker behind it; None if it is not whole."""
    stream.seek(offset)
    records, size = _read_long(stream), _read_long(stream)
    if records is None or size is None or records < 0 or size < 0:
        return None
    start = stream.tell()
    end = start + size + SYNC_BYTES
    if end > file_end:
        return None
    data = stream.read(size) if size <= BLOCK_BYTES else None
    stream.seek(end - SYNC_BYTES)
    return Frame(offset, records, end, data) if stream.read(SYNC_BYTES) == sync else None


def decompress(frame: Frame, codec: str) -> Block:
    """Return a block without compression.

    Raises:
        BlockError: it is too large, is damaged, or has fewer bytes than records.
    """
    if frame.data is None:
        raise _too_large()
    try:
        data = CODECS[codec](frame.data)
    except BlockError:
        raise
    except Exception:  # each codec has errors of its own
        raise BlockError("block must be decompressed without error") from None
    if frame.records > len(data):
        raise BlockError("block must have a byte for each of its records")
    return Block(frame.offset, frame.records, data)


def _too_large() -> BlockError:
    return BlockError(f"block must have at most {BLOCK_BYTES:,} bytes, decompressed")


def _checked(data: bytes, complete: bool = True) -> bytes:
    """Return what was decompressed, if it is whole and not too large."""
    if len(data) > BLOCK_BYTES:
        raise _too_large()
    if not complete:
        raise BlockError("block must be compressed data that does not end early")
    return data


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    return _checked(stream.decompress(data, BLOCK_BYTES + 1), stream.eof)


def _bunzip(data: bytes) -> bytes:
    stream = bz2.BZ2Decompressor()
    return _checked(stream.decompress(data, BLOCK_BYTES + 1), stream.eof)


def _unxz(data: bytes) -> bytes:
    stream = lzma.LZMADecompressor(memlimit=4 * BLOCK_BYTES)
    return _checked(stream.decompress(data, BLOCK_BYTES + 1), stream.eof)


def _unzstd(data: bytes) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES).stream_reader(data)
    return _checked(stream.read(BLOCK_BYTES + 1))


def _unsnappy(data: bytes) -> bytes:
    """Decompress snappy, which begins with the length of the text, and check the sum behind it."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    text = _sized("snappy", data[:-CRC_BYTES], size)
    if zlib.crc32(text) != int.from_bytes(data[-CRC_BYTES:], "big"):
        raise BlockError("block must have the checksum that stands behind it")
    return text


def _unlz4(data: bytes) -> bytes:
    return _sized("lz4_raw", data[LENGTH_BYTES:], int.from_bytes(data[:LENGTH_BYTES], "little"))


def _sized(codec: str, data: bytes, size: int) -> bytes:
    """Decompress to so many bytes."""
    if size > BLOCK_BYTES:
        raise _too_large()
    return bytes(pa.Codec(codec).decompress(data, size, asbytes=True))


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": _checked,
    "deflate": _inflate,
    "bzip2": _bunzip,
    "xz": _unxz,
    "zstandard": _unzstd,
    "snappy": _unsnappy,
    "lz4": _unlz4,
}


def _read_long(stream: BinaryIO) -> int | None:
    """Read a zigzag number of variable length; None if it is cut off or too long."""
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    return None


def _write_long(value: int) -> bytes:
    """Write a number, not negative, as `_read_long` reads it."""
    value <<= 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
