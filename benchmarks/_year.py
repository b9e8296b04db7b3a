"""A year of hourly windows: favourites, items of every evening and of weekends, bursts, and many rare items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

DAY, WEEK = 24, 7
EVENING = range(18, 23)
KINDS = {"favourite": 4, "evening": 2, "weekend": 2}
"""Number of items of each kind that comes again and again, always with the same people; the others are bursts."""

SIZES = {"favourite": (1000, 2600), "evening": (1000, 1600), "weekend": (1000, 1600)}
"""People of the smallest and of the largest item of a kind; in a window that it lasts, each has it or not."""

PRESENT = 0.6
BURST_EVERY = 48
BURST_HOURS = (1, 12)
BURST_PEOPLE = (600, 3000)
RARE_ITEMS, RARE_PEOPLE = 2000, 500


@dataclass(frozen=True, eq=False)
class Hour:
    """Who has what in a window: `users` uint64, each once, with `items` uint64."""

    number: int
    users: np.ndarray
    items: np.ndarray


@dataclass(frozen=True, eq=False)
class Item:
    """An item that lasts in some windows: its kind, its people, and those windows."""

    kind: str
    people: np.ndarray
    hours: range | None = None

    def lasts(self, hour: int) -> bool:
        """Tell whether it is there; the first hour is that of a Monday."""
        if self.hours is not None:
            return hour in self.hours
        day, time = divmod(hour, DAY)
        return {"favourite": True, "evening": time in EVENING, "weekend": day % WEEK >= WEEK - 2}[self.kind]


@dataclass(frozen=True)
class Year:
    """A stream of `hours` windows with `people`; nobody has two items in a window."""

    people: int
    hours: int
    seed: int

    @cached_property
    def items(self) -> list[Item]:
        """The items that many people have, numbered from 0; the rare ones follow."""
        rng = np.random.default_rng(self.seed)
        made = []
        for kind, number in KINDS.items():
            for size in np.geomspace(*SIZES[kind], number):
                made.append(Item(kind, rng.choice(self.people, round(size), replace=False)))
        for start in np.flatnonzero(rng.random(self.hours) < 1 / BURST_EVERY).tolist():
            size = np.exp(rng.uniform(*np.log(BURST_PEOPLE)))
            hours = range(start, min(self.hours, start + int(rng.integers(*BURST_HOURS, endpoint=True))))
            made.append(Item("burst", rng.choice(self.people, round(size), replace=False), hours))
        return made

    def stream(self) -> Iterator[Hour]:
        """Yield the windows. Who has several items has the burst, else the seasonal one, else the favourite."""
        rng = np.random.default_rng(self.seed + 1)
        weights = 1 / np.arange(1, RARE_ITEMS + 1)
        rare_law = np.cumsum(weights / weights.sum())
        rare = np.uint64(len(self.items))
        nothing = np.iinfo(np.uint64).max
        has = np.empty(self.people, np.uint64)
        for hour in range(self.hours):
            has[:] = nothing
            has[rng.choice(self.people, RARE_PEOPLE)] = rare + np.searchsorted(
                rare_law, rng.random(RARE_PEOPLE)
            ).astype(np.uint64)
            for number, item in enumerate(self.items):
                if item.lasts(hour):
                    has[item.people[rng.random(len(item.people)) < PRESENT]] = number
            users = np.flatnonzero(has != nothing)
            yield Hour(hour, users.astype(np.uint64), has[users])
