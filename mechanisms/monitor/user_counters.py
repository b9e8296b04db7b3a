"""How often each person has been charged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.sorted_runs import Run, SortedRuns


@dataclass(frozen=True, eq=False)
class Charges(Run):
    """Amounts charged to distinct people in one step: ten bytes a person for hits, encoded too.

    Attributes:
        keys: the people, uint64, shape (n,), strictly increasing.
        values: the amounts, uint16, shape (n,); wider only if one does not fit.
    """

    kind = "user counters"
    names = ("users", "amounts")

    @classmethod
    def none(cls) -> Charges:
        """Charge nobody."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint16))

    @classmethod
    def of(cls, users: np.ndarray) -> Charges:
        """Charge each person as often as mentioned."""
        distinct, times = np.unique(users, return_counts=True)
        return cls(distinct, _narrow(times))

    def merged(self, newer: Charges) -> Charges:
        """Add two sets of charges."""
        users, amounts, first = self.interleaved(newer)
        if not len(users):
            return self
        return Charges(users[first], _narrow(np.add.reduceat(amounts, np.flatnonzero(first), dtype=np.int64)))


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
