"""How often each person has been charged: sorted runs that are merged as they grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.snapshots import pack, unpack

KIND = "user counters"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Charges:
    """Amounts charged to distinct people in one step, sorted by person.

    Attributes:
        users: uint64, shape (n,), strictly increasing.
        amounts: uint16, shape (n,); wider only if one does not fit.
    """

    users: np.ndarray
    amounts: np.ndarray

    @classmethod
    def none(cls) -> Charges:
        """Charge nobody."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint16))

    @classmethod
    def of(cls, users: np.ndarray) -> Charges:
        """Charge each person as often as mentioned."""
        distinct, times = np.unique(users, return_counts=True)
        return cls(distinct, _narrow(times))

    def __len__(self) -> int:
        return len(self.users)

    def merged(self, other: Charges) -> Charges:
        """Add two sets of charges."""
        users = np.concatenate([self.users, other.users])
        order = np.argsort(users, kind="stable")  # two sorted runs: timsort merges them in one pass
        users = users[order]
        amounts = np.concatenate([self.amounts, other.amounts])[order]
        first = np.ones(len(users), bool)
        np.not_equal(users[1:], users[:-1], out=first[1:])
        if len(users):
            amounts = _narrow(np.add.reduceat(amounts, np.flatnonzero(first), dtype=np.int64))
        return Charges(users[first], amounts)

    def slice(self, start: int, stop: int) -> Charges:
        """Return the charges of the people from place `start` to before place `stop`."""
        return Charges(self.users[start:stop], self.amounts[start:stop])

    def to_bytes(self) -> bytes:
        """Encode as versioned bytes: ten bytes a person for hits."""
        return pack(KIND, VERSION, {"users": self.users, "amounts": self.amounts})

    @classmethod
    def from_bytes(cls, data: bytes) -> Charges:
        """Decode what `to_bytes` wrote."""
        fields = unpack(KIND, VERSION, data)
        return cls(np.asarray(fields["users"]), np.asarray(fields["amounts"]))


@dataclass(frozen=True, eq=False)
class UserCounters:
    """The sum of all charges so far, per person. A value: `charge` returns a new one.

    Charges are kept as sorted runs whose sizes at least halve from one to the next, so that charging m people
    costs O(m log n) amortised, looking up m people costs O(m log^2 n), and old values stay valid.
    """

    runs: tuple[Charges, ...] = ()

    @classmethod
    def from_runs(cls, runs: Iterable[Charges]) -> UserCounters:
        """Add up charges in the order given."""
        counters = cls()
        for run in runs:
            counters = counters.charge(run)
        return counters

    def charge(self, charges: Charges) -> UserCounters:
        """Return the counters after one more set of charges."""
        if not len(charges):
            return self
        runs = list(self.runs)
        while runs and len(runs[-1]) < 2 * len(charges):
            charges = runs.pop().merged(charges)
        return UserCounters((*runs, charges))

    def charged(self, users: np.ndarray) -> np.ndarray:
        """Return what each of `users` (uint64, any order, repeats allowed) has been charged, int64."""
        total: np.ndarray = np.zeros(len(users), np.int64)
        for run in self.runs:
            place = np.minimum(np.searchsorted(run.users, users), len(run) - 1)
            total = total + np.where(run.users[place] == users, run.amounts[place], run.amounts.dtype.type(0))
        return total

    def compact(self) -> Charges:
        """Return all charges as one run."""
        total = Charges.none()
        for run in self.runs:
            total = run if not len(total) else total.merged(run)
        return total

    def __len__(self) -> int:
        """Count the entries; a person may have one in several runs."""
        return sum(len(run) for run in self.runs)


def _narrow(amounts: np.ndarray) -> np.ndarray:
    """Store integers in two bytes where they fit: a counter that wrapped round would let a person in again."""
    return amounts.astype(np.min_scalar_type(max(int(amounts.max(initial=0)), np.iinfo(np.uint16).max)))
