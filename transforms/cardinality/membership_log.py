"""Until which step each person is present: the newest stay counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.sorted_runs import Run, SortedRuns

ABSENT = 0


@dataclass(frozen=True, eq=False)
class Stays(Run):
    """Until when distinct people stay: sixteen bytes a person, encoded too.

    Attributes:
        keys: the people, uint64, shape (n,), strictly increasing.
        values: the step, int64, at whose end each is no longer present.
    """

    kind = "stays"
    names = ("people", "until")

    @classmethod
    def of(cls, people: np.ndarray, until: np.ndarray) -> Stays:
        """Sort distinct people."""
        order = np.argsort(people)
        return cls(people[order], until[order])

    def merged(self, newer: Stays) -> Stays:
        """Return the stays of both, of which the newer ones count where there are two."""
        people, until, first = self.interleaved(newer)
        last = np.roll(first, -1)  # the first row is always one
        return Stays(people[last], until[last])

    def after(self, step: int) -> Stays:
        """Leave out those who are not present at the end of `step`, nor later."""
        kept = self.values > step
        return Stays(self.keys[kept], self.values[kept])


class MembershipLog(SortedRuns[Stays]):
    """All stays so far. Who has left is forgotten when all runs become one."""

    def updated(self, stays: Stays, step: int) -> MembershipLog:
        """Return what is known after new stays in step `step`."""
        after = self.add(stays)
        if not len(stays) or len(after.runs) > 1:
            return after
        return MembershipLog().add(after.runs[0].after(step))

    def until(self, people: np.ndarray) -> np.ndarray:
        """Return for each of `people` (uint64, any order) the step at whose end they are gone; ABSENT if unknown."""
        until = np.full(len(people), ABSENT, np.int64)
        for there, stays in self.found(people):  # oldest first: what is newer comes on top
            until = np.where(there, stays, until)
        return until

    def compact(self, step: int) -> Stays:
        """Return as one run who is present after the end of `step`."""
        return self.merged(Stays(np.empty(0, np.uint64), np.empty(0, np.int64))).after(step)
