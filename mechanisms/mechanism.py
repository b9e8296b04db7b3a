"""Mechanism: what all mechanisms on streams share: parameters, noise of their own, and state as versioned bytes."""

from __future__ import annotations

import functools
import json
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee

State = TypeVar("State")

MAGIC = b"privstrm"

SEGMENT = 65_536
"""People whose charges are stored together."""

_ENVELOPE = struct.Struct("<8sQI")  # magic, length of the body, CRC-32 of the body
_SIZE = struct.Struct("<I")  # of the header, with which the body begins
_ARRAY_KINDS = "biuf"  # plain numbers only; object arrays would need pickle


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC, Generic[State]):
    """A mechanism on a stream. Its fields are its parameters; data, noise and state are arguments of its methods."""

    NOISE_VERSION: ClassVar[int] = 1
    """Goes up when equal parameters, totals and labels draw other noise."""
    noise_label: ClassVar[str]
    state_type: ClassVar[type[Any]]

    @property
    @abstractmethod
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""

    def initial_state(self) -> State:
        """Return the state before the first step."""
        return cast(State, self.state_type())

    def snapshot(self, state: State) -> bytes:
        """Return `state` as bytes that only a mechanism with equal parameters restores; as private as the state is."""
        return pack(f"{type(self).__name__} state", 1, {"parameters": self.parameters} | state_fields(state))

    def restore(self, data: bytes) -> State:
        """Return the state in a snapshot.

        Raises:
            SnapshotError: no snapshot of this mechanism, or one of a mechanism with other parameters.
        """
        found = unpack(f"{type(self).__name__} state", 1, data)
        if found.pop("parameters") != self.parameters:
            raise SnapshotError("snapshot must be made by a mechanism with equal parameters")
        state = None
        with suppress(KeyError):
            state = cast(State, state_of(self.state_type, found))
        if state is None or found:
            raise SnapshotError("snapshot must have the fields of this state, and no others")
        return state

    @cached_property
    def parameters(self) -> bytes:
        """The parameters as bytes: part of noise labels and of snapshots. They stay as they are in all versions.

        With other parameters the noise is another one: equal noise at two scales, added to one value, would give it
        away.
        """
        return json.dumps(self._described(), sort_keys=True).encode()

    def _described(self) -> Any:
        """Return the parameters as plain values, all numbers as floats: equal mechanisms have equal labels."""
        return _fields_of(self)

    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return noise that no mechanism of another kind or with other parameters draws."""
        return noise.derive(self.noise_label, self.parameters)


def state_fields(value: Any, name: str = "state") -> dict[str, Any]:
    """Return a state as numbers, bytes and arrays by name: records field by field, charges as one."""
    if isinstance(value, UserCounters):
        return state_fields(value.compact(), name)
    if is_dataclass(value):
        parts = (state_fields(getattr(value, field.name), f"{name}.{field.name}") for field in fields(value))
        return {name: one for part in parts for name, one in part.items()}
    if isinstance(value, tuple):
        parts = (state_fields(one, f"{name}.{place}") for place, one in enumerate(value))
        return {name: len(value)} | {name: one for part in parts for name, one in part.items()}
    if isinstance(value, dict):
        return {f"{name}.keys": np.array(list(value), np.int64)} | {
            f"{name}.{place}": one for place, one in enumerate(value.values())
        }
    return {} if value is None else {name: int(value) if isinstance(value, bool) else value}


def state_of(kind: Any, found: dict[str, Any], name: str = "state") -> Any:
    """Return the value of a type, such as a state, of which `state_fields` has made fields, and take these away."""
    if get_origin(kind) is tuple:
        return tuple(state_of(get_args(kind)[0], found, f"{name}.{place}") for place in range(found.pop(name)))
    if get_origin(kind) is dict:
        return {key: found.pop(f"{name}.{place}") for place, key in enumerate(found.pop(f"{name}.keys").tolist())}
    if kind is UserCounters:
        return UserCounters().add(state_of(Charges, found, name))
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        return cast(Any, kind)(**{one: state_of(hints[one], found, f"{name}.{one}") for one in hints})
    value = found.pop(name, None) if type(None) in get_args(kind) else found.pop(name)
    return bool(value) if kind is bool else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a record."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(cast(Any, kind))}


def described(mechanism: Any) -> bytes:
    """Return the parameters of a mechanism as bytes, all numbers as floats: equal mechanisms have equal labels."""
    return json.dumps(_fields_of(mechanism), sort_keys=True).encode()


def _fields_of(mechanism: Any) -> list[Any]:
    return [
        type(mechanism).__name__,
        {field.name: _plain(getattr(mechanism, field.name)) for field in fields(mechanism)},
    ]


def _plain(value: Any) -> Any:
    """Return a parameter as a plain value for JSON; a query as it describes itself, without a caller's function."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "describe"):
        return value.describe()
    return float(value) if isinstance(value, int) and value < 1 << 53 else value


