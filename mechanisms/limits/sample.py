"""Sample: what a run with some limit would show of data that anyone may see; exact, and so not private."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.noise.sources import NoiseSource, SeededNoise
from privstream.mechanisms.smoothing import LEAST_STDDEV, LocalLevel

Marks = NDArray[np.bool_]

TOP = 10
"""Statements are about so many items of each window, those of most people."""

MOST_ITEMS = 2_000
"""Items with fewer contributions than so many others are left out: they are among the largest of no window, or few."""

QUARTER = 4


class Kept(NamedTuple):
    """Share of contributions that a limit keeps: of all windows, and of their first and last quarter."""

    all: float
    first: float
    last: float


class Shown(NamedTuple):
    """What a run shows of the `TOP` largest true numbers of each window.

    Attributes:
        found: share of them that have a row.
        ranked: share of them that are among the `TOP` largest published smoothed numbers.
        count_error: mean absolute error of their noisy counts, as a part of the true number of all people; those
            without a row are left out, and NaN says that none has one.
        smoothed_error: the same of smoothed counts.
    """

    found: float
    ranked: float
    count_error: float
    smoothed_error: float


@dataclass(frozen=True, eq=False)
class Sample:
    """Who has which item in which window, each once, in data that anyone may see.

    Attributes:
        users, items, windows: int64 (n,), numbers from 0 on. Contributions of one person in one window count in this
            order; windows increase.
        count: number of windows, >= 1; some may be empty.

    Raises:
        ValueError: columns have other shapes, or windows do not increase.
    """

    users: Integers
    items: Integers
    windows: Integers
    count: int

    def __post_init__(self) -> None:
        checks.integer("count", self.count, minimum=1)
        if not self.users.shape == self.items.shape == self.windows.shape:
            raise ValueError("users, items and windows must have one shape")
        if len(self.windows) and (np.any(np.diff(self.windows) < 0) or not 0 <= self.windows[-1] < self.count):
            raise ValueError("windows must increase, from 0 to count - 1")

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.contributions)

    @cached_property
    def contributions(self) -> Integers:
        """How many contributions each person has."""
        return np.unique(self.users, return_counts=True)[1].astype(np.int64)

    def counted(self, limit: int, selection: str = "random") -> Marks:
        """Mark the contributions that count under a limit of the whole run.

        Args:
            limit: of one person, >= 1.
            selection: "random" ones, as over files; the "first" ones, as in streams; or "spread" over the run.
        """
        if selection == "random":
            lots = np.argsort(SeededNoise(0).words(np.arange(len(self.users), dtype=np.uint64))[:, 0, 0])
            counted = np.empty(len(lots), bool)
            counted[lots] = _earlier(self.users[lots]) < limit
            return counted
        if selection == "first":
            return _earlier(self.users) < limit
        used, counted = np.zeros(int(self.users.max(initial=0)) + 1, np.int64), np.zeros(len(self.users), bool)
        ends = np.searchsorted(self.windows, np.arange(self.count + 1))
        for window in range(self.count):
            here = np.arange(ends[window], ends[window + 1])
            people = self.users[here]
            allowed = -(-limit * (window + 1) // self.count)
            counted[here] = used[people] + _earlier(people) < allowed
            np.add.at(used, people[counted[here]], 1)
        return counted

    def kept(self, counted: Marks) -> Kept:
        """Return the shares that count; NaN where nothing happened."""
        quarter = -(-self.count // QUARTER)
        parts = np.ones(len(counted), bool), self.windows < quarter, self.windows >= self.count - quarter
        return Kept(*(float(counted[part].mean()) if part.any() else np.nan for part in parts))

    def shown(self, made: FoundKeys, counted: Marks, noise: NoiseSource) -> Shown:
        """Return what a run shows whose contributions have been limited.

        Args:
            made: the mechanism of the run, of so many steps as there are windows.
            counted: marks of the contributions that count.
            noise: of one run.
        """
        true = self._grid(np.ones(len(self.items), bool))
        counts = self._published(made, counted, noise)
        smoothed = self._smoothed(made, counts)
        largest = np.argsort(-true, axis=1, kind="stable")[:, :TOP]
        ranked = np.argsort(np.where(np.isnan(smoothed), np.inf, -smoothed), axis=1, kind="stable")[:, :TOP]
        wanted, noisy, level = (np.take_along_axis(grid, largest, axis=1) for grid in (true, counts, smoothed))
        there, has_row = wanted > 0, ~np.isnan(noisy)
        among = (largest[:, :, None] == ranked[:, None, :]).any(axis=2) & has_row
        errors = [np.abs(grid - wanted)[there & has_row] / wanted[there & has_row] for grid in (noisy, level)]
        if not there.any():
            return Shown(np.nan, np.nan, np.nan, np.nan)
        means = [float(each.mean()) if len(each) else np.nan for each in errors]
        return Shown(float(has_row[there].mean()), float(among[there].mean()), *means)

    @cached_property
    def _places(self) -> Integers:
        """For each contribution the column of its item, by falling number of contributions; -1 for rare ones."""
        _, number, sizes = np.unique(self.items, return_inverse=True, return_counts=True)
        place = np.empty(len(sizes), np.int64)
        place[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
        found = place[number]
        return np.where(found < MOST_ITEMS, found, -1)

    @property
    def _columns(self) -> int:
        """Number of items that are looked at."""
        return int(self._places.max(initial=-1)) + 1

    def _grid(self, marks: Marks) -> Floats:
        """Return how many of some contributions there are, by window and item."""
        some = marks & (self._places >= 0)
        grid = np.zeros((self.count, self._columns))
        np.add.at(grid, (self.windows[some], self._places[some]), 1)
        return grid

    def _listed(self, counted: Marks, keys: int) -> Marks:
        """Mark what a list of different people counts: of each person the first keys that count, when they first do."""
        rows = np.flatnonzero(counted)
        pairs = self.users[rows] * (int(self.items.max(initial=0)) + 1) + self.items[rows]
        first = rows[np.sort(np.unique(pairs, return_index=True)[1])]
        marks = np.zeros(len(counted), bool)
        marks[first[_earlier(self.users[first]) < keys]] = True
        return marks

    def _published(self, made: FoundKeys, counted: Marks, noise: NoiseSource) -> Floats:
        """Return the noisy counts, by window and item, NaN where there is no row."""
        counts = self._grid(counted).astype(np.int64)
        listed = self._grid(self._listed(counted, made.listed)).astype(np.int64) if made.listed else None
        found = np.full(counts.shape, np.nan)
        state = made.initial_state()
        for window in range(self.count):
            keys = np.flatnonzero(counts[window])
            some = listed[window][keys] if listed is not None and made.lists(window + 1) else None
            given = KeyedStep(step=window + 1, keys=keys.astype(np.uint64), counts=counts[window][keys], listed=some)
            state, rows = made.step(state, given, noise)
            for each in (rows, *rows.earlier):
                found[each.step - 1, each.keys.astype(np.int64)] = each.counts
        return found

    def _smoothed(self, made: FoundKeys, counts: Floats) -> Floats:
        """Smooth both ways, as over files; seasons and windows that are cut short are not looked for."""
        there = ~np.isnan(counts)
        found = counts.copy()
        some = np.flatnonzero(there.any(axis=0))
        starts = np.argmax(there, axis=0)
        level = LocalLevel(max(LEAST_STDDEV, made.stddev(1)))
        for start in np.unique(starts[some]).tolist():
            keys = some[starts[some] == start]
            found[start:, keys] = level.smooth(counts[start:, keys]).estimates
        return found


def _earlier(people: Integers) -> Integers:
    """Return for each row how many rows of the same person come before it."""
    order = np.argsort(people, kind="stable")
    ordered = people[order]
    found = np.empty(len(people), np.int64)
    found[order] = np.arange(len(people)) - np.searchsorted(ordered, ordered)
    return found
