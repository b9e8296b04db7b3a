"""The synthetic workload of DP-SQLP: who says what when, by two Zipf-Mandelbrot laws.

Ten million people have each a number of records (N = 100,000, q = 26, s = 6.738) about a million keys (N = 1,000,000,
q = 1000, s = 1.4), at times that are uniform (Zhang et al., VLDB 2024, section 5.1). A part of it has so many times
fewer people and keys, and q of keys is smaller by as much, so that the key of a given quantile has as many records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PEOPLE, KEYS = 10_000_000, 1_000_000
MOST_RECORDS = 100_000
CHUNK = 500_000  # people at once

Integers = NDArray[np.int64]


def zipf_mandelbrot(size: int, offset: float, exponent: float) -> NDArray[np.float64]:
    """Return the law of ranks 1 .. `size`, with weights (rank + offset)^-exponent."""
    weights = (np.arange(1, size + 1) + offset) ** -exponent
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Contributions:
    """The first record of each person about each key: parallel columns, and true numbers of records of each key.

    Attributes:
        people: int32.
        keys: int32.
        times: float32, in [0, 1).
        ranks: int16, 0 for the first key of a person, and so on.
        records: int64, shape (keys of the workload,).
        first_records: the same, without what a person has beyond a number of records.
    """

    people: NDArray[np.int32]
    keys: NDArray[np.int32]
    times: NDArray[np.float32]
    ranks: NDArray[np.int16]
    records: Integers
    first_records: Integers

    def per_step(self, limit: int, steps: int, low: int, high: int) -> Integers:
        """Return the contributions (steps, keys) about keys low .. high - 1, of at most `limit` keys of a person."""
        chosen = (self.keys >= low) & (self.keys < high) & (self.ranks < limit)
        when = np.minimum((self.times[chosen] * np.float64(steps)).astype(np.int64), steps - 1)
        cells = when * (high - low) + (self.keys[chosen] - low)
        return np.bincount(cells, minlength=steps * (high - low)).reshape(steps, high - low)


def contributions(people: int, keys: int, most: int, first_records: int, seed: int = 1) -> Contributions:
    """Draw the workload, with at most so many contributions of a person."""
    records, first = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    columns: list[tuple[NDArray[Any], ...]] = []
    for who, about, when in _records(people, keys, np.random.default_rng(seed)):
        records += np.bincount(about, minlength=keys)
        first += np.bincount(about[_places(who) < first_records], minlength=keys)
        new = np.sort(np.unique(who * keys + about, return_index=True)[1])
        rank = _places(who[new])
        new, rank = new[rank < most], rank[rank < most].astype(np.int16)
        columns.append((who[new].astype(np.int32), about[new].astype(np.int32), when[new].astype(np.float32), rank))
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    return Contributions(*joined, records, first)


def _records(people: int, keys: int, rng: np.random.Generator) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield persons, keys and times of all records of some people, ordered by person and then by time."""
    numbers = np.cumsum(zipf_mandelbrot(MOST_RECORDS, 26, 6.738))
    popularity = np.cumsum(zipf_mandelbrot(keys, 1000 * keys / KEYS, 1.4))
    for first in range(0, people, CHUNK):
        each = np.searchsorted(numbers, rng.random(min(CHUNK, people - first))) + 1
        who = np.repeat(np.arange(first, first + len(each)), each)
        about = np.minimum(np.searchsorted(popularity, rng.random(len(who))), keys - 1)
        when = rng.random(len(who))
        order = np.argsort(who + when)
        yield who, about, when[order]


def _places(who: Integers) -> Integers:
    """Return how many entries of the same person come before each; `who` is in order."""
    starts = np.flatnonzero(np.diff(who, prepend=-1))
    return np.arange(len(who)) - np.repeat(starts, np.diff(starts, append=len(who)))
