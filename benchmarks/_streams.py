"""Streams of heavy hitters as numbers: who holds which item in each step, and how many people hold each item."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np


@dataclass(frozen=True, eq=False)
class Step:
    """Who holds what in one step: uint64 columns, one item per person."""

    users: np.ndarray
    items: np.ndarray

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct items, increasing, and how many people hold each."""
        items, counts = np.unique(self.items, return_counts=True)
        return items, counts


@dataclass(frozen=True, kw_only=True)
class Example14:
    """Kaplan, Mansour, Stemmer (2020), Example 1.4: everybody is in one group A, one B and one C.

    Groups A have about `group_factor` ln(n) people, B n^(1/4) times as many, C n^(1/3) times. Each group holds an item
    of its own once, at a step of its own; `alone` other people hold an item each that nobody else holds.

    Items are the number of the group (A first, then B, then C) or, of people alone, higher numbers.
    """

    users: int
    group_factor: float
    alone: int = 1000

    @property
    def group_sizes(self) -> dict[str, float]:
        """People in a group."""
        unit = self.group_factor * log(self.users)
        return {"A": unit, "B": unit * self.users ** (1 / 4), "C": unit * self.users ** (1 / 3)}

    @property
    def group_counts(self) -> dict[str, int]:
        """Number of groups."""
        return {name: max(1, round(self.users / size)) for name, size in self.group_sizes.items()}

    @property
    def steps(self) -> int:
        """Number of steps, one for each group."""
        return sum(self.group_counts.values())

    def kinds(self) -> np.ndarray:
        """Return the letter of each group by its number."""
        return np.repeat(list(self.group_counts), list(self.group_counts.values()))

    def stream(self, seed: int) -> Iterator[Step]:
        """Yield the steps, groups in random order."""
        rng = np.random.default_rng(seed)
        members: list[np.ndarray] = []
        for count in self.group_counts.values():
            members += np.array_split(rng.permutation(self.users).astype(np.uint64), count)
        lone_items = np.arange(len(members), len(members) + self.alone, dtype=np.uint64)
        for group in rng.permutation(len(members)).tolist():
            others = np.setdiff1d(rng.integers(self.users, size=self.alone).astype(np.uint64), members[group])
            yield Step(
                users=np.concatenate([members[group], others]),
                items=np.concatenate([np.full(len(members[group]), group, np.uint64), lone_items[: len(others)]]),
            )


@dataclass(frozen=True, kw_only=True)
class Zipf:
    """Everybody who is active holds an item drawn by Zipf's law; quiet and busy steps differ by a factor of 20.

    No method looks at which item is which, so nothing changes if the popular items are others in each step.
    """

    users: int
    items: int
    steps: int
    quietest: float = 0.005
    busiest: float = 0.1

    def stream(self, seed: int) -> Iterator[Step]:
        """Yield the steps; the share of active people is log-uniform."""
        rng = np.random.default_rng(seed)
        cumulative = np.cumsum(1 / np.arange(1, self.items + 1))
        for _ in range(self.steps):
            share = np.exp(rng.uniform(log(self.quietest), log(self.busiest)))
            users = np.flatnonzero(rng.random(self.users) < share).astype(np.uint64)
            items = np.searchsorted(cumulative, rng.random(len(users)) * cumulative[-1], side="right")
            yield Step(users=users, items=items.astype(np.uint64))
