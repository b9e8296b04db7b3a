"""Reads Avro with fastavro, block by block; a file that cannot be read to its end is refused."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
from fastavro._read import BLOCK_READERS
from privstream.pipelines.sources.formats import PLAIN, RawEvents, TextForm, UnfitError, numbered
from privstream.transforms.reading.fields import column_of

BLOCK_BYTES = 1 << 24  # the most that a block may have, decompressed; writers make blocks of 16 KiB to 2 MiB
GROUP_BYTES, GROUP_RECORDS = 1 << 20, 1 << 14
"""What is decoded at once: blocks of this many bytes in the file together, or this many records."""

RULE = "is not an Avro file, or is damaged or cut short"
MOST_DECIMAL, EXACT = 10**38, Context(prec=38)


def _checked(size: int) -> int:
    if size > BLOCK_BYTES:
        raise UnfitError(f"a block must have at most {BLOCK_BYTES:,} bytes, decompressed")
    return size


def _inflate(data: bytes) -> bytes:
    """Decompress what must have its end, or be more than a block may have."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = stream.decompress(data, BLOCK_BYTES + 1)
    if _checked(len(found)) and not stream.eof:
        raise UnfitError("a block must be compressed data that does not end early")
    return found


def _decompress(codec: str, data: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), codec).read(BLOCK_BYTES + 1))


def _unsnappy(data: bytes) -> bytes:
    """Decompress what begins with its size, a number of variable length, and has a checksum behind it."""
    ends = next((place for place, byte in enumerate(data[:5], 1) if byte < 0x80), 0)
    size = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(data[:ends]))
    text = bytes(pa.Codec("snappy").decompress(data[:-4], _checked(size), asbytes=True))
    if zlib.crc32(text) != int.from_bytes(data[-4:], "big"):
        raise UnfitError("a block must have the checksum that stands behind it")
    return text


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "bzip2": partial(_decompress, "bz2"),
    "zstandard": partial(_decompress, "zstd"),
    "snappy": _unsnappy,
}


def _read_block(codec: str, stream: Any) -> io.BytesIO:
    """Read a block for fastavro, whose own readers need other libraries, and know no bounds."""
    compressed: Any = fastavro.schemaless_reader(stream, "bytes", None)
    data = CODECS[codec](compressed)
    _checked(len(data))
    return io.BytesIO(data)


BLOCK_READERS.update({codec: partial(_read_block, codec) for codec in CODECS})

