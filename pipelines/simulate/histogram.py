"""`privstream simulate histogram`: trips in a city by means of transport, for live counts of categories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.questions.spec import Option
from privstream.pipelines.simulate.simulation import simulation, write_lines
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, people, start_simulation

NAMES = ("walk", "bike", "bus", "tram", "metro", "train", "car", "taxi", "scooter", "ferry", "cable car", "airport bus")
SCOOTER, FERRY = 8, 9


class CategoryCount(NamedTuple):
    """How many events of a category there have been up to the end of a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    category: str
    events: int


def category_names(count: int) -> tuple[str, ...]:
    """Return so many categories, the first of them the most frequent ones."""
    return (*NAMES[:count], *(f"route {number}" for number in range(len(NAMES) + 1, count + 1)))


def simulate_trips(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, categories: int = 12, trips: float = 0.2
) -> Iterator[TrueWindow]:
    """Simulate trips: busier by day, scooters that come into fashion, and ferries that stop running half-way.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        categories: number of categories, >= 1; the r-th is taken 1 / sqrt(r) times as often as the first.
        trips: of one person in a window on average, >= 0.

    Returns:
        The windows, made one at a time.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    rate = checks.non_negative("trips", trips) * users
    names = category_names(checks.integer("categories", categories, minimum=1))
    usual = 1 / np.sqrt(np.arange(1, categories + 1))
    total = np.zeros(categories, np.int64)
    for number in range(windows):
        start = START_MICROS + number * length
        weights = usual.copy()
        if categories > SCOOTER:
            weights[SCOOTER] *= 6 * number / windows
        if categories > FERRY and number > windows / 2:
            weights[FERRY] = 0.0
        busy = 1 + 0.6 * np.sin((start / 3.6e9 - 9) * 2 * np.pi / 24)
        what = rng.choice(categories, size=rng.poisson(rate * busy), p=weights / weights.sum())
        total = total + np.bincount(what, minlength=categories)
        times = np.sort(rng.integers(length, size=len(what))) + start
        columns = people(rng.integers(users, size=len(what))), pa.array(names).take(pa.array(what)), times
        yield TrueWindow.of(start, length, columns, CategoryCount, names, total.tolist())


COMMAND = simulation(
    "Writes simulated trips in a city by means of transport: busier by day, with scooters that come into fashion and "
    "ferries that stop half-way. Nothing in them is private.",
    simulate_trips,
    CategoryCount,
    "counts of each category so far",
    Option("categories", "int", "number of categories", 12),
    Option("trips", "float", "average number of trips of a person in a window", 0.2),
    Option("domain", "Path", "the categories, one per line, as `histogram` reads them"),
    more=lambda arguments: write_lines(arguments.domain, category_names(arguments.categories)),
)