def pack(kind: str, version: int, fields: Mapping[str, int | float | bytes | np.ndarray]) -> bytes:
    """Return `fields` as versioned bytes that only `unpack` with the same `kind` and `version` accepts.

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


@dataclass(frozen=True, eq=False)
class Charges:
    """How much distinct people are charged in one step: their hashes, uint64 (n,), strictly increasing, and amounts.

    Amounts have a type in which they fit: one that wrapped round would let a person in again.
    """

    keys: Words
    values: np.ndarray

    @classmethod
    def of(cls, users: Words) -> Charges:
        """Charge each person as often as mentioned."""
        people, amounts = np.unique(users, return_counts=True)
        return cls(people, amounts.astype(np.min_scalar_type(amounts.max(initial=0))))

    def merged(self, newer: Charges) -> Charges:
        """Return this and what was charged later as one."""
        users = np.concatenate([self.keys, newer.keys])
        order = np.argsort(users, kind="stable")  # two sorted runs: timsort merges them in one pass
        users = users[order]
        first = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
        total = np.add.reduceat(np.concatenate([self.values, newer.values])[order], first, dtype=np.int64)
        return Charges(users[first], total.astype(np.min_scalar_type(total.max())))

    def slice(self, start: int, stop: int) -> Charges:
        """Return what stands from place `start` to before place `stop`."""
        return Charges(self.keys[start:stop], self.values[start:stop])

    def to_bytes(self) -> bytes:
        """Encode as versioned bytes."""
        return pack("user counters", 1, {"keys": self.keys, "values": self.values})

    @classmethod
    def from_bytes(cls, data: bytes) -> Charges:
        """Decode what `to_bytes` wrote."""
        return cls(**cast(Any, unpack("user counters", 1, data)))


NOBODY = Charges(np.empty(0, np.uint64), np.empty(0, np.uint8))


@dataclass(frozen=True, eq=False)
class UserCounters:
    """The sum of all charges so far, per person, as sorted runs, oldest first. A value: `add` returns a new one.

    The lengths of the runs at least halve from one to the next, so that adding m people costs O(m log n) amortised,
    looking up m people costs O(m log^2 n), and old values stay valid.
    """

    runs: tuple[Charges, ...] = ()

    @classmethod
    def of(cls, runs: Iterable[Charges]) -> UserCounters:
        """Add charges in the order given."""
        return functools.reduce(cls.add, runs, cls())

    def add(self, run: Charges) -> UserCounters:
        """Return these with further charges."""
        runs = list(self.runs)
        while runs and len(runs[-1].keys) < 2 * len(run.keys):
            run = runs.pop().merged(run)
        return UserCounters((*runs, run) if len(run.keys) else tuple(runs))

    def charged(self, users: Words) -> Integers:
        """Return what each of `users` (any order, repeats allowed) has been charged, int64."""
        total: Integers = np.zeros(len(users), np.int64)
        for run in self.runs:
            place = np.minimum(np.searchsorted(run.keys, users), len(run.keys) - 1)
            total += np.where(run.keys[place] == users, run.values[place], 0).astype(np.int64)
        return total

    def compact(self) -> Charges:
        """Return all charges as one run."""
        return functools.reduce(Charges.merged, self.runs) if self.runs else NOBODY