PRIMITIVES = {
    **{"null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32()},
    **{"double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(), "fixed": pa.binary()},
    **{"array": pa.list_(pa.null()), "map": pa.map_(pa.string(), pa.null())},
    **{"record": pa.struct([]), "error": pa.struct([])},
}
UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
LOGICAL = {
    **{f"timestamp-{name}": pa.timestamp(unit, "UTC") for name, unit in UNITS.items()},
    **{f"local-timestamp-{name}": pa.timestamp(unit) for name, unit in UNITS.items()},
    **{"date": pa.date32(), "time-millis": pa.time32("ms"), "time-micros": pa.time64("us")},
    "duration": pa.duration("ms"),
}


def _kind_of(kind: Any, named: dict[str, tuple[pa.DataType, bool]]) -> tuple[pa.DataType, bool]:
    """Return what an Avro type is in Arrow, of nested ones only the kind; and whether each value takes a byte or more.

    A record within a record of its own type is refused, for it may go deeper than the stack of the decoder and take the
    process down; and items that take no bytes, for they may be without end.
    """
    if isinstance(kind, list):  # a union, whose values have numbers
        kinds = [_kind_of(branch, named)[0] for branch in kind if branch != "null"]
        told = [each for each in kinds if pa.types.is_temporal(each) or pa.types.is_decimal(each)]
        if len(kinds) > 1 and told:  # of a number it is not known what it is
            return pa.dense_union([pa.field(str(place), each) for place, each in enumerate(kinds)]), True
        return (kinds[0] if len(kinds) == 1 else pa.string() if kinds else pa.null()), True
    if isinstance(kind, str):
        if kind not in PRIMITIVES and kind not in named:
            raise UnfitError("a record must not be within a record of its own type")
        return named[kind] if kind in named else (PRIMITIVES[kind], kind != "null")
    base, logical = kind["type"], kind.get("logicalType")
    if base not in PRIMITIVES:
        return _kind_of(base, named)
    takes_bytes = base != "null" and kind.get("size", 1) > 0
    inner = _kind_of(kind.get("items", kind.get("values")), named) if base in ("array", "map") else None
    if base == "array" and inner and not inner[1]:
        raise UnfitError("items of an array must not be of a type without any bytes")
    if base in ("record", "error"):
        takes_bytes = any([_kind_of(field["type"], named)[1] for field in kind["fields"]])
    found = LOGICAL.get(logical, PRIMITIVES[base])
    if logical == "decimal":
        found = pa.decimal128(38, min(kind.get("scale", 0), 38))
    elif logical == "uuid" and base == "fixed":
        found = pa.uuid()
    if "name" in kind:
        named[kind["name"]] = found, takes_bytes
    return found, takes_bytes


def schema(stream: BinaryIO, form: TextForm = PLAIN) -> pa.Schema:
    """Return the types of a file's fields."""
    return _blocks(stream)[0]


def check(stream: BinaryIO, form: TextForm = PLAIN) -> None:
    """Refuse a file with a block or a record that cannot be decoded."""
    for _ in read(stream, form.names):
        pass


def read(stream: BinaryIO, fields: Sequence[str], form: TextForm = PLAIN, group: int = 0) -> Iterator[RawEvents]:
    """Read some fields; a file that is damaged, or ends within a block, is refused."""
    types, blocks = _blocks(stream)
    first = 1
    for rows in _groups(blocks):
        columns = {name: _column(types.field(name).type, list(map(itemgetter(name), rows))) for name in fields}
        yield numbered(columns, "record", range(first, first + len(rows)))
        first += len(rows)


def _groups(blocks: Iterator[Any]) -> Iterator[list[Any]]:
    """Decode blocks, and put the records of small ones together."""
    held: list[Any] = []
    size = 0
    for block in blocks:
        records = iter(block)
        while rows := list(islice(records, GROUP_RECORDS)):
            held, size = held + rows, size + len(block.bytes_.getbuffer())
            if size >= GROUP_BYTES or len(held) >= GROUP_RECORDS:
                yield held
                held, size = [], 0
        if block.bytes_.read(1):
            raise UnfitError("a block must have the bytes of its records and no others")
    if held:
        yield held


def _blocks(stream: BinaryIO) -> tuple[pa.Schema, Iterator[Any]]:
    """Return the types of a file's fields, and its blocks."""
    blocks = fastavro.block_reader(stream, handle_unicode_errors="surrogateescape")
    if blocks.codec not in CODECS:
        raise UnfitError(f"codec {blocks.codec} is not read, only {', '.join(CODECS)}")
    written: Any = blocks.writer_schema
    if not isinstance(written, dict) or written.get("type") != "record":
        raise UnfitError("it must have records")
    named: dict[str, tuple[pa.DataType, bool]] = {}
    kinds = {field["name"]: _kind_of(field["type"], named) for field in written["fields"]}
    if not any(takes_bytes for _, takes_bytes in kinds.values()):
        raise UnfitError("its records must have fields that take bytes")
    _drop_logical_types(written)
    return pa.schema([(name, kind) for name, (kind, _) in kinds.items()]), blocks


def _drop_logical_types(kind: Any) -> None:
    """Leave logical types out of a schema, in place: fastavro is slow at them, and times may be none in Python."""
    if isinstance(kind, dict):
        kind.pop("logicalType", None)
    for inner in kind.values() if isinstance(kind, dict) else kind if isinstance(kind, list) else ():
        _drop_logical_types(inner)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Give values back what their logical type says; the rest is taken as it comes."""
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([_decimal(value, kind.scale) for value in values], kind)
    return pa.array(values, kind) if kind == pa.uuid() else column_of(values)


def _decimal(value: bytes | None, scale: int) -> Decimal | None:
    """Return a decimal; None for one that has no room in 38 digits."""
    number = MOST_DECIMAL if value is None else int.from_bytes(value, "big", signed=True)
    return None if abs(number) >= MOST_DECIMAL else Decimal(number).scaleb(-scale, EXACT)
