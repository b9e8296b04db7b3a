"""`privstream simulate histogram`: trips in a city by means of transport, for live counts of categories."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.simulate.simulation import add_simulation, write_files, write_lines
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, START_MICROS

NAMES = ("walk", "bike", "bus", "tram", "metro", "train", "car", "taxi", "scooter", "ferry", "cable car", "airport bus")
SCOOTER, FERRY = 8, 9


class CategoryCount(NamedTuple):
    """How many events of a category there have been up to the end of a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    category: str
    events: int


@dataclass(frozen=True, eq=False)
class TripWindow:
    """One window: `events`, and the counts of all categories up to its end."""

    start: int
    end: int
    events: pa.RecordBatch
    counts: dict[str, int]


def category_names(count: int) -> tuple[str, ...]:
    """Return so many categories, the first of them the most frequent ones."""
    return (*NAMES[:count], *(f"route {number}" for number in range(len(NAMES) + 1, count + 1)))


def simulate_trips(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, categories: int = 12, trips: float = 0.2
) -> Iterator[TripWindow]:
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
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    rate = checks.non_negative("trips", trips) * users
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
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
        who = pa.array([f"u{user:06}" for user in rng.integers(users, size=len(what)).tolist()], pa.string())
        columns = [who, pa.array(names).take(pa.array(what)), pa.array(times).cast(pa.timestamp("us", "UTC"))]
        events = pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)
        yield TripWindow(start, start + length, events, dict(zip(names, total.tolist(), strict=True)))


def category_counts(window: TripWindow) -> Iterator[CategoryCount]:
    """Return the truth about one window."""
    for category, events in window.counts.items():
        yield CategoryCount("", Timestamp(micros=window.start), Timestamp(micros=window.end), category, events)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="counts of each category so far")
    parser.add_argument("--categories", type=int, default=12, metavar="D", help="number of categories (default: 12)")
    parser.add_argument(
        "--trips", type=float, default=0.2, help="average number of trips of a person in a window (default: 0.2)"
    )
    parser.add_argument("--domain", metavar="PATH", help="the categories, one per line, as `histogram` reads them")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(
        arguments,
        simulate_trips,
        truth_type=CategoryCount,
        truth_of=category_counts,
        windows=arguments.windows,
        categories=arguments.categories,
        trips=arguments.trips,
    )
    write_lines(arguments.domain, category_names(arguments.categories))


COMMAND = Command(
    description="Writes simulated trips in a city by means of transport: busier by day, with scooters that come into "
    "fashion and ferries that stop half-way. Nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
