"""Values by key as sorted runs that are merged as they grow: what is added to often, and never changed in place."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from privstream.mechanisms.snapshots import pack, unpack
from typing_extensions import override

SEGMENT = 65_536


@dataclass(frozen=True, eq=False)
class Run(ABC):
    """Distinct keys, integers (n,), strictly increasing, and their values, integers (n,)."""

    keys: np.ndarray
    values: np.ndarray
    kind: ClassVar[str]

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def merged(self, newer: Self) -> Self:
        """Return this and what was added later as one run."""

    def interleaved(self, newer: Self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keys and values of both, sorted by key, the older value first; and where a key stands first."""
        keys = np.concatenate([self.keys, newer.keys])
        order = np.argsort(keys, kind="stable")  # two sorted runs: timsort merges them in one pass
        keys = keys[order]
        first = np.ones(len(keys), bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        return keys, np.concatenate([self.values, newer.values])[order], first

    def slice(self, start: int, stop: int) -> Self:
        """Return what stands from place `start` to before place `stop`."""
        return type(self)(self.keys[start:stop], self.values[start:stop])

    def to_bytes(self) -> bytes:
        """Encode as versioned bytes."""
        return pack(self.kind, 1, {"keys": self.keys, "values": self.values})

    def to_segments(self) -> list[bytes]:
        """Encode in parts of at most so many keys."""
        return [self.slice(i, i + SEGMENT).to_bytes() for i in range(0, len(self), SEGMENT)]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` wrote."""
        fields = unpack(cls.kind, 1, data)
        return cls(np.asarray(fields["keys"]), np.asarray(fields["values"]))


AnyRun = TypeVar("AnyRun", bound=Run)


@dataclass(frozen=True, eq=False)
class SortedRuns(Generic[AnyRun]):
    """All that was added so far, oldest first. A value: `add` returns a new one.

    The lengths of the runs at least halve from one to the next, so that adding m keys costs O(m log n) amortised,
    looking up m keys costs O(m log^2 n), and old values stay valid.
    """

    runs: tuple[AnyRun, ...] = ()

    @classmethod
    def of(cls, runs: Iterable[AnyRun]) -> Self:
        """Add runs in the order given."""
        found = cls()
        for run in runs:
            found = found.add(run)
        return found

    def add(self, run: AnyRun) -> Self:
        """Return these with one more run."""
        runs = list(self.runs)
        while runs and len(runs[-1]) < 2 * len(run):
            run = runs.pop().merged(run)
        return type(self)((*runs, run) if len(run) else tuple(runs))

    def found(self, keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return for each run which of `keys` (any order, repeats allowed) it has, and a value for each key."""
        for run in self.runs:
            place = np.minimum(np.searchsorted(run.keys, keys), len(run) - 1)
            yield run.keys[place] == keys, run.values[place]

    def merged(self, nothing: AnyRun) -> AnyRun:
        """Return all as one run, or `nothing`."""
        return functools.reduce(lambda older, newer: older.merged(newer), self.runs) if self.runs else nothing

    def __len__(self) -> int:
        """Count the entries; a key may have one in several runs."""
        return sum(map(len, self.runs))


@dataclass(frozen=True, eq=False)
class Charges(Run):
    """Amounts charged to distinct people, uint64, in one step; uint16, and wider only if one does not fit."""

    kind = "user counters"

    @classmethod
    def none(cls) -> Charges:
        """Charge nobody."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint16))

    @classmethod
    def of(cls, users: np.ndarray) -> Charges:
        """Charge each person as often as mentioned."""
        people, amounts = np.unique(users, return_counts=True)
        return cls(people, _narrow(amounts))

    @override
    def merged(self, newer: Charges) -> Charges:
        users, amounts, first = self.interleaved(newer)
        if not len(users):
            return self
        total = amounts[first].astype(np.int64)
        again = np.flatnonzero(~first)
        total[again - np.arange(1, len(again) + 1)] += amounts[again]  # each stands twice at most
        return Charges(users[first], _narrow(total))


class UserCounters(SortedRuns[Charges]):
    """The sum of all charges so far, per person."""

    def charged(self, users: np.ndarray) -> np.ndarray:
        """Return what each of `users` (uint64, any order, repeats allowed) has been charged, int64."""
        total: np.ndarray = np.zeros(len(users), np.int64)
        for there, amounts in self.found(users):
            total = total + np.where(there, amounts, amounts.dtype.type(0))
        return total

    def compact(self) -> Charges:
        """Return all charges as one run."""
        return self.merged(Charges.none())


def _narrow(amounts: np.ndarray) -> np.ndarray:
    """Store integers in two bytes where they fit: a counter that wrapped round would let a person in again."""
    return amounts.astype(np.min_scalar_type(max(int(amounts.max(initial=0)), np.iinfo(np.uint16).max)))
