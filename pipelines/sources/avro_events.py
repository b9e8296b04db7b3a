"""Reads Avro with fastavro, many blocks at a time.

The container's framing is read here and the records by fastavro, for four reasons: a damaged block costs only itself
(the reader goes on at the next sync marker), a large file can be read by several workers, what a block contains is
known before it is decoded, and the logical types can be left out of the schema: fastavro takes as long to make a
`datetime` as to decode the rest of a record.
"""

import bisect
import bz2
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import fastavro
import pyarrow as pa
import zstandard
from privstream.pipelines.sources.event_files import (
    PLAIN,
    Damage,
    InputFileError,
    Part,
    RawEvents,
    TextForm,
    describe_row,
    open_file,
)

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


PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "array": pa.list_(pa.null()),
    "map": pa.map_(pa.string(), pa.null()),
    "record": pa.struct([]),
    "error": pa.struct([]),
}

LOGICAL = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "decimal": pa.decimal128(38),
    "duration": pa.duration("ms"),
}


def arrow_schema(record: dict[str, Any]) -> pa.Schema:
    """Return the types of a record's fields; of nested types only the kind."""
    named: dict[str, pa.DataType] = {}
    return pa.schema([(field["name"], _arrow_type(field["type"], named)) for field in record["fields"]])


def check_decodable(record: dict[str, Any]) -> None:
    """Raise ValueError if some bytes of this type could not be decoded within bounds, whatever they are.

    A record within a record of its own type may go deeper than the stack of the decoder, which then takes the process
    down; items that take no bytes may be without end.
    """
    _takes_bytes(fastavro.parse_schema(record, _write_hint=False), {})


def _takes_bytes(kind: Any, named: dict[str, bool | None]) -> bool:
    """Tell whether every value of a type takes a byte or more; None stands for named types that are not complete."""
    if isinstance(kind, str):
        known = named.get(kind, kind != "null")
        if known is None:
            raise ValueError("a record must not be within a record of its own type")
        return known
    if isinstance(kind, list):
        for branch in kind:
            _takes_bytes(branch, named)
        return True  # the number of its branch is a byte
    base = kind["type"]
    if base in ("array", "map"):
        inner = _takes_bytes(kind.get("items", kind.get("values")), named)
        if base == "array" and not inner:
            raise ValueError("items of an array must not be of a type without any bytes")
        return True
    if base in ("record", "error"):
        named[kind["name"]] = None
        named[kind["name"]] = any([_takes_bytes(field["type"], named) for field in kind["fields"]])
    elif base in ("enum", "fixed"):
        named[kind["name"]] = base == "enum" or kind["size"] > 0
    else:
        return _takes_bytes(base, named)
    return bool(named[kind["name"]])


def without_logical_types(schema: Any) -> Any:
    """Return the schema under which numbers stay numbers."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(branch) for branch in schema] if isinstance(schema, list) else schema


def _arrow_type(kind: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of an Avro type; that of a union is the type besides null, or text if there are several."""
    if isinstance(kind, list):
        branches = [branch for branch in kind if branch != "null"] or ["null"]
        kinds = [_arrow_type(branch, named) for branch in branches]
        if len(kinds) == 1:
            return kinds[0]
        if any(map(_is_plain, kinds)) and not any(map(pa.types.is_timestamp, kinds)):
            return pa.string()  # each record is taken as it comes
        return pa.dense_union([pa.field(str(place), branch) for place, branch in enumerate(kinds)])
    if isinstance(kind, str):
        return PRIMITIVES[kind] if kind in PRIMITIVES else named.get(kind.rpartition(".")[2], pa.struct([]))
    base = kind["type"]
    found = LOGICAL.get(kind.get("logicalType")) or (_arrow_type(base, named) if not isinstance(base, str) else None)
    found = found or PRIMITIVES.get(base, pa.struct([]))
    if "name" in kind:
        named[kind["name"].rpartition(".")[2]] = found
    return found


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether values of a type may be users and items."""
    return kind in (pa.string(), pa.binary()) or bool(pa.types.is_integer(kind))


PART_BYTES = 1 << 26
GROUP_BYTES = 1 << 20
GROUP_RECORDS = 1 << 16
"""So many records are decoded at once; of a block with more, twice, to know whether it is whole before any is used."""


def schema(path: str, form: TextForm = PLAIN) -> pa.Schema:
    """Return the types of a file's fields."""
    with open_file(path) as stream:
        return _Container.open(stream, path).schema


