"""Mechanism state as versioned bytes: numbers, byte strings and numpy arrays behind a checked header. Never pickle."""

import struct
import zlib
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from privstream.mechanisms.checks import SnapshotError

MAGIC = b"privstrm"

Buffer = bytes | memoryview

_ENVELOPE = struct.Struct("<8sQI")  # magic, length of the body, CRC-32 of the body
_HEADER = struct.Struct("<HIH")  # length of the kind's name, version, number of fields
_FIELD = struct.Struct("<HcQ")  # length of the name, type tag, length of the payload
_ARRAY_KINDS = "biuf"  # plain numbers only; object arrays would need pickle


def pack(kind: str, version: int, fields: Mapping[str, int | float | bytes | np.ndarray]) -> bytes:
    """Return `fields` as bytes that only `unpack` with the same `kind` and `version` accepts.

    Equal fields in equal order give equal bytes on every machine (arrays are stored little-endian).
    """
    name = kind.encode()
    parts: list[Buffer] = [_HEADER.pack(len(name), version, len(fields)), name]
    for field, value in fields.items():
        tag, payload = _encode(field, value)
        encoded = field.encode()
        parts += [_FIELD.pack(len(encoded), tag, sum(map(len, payload))), encoded, *payload]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([_ENVELOPE.pack(MAGIC, sum(map(len, parts)), checksum), *parts])  # the only copy of arrays


def unpack(kind: str, version: int, data: bytes) -> dict[str, int | float | bytes | np.ndarray]:
    """Return the fields of a snapshot; its arrays are fresh, writable copies.

    Raises:
        SnapshotError: `data` is not a snapshot, is truncated or damaged, or is of another kind or version.
    """
    if len(data) < _ENVELOPE.size or data[: len(MAGIC)] != MAGIC:
        raise SnapshotError(f"snapshot must start with {MAGIC!r} and a header of {_ENVELOPE.size} bytes")
    _, length, checksum = _ENVELOPE.unpack_from(data)
    body = memoryview(data)[_ENVELOPE.size :]
    if len(body) != length:
        raise SnapshotError(f"snapshot must have {length} bytes after its header, got {len(body)}")
    if zlib.crc32(body) != checksum:
        raise SnapshotError("snapshot must match its checksum; it is damaged")
    name_length, found_version, count = _HEADER.unpack_from(body)
    position = _HEADER.size + name_length
    found_kind = str(body[_HEADER.size : position], "utf-8")
    if found_kind != kind:
        raise SnapshotError(f"snapshot kind must be {kind!r}, got {found_kind!r}")
    if found_version != version:
        raise SnapshotError(f"snapshot version of {kind} must be {version}, got {found_version}")
    fields: dict[str, int | float | bytes | np.ndarray] = {}
    for _ in range(count):
        name_length, tag, size = _FIELD.unpack_from(body, position)
        start = position + _FIELD.size + name_length
        fields[str(body[position + _FIELD.size : start], "utf-8")] = _decode(tag, body[start : start + size])
        position = start + size
    return fields


def pack_state(kind: str, parameters: bytes, fields: Mapping[str, int | float | bytes | np.ndarray]) -> bytes:
    """Return the state of a mechanism as bytes that only one of this kind and with equal parameters restores."""
    return pack(kind, 1, {"parameters": parameters} | dict(fields))


def unpack_state(kind: str, parameters: bytes, data: bytes) -> dict[str, Any]:
    """Return the fields of a state, else raise SnapshotError."""
    fields = unpack(kind, 1, data)
    if fields.pop("parameters") != parameters:
        raise SnapshotError("snapshot must be made by a mechanism with equal parameters")
    return fields


def _encode(field: str, value: int | float | bytes | np.ndarray) -> tuple[bytes, tuple[Buffer, ...]]:
    """Return the type tag and the payload of one value, in parts."""
    if isinstance(value, bytes):
        return b"b", (value,)
    if isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS:
        little = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
        head = little.dtype.str.encode()
        shape = struct.pack(f"<BB{value.ndim}Q", len(head), value.ndim, *value.shape)
        return b"a", (shape, head, little.reshape(-1).view(np.uint8).data)
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        return b"i", (number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),)
    if isinstance(value, Real) and not isinstance(value, bool):
        return b"f", (struct.pack("<d", value),)
    found = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise TypeError(f"{field} must be an int, a float, bytes or an array of numbers, got {found}")


def _decode(tag: bytes, payload: memoryview) -> int | float | bytes | np.ndarray:
    """Return the value of one payload."""
    if tag == b"b":
        return bytes(payload)
    if tag == b"i":
        return int.from_bytes(payload, "little", signed=True)
    if tag == b"f":
        return float(struct.unpack("<d", payload)[0])
    head_length, dimensions = payload[0], payload[1]
    shape = struct.unpack_from(f"<{dimensions}Q", payload, 2)
    start = 2 + 8 * dimensions
    dtype = np.dtype(str(payload[start : start + head_length], "ascii"))
    little = np.frombuffer(payload[start + head_length :], dtype=dtype).reshape(shape)
    return little.astype(dtype.newbyteorder("="), copy=True)
