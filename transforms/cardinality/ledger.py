"""Until which step each person is present: sorted runs that are merged as they grow, the newest word counting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.events.bounding import first_of_run

ABSENT = 0


@dataclass(frozen=True, eq=False)
class Stays:
    """Distinct people, uint64 and strictly increasing, and the step (int64) at whose end each is no longer present."""

    people: np.ndarray
    until: np.ndarray

    @classmethod
    def of(cls, people: np.ndarray, until: np.ndarray) -> Stays:
        """Sort distinct people."""
        order = np.argsort(people)
        return cls(people[order], until[order])

    def __len__(self) -> int:
        return len(self.people)

    def overlay(self, newer: Stays) -> Stays:
        """Return the stays of both, of which the newer ones count where there are two."""
        people = np.concatenate([newer.people, self.people])
        order = np.argsort(people, kind="stable")
        first = order[first_of_run(people[order])]
        return Stays(people[first], np.concatenate([newer.until, self.until])[first])

    def after(self, step: int) -> Stays:
        """Leave out those who are not present at the end of `step`, nor later."""
        kept = self.until > step
        return Stays(self.people[kept], self.until[kept])

    def slice(self, start: int, stop: int) -> Stays:
        """Return the stays from place `start` to before place `stop`."""
        return Stays(self.people[start:stop], self.until[start:stop])

    def to_bytes(self) -> bytes:
        """Encode: sixteen bytes a person."""
        return pack("stays", 1, {"people": self.people, "until": self.until})

    @classmethod
    def from_bytes(cls, data: bytes) -> Stays:
        """Decode what `to_bytes` wrote."""
        found = unpack("stays", 1, data)
        return cls(np.asarray(found["people"]), np.asarray(found["until"]))


@dataclass(frozen=True, eq=False)
class Presences:
    """All presences known so far. A value: `updated` returns a new one.

    The runs at least halve from one to the next, so telling of m people costs O(m log n) amortised, and asking for m
    people O(m log^2 n). Who has left is forgotten when all runs become one.
    """

    runs: tuple[Stays, ...] = ()

    def updated(self, stays: Stays, step: int) -> Presences:
        """Return what is known after new stays in step `step`."""
        if not len(stays):
            return self
        runs = list(self.runs)
        while runs and len(runs[-1]) < 2 * len(stays):
            stays = runs.pop().overlay(stays)
        return Presences((*runs, stays if runs else stays.after(step)))

    def until(self, people: np.ndarray) -> np.ndarray:
        """Return for each of `people` (uint64, any order) the step at whose end they are gone; ABSENT if unknown."""
        found = np.full(len(people), ABSENT, np.int64)
        for run in self.runs:  # oldest first: what is newer comes on top
            if len(run):
                place = np.minimum(np.searchsorted(run.people, people), len(run) - 1)
                found = np.where(run.people[place] == people, run.until[place], found)
        return found

    def compact(self, step: int) -> Stays:
        """Return as one run who is present after the end of `step`."""
        total = Stays(np.empty(0, np.uint64), np.empty(0, np.int64))
        for run in self.runs:
            total = total.overlay(run)
        return total.after(step)

    def __len__(self) -> int:
        """Count the entries; a person may have one in several runs."""
        return sum(map(len, self.runs))
