"""The keys of many streams as the rows of one table, by whose numbers a mechanism knows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct pairs of a stream and a key, each with a number, which it keeps: those that come later come behind.

    Attributes:
        codes: int64, shape (n,): the stream of each pair, by its place in a list.
        keys: uint64, shape (n,): its key in that stream.
    """

    codes: np.ndarray
    keys: np.ndarray

    @classmethod
    def none(cls) -> Pairs:
        """Return no pairs."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64))

    @cached_property
    def _order(self) -> np.ndarray:
        """The pairs in the order of streams, and of keys in each."""
        return np.lexsort((self.keys, self.codes))

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.codes[self._order], self.keys[self._order]

    def numbers(self, codes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of pairs, int64; -1 for those that are not here."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        place = np.minimum(self._places(codes, keys), len(self.keys) - 1)
        sorted_codes, sorted_keys = self._sorted
        here = (sorted_codes[place] == codes) & (sorted_keys[place] == keys)
        return np.where(here, self._order[place], -1)

    def with_more(self, codes: np.ndarray, keys: np.ndarray) -> Pairs:
        """Return also pairs, in the order of streams and keys, that are not here."""
        if not len(keys):
            return self
        more = Pairs(np.append(self.codes, codes), np.append(self.keys, keys))
        places, numbers = self._places(codes, keys), len(self.keys) + np.arange(len(keys))
        sorted_codes, sorted_keys = self._sorted
        vars(more)["_order"] = np.insert(self._order, places, numbers)  # without sorting all of them again
        vars(more)["_sorted"] = np.insert(sorted_codes, places, codes), np.insert(sorted_keys, places, keys)
        return more

    def _places(self, codes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return how many pairs come before each of some pairs: a binary search among the keys of its stream."""
        sorted_codes, sorted_keys = self._sorted
        low, high = (np.searchsorted(sorted_codes, codes, side) for side in ("left", "right"))
        while np.any(open_ := low < high):
            middle = (low + high) // 2
            before = open_ & (sorted_keys[np.minimum(middle, len(sorted_keys) - 1)] < keys)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return np.asarray(low)
