"""Mechanism state as versioned bytes: numbers, byte strings and numpy arrays behind a checked header. Never pickle."""

import json
import struct
import zlib
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from privstream.mechanisms.checks import SnapshotError

MAGIC = b"privstrm"

_ENVELOPE = struct.Struct("<8sQI")  # magic, length of the body, CRC-32 of the body
_SIZE = struct.Struct("<I")  # of the header, with which the body begins
_ARRAY_KINDS = "biuf"  # plain numbers only; object arrays would need pickle


def pack(kind: str, version: int, fields: Mapping[str, int | float | bytes | np.ndarray]) -> bytes:
    """Return `fields` as bytes that only `unpack` with the same `kind` and `version` accepts.

    Equal fields in equal order give equal bytes on every machine (arrays are stored little-endian).
    """
    named: list[list[Any]] = []
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if isinstance(value, bytes):
            named.append([name, "bytes", len(value)])
            parts.append(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS:
            little = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
            named.append([name, little.dtype.str, value.shape])
            parts.append(little.reshape(-1).view(np.uint8).data)
        elif isinstance(value, Integral) and not isinstance(value, bool):
            named.append([name, "int", hex(value)])
        elif isinstance(value, Real) and not isinstance(value, bool):
            named.append([name, "float", float(value).hex()])
        else:
            found = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"{name} must be an int, a float, bytes or an array of numbers, got {found}")
    header = json.dumps([kind, version, named]).encode()
    parts[:0] = [_SIZE.pack(len(header)), header]
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
    if len(body) != length or zlib.crc32(body) != checksum:
        raise SnapshotError("snapshot must match its length and its checksum; it is damaged")
    place = _SIZE.size + _SIZE.unpack_from(body)[0]
    found_kind, found_version, named = json.loads(bytes(body[_SIZE.size : place]))
    if (found_kind, found_version) != (kind, version):
        raise SnapshotError(f"snapshot must be of {kind!r}, version {version}, got {found_kind!r}, {found_version}")
    fields: dict[str, int | float | bytes | np.ndarray] = {}
    for name, form, about in named:
        if form == "int":
            fields[name] = int(about, 16)
        elif form == "float":
            fields[name] = float.fromhex(about)
        elif form == "bytes":
            fields[name] = bytes(body[place : place + about])
            place += about
        else:
            little = np.frombuffer(body, np.dtype(form), int(np.prod(about)), place).reshape(about)
            fields[name] = little.astype(little.dtype.newbyteorder("="), copy=True)
            place += little.nbytes
    return fields
