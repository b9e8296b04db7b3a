"""UpItems: the items whose status is up, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.prf import Words


@dataclass(frozen=True, eq=False)
class UpItems:
    """Items that are up: public, like the changes that made them so.

    Attributes:
        items: uint64, shape (n,), increasing.
        since: int64, shape (n,): the step at which each of them went up.
    """

    items: Words
    since: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        """All items are down."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.items)

    def with_started(self, items: Words, step: int) -> Self:
        """Return these and further items, uint64 (m,), that go up at `step`."""
        return self.joined(type(self)(items, np.full(len(items), step, np.int64)))

    def joined(self, others: Self) -> Self:
        """Return these and others, none of which is among these."""
        items = np.concatenate([self.items, others.items])
        order = np.argsort(items, kind="stable")
        return type(self)(items[order], np.append(self.since, others.since)[order])

    def without(self, items: Words) -> Self:
        """Return these without some that went down."""
        stays = ~np.isin(self.items, items)
        return type(self)(self.items[stays], self.since[stays])