def parts(path: str, size: int) -> Iterator[Part]:
    """Cut a file into ranges of bytes; a block belongs to the range in which it starts."""
    for start in range(0, max(size, 1), PART_BYTES):
        yield Part(start, min(start + PART_BYTES, size))


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields of the blocks that start in a range of bytes.

    Events before and after a damaged block are kept; the block itself is reported.
    """
    with open_file(path) as stream:
        container = _Container.open(stream, path)
        group: list[Block] = []
        for block in container.blocks(stream, part):
            if isinstance(block, Damage):
                yield from container.decode(group, fields)
                yield block
                group = []
                continue
            if _is_full([*group, block]):
                yield from container.decode(group, fields)
                group = []
            group.append(block)
        yield from container.decode(group, fields)


def _is_full(group: list[Block]) -> bool:
    """Tell whether so many blocks are too many to be decoded at once."""
    bytes_, records = sum(len(block.data) for block in group), sum(block.records for block in group)
    return bytes_ > GROUP_BYTES or records > GROUP_RECORDS


@dataclass(frozen=True)
class _Container:
    """The header of an Avro file: its schema, and what its blocks need to be decoded apart from it."""

    path: str
    schema: pa.Schema
    codec: str
    header: bytes
    first_block: int
    sync: bytes

    @classmethod
    def open(cls, stream: BinaryIO, path: str) -> "_Container":
        """Read the header."""
        try:
            metadata = fastavro.reader(stream).metadata
            first_block = stream.tell()
            written = json.loads(metadata["avro.schema"])
            codec = metadata.get("avro.codec", "null")
        except Exception as error:  # fastavro raises whatever the bytes lead it to
            raise InputFileError(
                f"{path} is not an Avro file, or its header is damaged ({type(error).__name__})"
            ) from None
        if not isinstance(written, dict) or written.get("type") != "record":
            raise InputFileError(f"{path} must have records")
        if codec not in CODECS:
            raise InputFileError(f"{path} must be compressed with one of {', '.join(CODECS)}")
        try:
            check_decodable(written)
        except ValueError as error:
            raise InputFileError(f"{path} must have another schema: {error}") from None
        stream.seek(first_block - SYNC_BYTES)
        sync = stream.read(SYNC_BYTES)
        header = io.BytesIO()
        fastavro.writer(header, without_logical_types(written), [], sync_marker=sync)
        return cls(path, arrow_schema(written), codec, header.getvalue(), first_block, sync)

    def blocks(self, stream: BinaryIO, part: Part) -> Iterator[Block | Damage]:
        """Read the blocks that start in a range; after damage, go on behind the next sync marker."""
        file_end = stream.seek(0, io.SEEK_END)
        start: int | None = self.first_block
        if part.start > self.first_block:
            start = self._behind_next_sync(stream, part.start - SYNC_BYTES)
        while start is not None and start < part.end:
            frame = read_frame(stream, start, self.sync, file_end)
            if frame is not None:
                yield self._block(frame)
                start = frame.end
                continue
            behind = self._behind_next_sync(stream, start)
            yield _lost(start, behind)
            start = behind

    def decode(self, group: list[Block], fields: Sequence[str]) -> Iterator[RawEvents | Damage]:
        """Decode a group of blocks at once or, if that fails, one by one."""
        decoded = self._decoded(group)
        first = 0
        for records in decoded or ():
            columns = {name: self._column(name, list(map(itemgetter(name), records))) for name in fields}
            yield RawEvents(columns, _Position(group, first), describe_row(columns))
            first += len(records)
        if decoded is not None:
            return
        if len(group) == 1:
            yield _refused(group[0], "block must be complete and decodable Avro")
            return
        for block in group:
            yield from self.decode([block], fields)

    def _decoded(self, group: list[Block]) -> Iterable[list[Any]] | None:
        """Return the records of a group, so many at a time; None if any of them cannot be decoded."""
        expected = sum(block.records for block in group)
        try:
            if expected <= GROUP_RECORDS:
                records = list(self._records(group))
                if len(records) != expected:
                    return None
                return [records] if records else []
            whole = sum(1 for _ in self._records(group)) == expected
        except Exception:  # fastavro raises whatever the bytes lead it to
            return None
        again = self._records(group)
        return iter(lambda: list(itertools.islice(again, GROUP_RECORDS)), []) if whole else None

    def _records(self, group: list[Block]) -> Iterator[Any]:
        """Decode the records of a group one by one."""
        stream = io.BytesIO(b"".join([self.header, *[block.framed(self.sync) for block in group]]))
        return iter(fastavro.reader(stream, handle_unicode_errors="surrogateescape"))

    def _block(self, frame: Frame) -> Block | Damage:
        """Read what stands in a frame."""
        try:
            return decompress(frame, self.codec)
        except BlockError as error:
            return _refused(frame, str(error))

    def _column(self, name: str, values: list[Any]) -> pa.Array | list[Any]:
        """Give timestamps back the unit that their logical type says."""
        kind = self.schema.field(name).type
        return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else values

    def _behind_next_sync(self, stream: BinaryIO, start: int) -> int | None:
        """Return the first offset behind a sync marker that begins at `start` or later."""
        stream.seek(start)
        window = b""
        while chunk := stream.read(GROUP_BYTES):
            window += chunk
            if (found := window.find(self.sync)) >= 0:
                return start + found + SYNC_BYTES
            start += max(len(window) - SYNC_BYTES + 1, 0)
            window = window[-SYNC_BYTES + 1 :]
        return None


class _Position:
    """Names the rows of a group of blocks, from one of its records on."""

    def __init__(self, group: list[Block], first: int) -> None:
        self.first = first
        self.offsets = [block.offset for block in group]
        self.ends = list(itertools.accumulate(block.records for block in group))

    def __call__(self, row: int) -> str:
        record = self.first + row
        block = bisect.bisect_right(self.ends, record)
        before = self.ends[block - 1] if block else 0
        return f"block at byte {self.offsets[block]}, record {record - before + 1}"


def _refused(block: Frame | Block, reason: str) -> Damage:
    """Report a block that cannot be used."""
    return Damage("damaged_block", reason, f"block at byte {block.offset} with {block.records} records")


def _lost(start: int, behind: int | None) -> Damage:
    """Report bytes that are no whole block: up to the next one, or to the end of the file."""
    if behind is None:
        reason = "file must not end within a block: it is damaged, or has been cut short"
        return Damage("cut_short", reason, f"byte {start} to the end of the file")
    return Damage("damaged_block", "block must end with the sync marker of its file", f"byte {start} to byte {behind}")
