"""Who holds which items at a step, and how often each person has been charged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.sources import Words
from privstream.mechanisms.sorted_runs import Run, SortedRuns
from typing_extensions import override


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


COLUMNS = {"users": "uint64", "items": "uint64", "ranks": "uint16"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Holdings:
    """The people and their items at one step: parallel columns, shape (n,), each pair of person and item at most once.

    A person's items of the step have ranks, in an order that depends on nothing but the person, the step and the
    person's own items. With c charges left a person takes part in the items ranked below c.

    Raises:
        ValueError, TypeError: a column has another shape or type.
    """

    step: int  # public, >= 0; steps are decided in increasing order, each once
    users: np.ndarray  # uint64: keyed hashes of people
    items: np.ndarray  # uint64: keyed hashes of items; with a known domain, positions in the domain
    ranks: np.ndarray | None = None  # uint16; None: all are zero

    def __post_init__(self) -> None:
        checks.integer("step", self.step, minimum=0)
        for name, dtype in COLUMNS.items():
            column = getattr(self, name)
            if column is None and name == "ranks":
                continue
            if not isinstance(column, np.ndarray) or column.dtype != dtype:
                found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
                raise TypeError(f"{name} must be an array of {dtype}, got {found}")
            if column.shape != (len(self.users),):
                raise ValueError(f"{name} must have shape ({len(self.users)},), got {column.shape}")

    def active(self, counters: UserCounters, max_hits: int) -> NDArray[np.bool_]:
        """Return for each row, bool (n,), whether its person counts for its item: the rank is below the charges left.

        This is not for publication.
        """
        return np.asarray((0 if self.ranks is None else self.ranks) < max_hits - counters.charged(self.users))


@dataclass(frozen=True, eq=False)
class Tally:
    """Holdings by item."""

    items: Words  # that somebody has, (m,), increasing
    totals: Integers  # how many people with charges left have each, (m,)
    users: Words  # the people with each item, item by item, (n,)
    active: NDArray[np.bool_]  # who of them counts, (n,)
    held: Integers  # how many rows each item has, (m,)

    @classmethod
    def of(cls, holdings: Holdings, counters: UserCounters, max_hits: int) -> Self:
        """Sort holdings by item, and count the people whose rank is below their charges left."""
        order = np.argsort(holdings.items, kind="stable")
        users, items = holdings.users[order], holdings.items[order]
        active = holdings.active(counters, max_hits)[order]
        first = np.flatnonzero(np.append(True, items[1:] != items[:-1]))[: len(items)]
        totals = np.add.reduceat(active, first, dtype=np.int64)
        return cls(items[first], totals, users, active, np.diff(np.append(first, len(items))))

    def counts(self, items: Words) -> Integers:
        """Return the totals of some items, zero for those that nobody has."""
        if not len(self.items):
            return np.zeros(len(items), np.int64)
        place = np.minimum(np.searchsorted(self.items, items), len(self.items) - 1)
        return np.where(self.items[place] == items, self.totals[place], 0)

    def charges(self, charged: NDArray[np.bool_]) -> Charges:
        """Charge everybody who counts for one of the items in a mask, bool (m,)."""
        return Charges.of(self.users[np.repeat(charged, self.held) & self.active])


def repeats(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two rows of a pair of columns are equal."""
    order = np.lexsort((second, first))
    one, other = first[order], second[order]
    return bool(np.any((one[1:] == one[:-1]) & (other[1:] == other[:-1])))
