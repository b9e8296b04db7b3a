"""Reads Avro with fastavro, many blocks at a time.

The container's framing is read here and the records by fastavro, for four reasons: a damaged block costs only itself
(the reader goes on at the next sync marker), a large file can be read by several workers, what a block contains is
known before it is decoded, and the logical types can be left out of the schema: fastavro takes as long to make a
`datetime` as to decode the rest of a record.
"""

import bisect
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
from privstream.pipelines.sources.avro_blocks import (
    CODECS,
    SYNC_BYTES,
    Block,
    BlockError,
    Frame,
    decompress,
    read_frame,
)
from privstream.pipelines.sources.avro_schema import arrow_schema, check_decodable, without_logical_types
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part, RawEvents, describe_row, open_file

PART_BYTES = 1 << 26
GROUP_BYTES = 1 << 20
GROUP_RECORDS = 1 << 16
"""So many records are decoded at once; of a block with more, twice, to know whether it is whole before any is used."""


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
