"""Reads Avro with fastavro, many blocks at a time.

The container's framing is read here and the records by fastavro, for three reasons: a damaged block costs only itself
(the reader goes on at the next sync marker), a large file can be read by several workers, and the logical types can be
left out of the schema: fastavro takes as long to make a `datetime` as to decode the rest of a record.
"""

import bisect
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import fastavro
import pyarrow as pa
from privstream.pipelines.sources.avro_schema import arrow_schema, without_logical_types
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part, RawEvents, describe_row, open_file

PART_BYTES = 1 << 26
GROUP_BYTES = 1 << 20
SYNC_BYTES = 16


def schema(path: str) -> pa.Schema:
    """Return the types of a file's fields."""
    with open_file(path) as stream:
        return _Container.open(stream, path).schema


def parts(path: str, size: int) -> Iterator[Part]:
    """Cut a file into ranges of bytes; a block belongs to the range in which it starts."""
    for start in range(0, max(size, 1), PART_BYTES):
        yield Part(start, min(start + PART_BYTES, size))


def read(path: str, part: Part, fields: Sequence[str]) -> Iterator[RawEvents | Damage]:
    """Read some fields of the blocks that start in a range of bytes.

    Events before and after a damaged block are kept; the block itself is reported.
    """
    with open_file(path) as stream:
        container = _Container.open(stream, path)
        group: list[_Block] = []
        for block in container.blocks(stream, part):
            if isinstance(block, Damage):
                yield from container.decode(group, fields)
                yield block
                group = []
                continue
            group.append(block)
            if sum(len(block.data) for block in group) >= GROUP_BYTES:
                yield from container.decode(group, fields)
                group = []
        yield from container.decode(group, fields)


class _Block(NamedTuple):
    """A block as it stands in the file, framing and all."""

    offset: int
    records: int
    data: bytes


@dataclass(frozen=True)
class _Container:
    """The header of an Avro file: its schema, and what its blocks need to be decoded apart from it."""

    path: str
    schema: pa.Schema
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
            raise InputFileError(f"{path} must hold records")
        stream.seek(first_block - SYNC_BYTES)
        sync = stream.read(SYNC_BYTES)
        try:
            fastavro.writer(io.BytesIO(), "null", [None], codec=codec)
        except ValueError as error:
            raise InputFileError(f"cannot read {path}: {error}") from None
        header = io.BytesIO()
        fastavro.writer(header, without_logical_types(written), [], codec=codec, sync_marker=sync)
        return cls(path, arrow_schema(written), header.getvalue(), first_block, sync)

    def blocks(self, stream: BinaryIO, part: Part) -> Iterator[_Block | Damage]:
        """Read the framing of the blocks that start in a range; after damage, go on behind the next sync marker."""
        start: int | None = self.first_block
        if part.start > self.first_block:
            start = self._behind_next_sync(stream, part.start - SYNC_BYTES)
        while start is not None and start < part.end:
            stream.seek(start)
            if (block := _read_block(stream, start, self.sync)) is not None:
                yield block
                start += len(block.data)
                continue
            behind = self._behind_next_sync(stream, start)
            until = "the end of the file" if behind is None else f"byte {behind}"
            yield self._damage(f"byte {start} to {until}")
            start = behind

    def decode(self, group: list[_Block], fields: Sequence[str]) -> Iterator[RawEvents | Damage]:
        """Decode a group of blocks at once or, if that fails, one by one."""
        if not group:
            return
        try:
            stream = io.BytesIO(b"".join([self.header, *[block.data for block in group]]))
            records: list[Any] = list(fastavro.reader(stream, handle_unicode_errors="surrogateescape"))
            complete = len(records) == sum(block.records for block in group)
        except Exception:  # fastavro raises whatever the bytes lead it to
            complete = False
        if complete:
            columns = {name: self._column(name, list(map(itemgetter(name), records))) for name in fields}
            yield RawEvents(columns, _Position(group), describe_row(columns))
        elif len(group) > 1:
            for block in group:
                yield from self.decode([block], fields)
        else:
            yield self._damage(f"block at byte {group[0].offset} with {group[0].records} records")

    def _column(self, name: str, values: list[Any]) -> pa.Array | list[Any]:
        """Give timestamps back the unit that their logical type says."""
        kind = self.schema.field(name).type
        return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else values

    def _damage(self, position: str) -> Damage:
        """Report a block."""
        return Damage("damaged_block", "block must be complete and decodable Avro", position)

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
    """Names the rows of a group of blocks."""

    def __init__(self, group: list[_Block]) -> None:
        self.offsets = [block.offset for block in group]
        self.ends: list[int] = []
        for block in group:
            self.ends.append((self.ends[-1] if self.ends else 0) + block.records)

    def __call__(self, row: int) -> str:
        block = bisect.bisect_right(self.ends, row)
        first = self.ends[block - 1] if block else 0
        return f"block at byte {self.offsets[block]}, record {row - first + 1}"


def _read_block(stream: BinaryIO, start: int, sync: bytes) -> _Block | None:
    """Read one block: the number of its records, its size, its bytes, the sync marker; None if it is damaged."""
    records, size = _read_long(stream), _read_long(stream)
    if records is None or size is None or records < 0 or size < 0:
        return None
    framing = stream.tell() - start
    end = stream.seek(0, io.SEEK_END)
    if start + framing + size + SYNC_BYTES > end:
        return None
    stream.seek(start)
    data = stream.read(framing + size + SYNC_BYTES)
    return _Block(start, records, data) if data.endswith(sync) else None


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
