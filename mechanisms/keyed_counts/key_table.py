"""What is remembered of keys from one step to the next, as parallel arrays; and what a step is given and publishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.sources import Words

LARGEST_ENTRY = 1 << 40


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedStep:
    """What came in one step for the keys of a shard, each key at most once; a key without a row has nothing new.

    Columns have shape (n,). `listed` is how many contributions are by people who count for the key on the list of
    different people from this step on: each at most once for a key, and for a limited number of keys in the whole run.

    Raises:
        ValueError, TypeError: a column has another shape, type or range. No message has a key or a number of it.
    """

    step: int  # public, >= 1; steps come in increasing order, and steps without news may be missing
    keys: Words  # their numbers, such as rows of a table or positions in a public list
    counts: Integers  # contributions of this step, >= 0; at most one of each person
    sums: Integers | None = None  # of the values of these contributions, each within its limits
    listed: Integers | None = None

    def __post_init__(self) -> None:
        checks.integer("step", self.step, minimum=1)
        for name in ("keys", "counts", "sums", "listed"):
            column, dtype = getattr(self, name), np.uint64 if name == "keys" else np.int64
            if column is None and name in ("sums", "listed"):
                continue
            if not isinstance(column, np.ndarray) or column.dtype != dtype:
                found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
                raise TypeError(f"{name} must be an array of {np.dtype(dtype)}, got {found}")
            if column.ndim != 1 or column.shape != self.keys.shape:
                raise ValueError(f"{name} must have shape ({len(self.keys)},), got {column.shape}")
        if np.any(self.counts < 0) or np.any(self.counts > LARGEST_ENTRY):
            raise ValueError("counts must be from 0 to 2**40")
        if self.listed is not None and (np.any(self.listed < 0) or np.any(self.listed > self.counts)):
            raise ValueError("listed must be from 0 to counts")
        ordered = np.sort(self.keys)
        if np.any(ordered[1:] == ordered[:-1]):
            raise ValueError("keys must be distinct")


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedRows:
    """What is published about one step: parallel columns, shape (n,), in the order of keys."""

    step: int
    keys: Words
    counts: Integers  # noisy
    count_margin: int | Integers  # how far a count is off at most, with probability 0.95: of all, or of each
    sums: Integers | None = None  # noisy
    sum_margin: int | Integers = 0
    earlier: tuple[KeyedRows, ...] = ()  # of earlier steps, in their order, of keys that were found at this one

    def of_each(self, *names: str) -> list[NDArray[Any]]:
        """Return columns, with a number for each key also where one is for all."""
        return [np.broadcast_to(getattr(self, name), len(self.keys)) for name in names]


@dataclass(frozen=True, eq=False)
class KeyedState:
    """What outlives a step, in columns of keys by number. Private."""

    step: int  # the last one
    totals: Integers  # (answers, keys): true counts and perhaps sums, of the window or since the start
    counted: NDArray[np.bool_]  # whether a key has noise: it is public, or enough people have it
    published: NDArray[np.bool_]  # whether it has been published
    memory: Floats  # (rows, keys): what the noise remembers

    def grown(self, number: int) -> KeyedState:
        """Return a copy with room for so many keys, or as many as there are."""
        more = max(0, number - len(self.counted))
        return KeyedState(
            self.step,
            np.pad(self.totals, ((0, 0), (0, more))),
            np.pad(self.counted, (0, more)),
            np.pad(self.published, (0, more)),
            np.pad(self.memory, ((0, 0), (0, more))),
        )
