"""Mechanism: what all mechanisms on streams share: their parameters as bytes, noise of their own, and snapshots."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, cast

from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.snapshots import pack_state, unpack_state

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
        return pack_state(self._state_kind, self.parameters, self._fields(state))

    def restore(self, data: bytes) -> State:
        """Return the state in a snapshot.

        Raises:
            SnapshotError: no snapshot of this mechanism, or one of a mechanism with other parameters.
        """
        return self._state(unpack_state(self._state_kind, self.parameters, data))

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

    @property
    def _state_kind(self) -> str:
        """What snapshots are of."""
        return f"{type(self).__name__} state"

    def _fields(self, state: State) -> dict[str, Any]:
        """Return a state as numbers, bytes and arrays."""
        return vars(state)

    def _state(self, fields: dict[str, Any]) -> State:
        """Return what `_fields` was given."""
        return cast(State, self.state_type(**fields))


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
    return float(value) if isinstance(value, int) else value
