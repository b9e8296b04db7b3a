"""Mechanism: what all mechanisms on streams share: their parameters as bytes, noise of their own, and snapshots."""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SortedRuns

State = TypeVar("State")


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
    """Return a state as numbers, bytes and arrays by name: records field by field, runs as one."""
    if isinstance(value, SortedRuns):
        whole = [functools.reduce(lambda older, newer: older.merged(newer), value.runs)] if value.runs else []
        return {name: len(whole)} | {one: of for run in whole for one, of in state_fields(run, name).items()}
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
    if isinstance(kind, type) and issubclass(kind, SortedRuns):
        run = get_args(vars(kind)["__orig_bases__"][0])[0]
        return kind((state_of(run, found, name),)) if found.pop(name) else kind()
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
