"""`privstream simulate ranges`, `predecessor`: cars in a car park, trades at price levels, and the truth about them."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE
from privstream.pipelines.questions.point_queries import write_point_queries
from privstream.pipelines.questions.spec import Option
from privstream.pipelines.simulate.simulation import simulation
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, start_simulation

ACTIONS = np.array(["leave", "park"])
DAY_SECONDS = 86_400.0
PARTS = 4
"""Parts of the car park that are asked for."""


class PointsInRange(NamedTuple):
    """How many points lay in a range at the end of a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    low: int
    high: int
    points: int


def parts(slots: int) -> list[tuple[int, int]]:
    """Return the ranges that are asked for: equal parts of all slots, and all of them."""
    edges = np.unique(np.linspace(0, slots, PARTS + 1).astype(np.int64)).tolist()
    found = [(low + 1, high) for low, high in itertools.pairwise(edges)]
    return sorted({*found, (1, slots)})


def simulate_park(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, slots: int = 4096
) -> Iterator[TrueWindow]:
    """Simulate a car park that fills from slot 1 on: full by day, nearly empty by night.

    Args:
        users: number of cars, >= 1; there are no more at once than there are slots.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        slots: number of slots, >= 1.

    Returns:
        The windows, made one at a time.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    ranges = parts(checks.integer("slots", slots, minimum=1))
    taken = np.zeros(slots, np.bool_)
    for number in range(windows):
        start = START_MICROS + number * length
        hour = (number + 0.5) * window_seconds / DAY_SECONDS - 1 / 12
        wanted = min(users, slots) * (0.5 - 0.45 * np.cos(2 * np.pi * hour))
        leaving = np.flatnonzero(taken & (rng.random(slots) < 0.2))
        taken[leaving] = False
        free = np.flatnonzero(~taken)
        coming = min(len(free), max(0, round(wanted) - int(taken.sum())))
        parking = np.sort(rng.choice(free, coming, replace=False, p=_near(len(free)))) if coming else free[:0]
        taken[parking] = True
        middle = length // 2  # in the first half of a window cars leave, in the second they come
        times = start + np.concatenate(
            [rng.integers(0, middle, len(leaving)), rng.integers(middle, length, len(parking))]
        )
        slot = np.concatenate([leaving, parking]) + 1
        kinds = np.repeat([0, 1], [len(leaving), len(parking)])
        order = np.argsort(times, kind="stable")
        full = np.flatnonzero(taken) + 1
        inside = [int(np.count_nonzero((full >= low) & (full <= high))) for low, high in ranges]
        columns = slot[order], ACTIONS[kinds[order]], times[order]
        yield TrueWindow.of(start, length, columns, PointsInRange, *zip(*ranges, strict=True), inside)


def _near(slots: int) -> np.ndarray:
    """Return how likely each free slot is to be taken: near ones are three times as likely as far ones."""
    weights = np.linspace(3.0, 1.0, slots)
    return np.asarray(weights / weights.sum())


def _write_ranges(arguments: argparse.Namespace) -> None:
    if arguments.queries is not None:
        write_point_queries(arguments.queries, ({"low": low, "high": high} for low, high in parts(arguments.slots)))


RANGES = simulation(
    "Writes simulated events of a car park: the user field is the slot, the item is `park` or `leave`. Nothing in them "
    "is private.",
    simulate_park,
    PointsInRange,
    "how many cars stand in each part at the end of each window",
    Option("slots", "int", "slots of the car park", 4096),
    Option("queries", "Path", "queries about the parts, as `ranges` reads them"),
    more=_write_ranges,
)


QUERIES = 3


class NearestTrue(NamedTuple):
    """What was nearest to a point at the end of a window, in truth; 0 where there was nothing."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    query: int
    predecessor: int
    successor: int


def asked(universe: int) -> list[int]:
    """Return the levels that are asked for, evenly spread."""
    return [int(level) for level in np.unique(np.linspace(1, universe, QUERIES + 2).astype(np.int64)[1:-1])]


def simulate_trades(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, universe: int = 1 << 20
) -> Iterator[TrueWindow]:
    """Simulate trades whose prices spread from one level over all of them, and leave a gap in the middle.

    Args:
        users: number of trades in a window, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        universe: levels are 1 .. universe, at least 4.

    Returns:
        The windows, made one at a time.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    if checks.integer("universe", universe, minimum=4) > LARGEST_UNIVERSE:
        raise ValueError(f"universe must be <= 2**60, got {universe}")
    queries = asked(universe)
    levels = np.empty(0, np.int64)
    for number in range(windows):
        start = START_MICROS + number * length
        width = universe * (0.05 + 0.45 * (number + 1) / windows)
        traded = np.rint(rng.normal(universe / 4, width / 2, users)).astype(np.int64)
        traded = traded[(traded >= 1) & (traded <= universe) & (abs(traded - universe // 2) > universe // 16)]
        times = np.sort(start + rng.integers(0, length, len(traded)))
        levels = np.union1d(levels, traded)
        near = [(levels[levels <= query], levels[levels >= query]) for query in queries]
        below = [int(side[-1]) if len(side) else 0 for side, _ in near]
        above = [int(side[0]) if len(side) else 0 for _, side in near]
        columns = traded, pa.repeat("trade", len(traded)), times
        yield TrueWindow.of(start, length, columns, NearestTrue, queries, below, above)


def _write_points(arguments: argparse.Namespace) -> None:
    if arguments.queries is not None:
        write_point_queries(arguments.queries, ({"point": point} for point in asked(arguments.universe)))


PREDECESSOR = simulation(
    "Writes simulated trades, in each window as many as there are users: the user field is the price level, the item "
    "is `trade`. Nothing in them is private.",
    simulate_trades,
    NearestTrue,
    "the nearest levels with trades at each window's end",
    Option("universe", "int", "levels are 1 to so many", 1 << 20),
    Option("queries", "Path", "queries about levels, as `predecessor` reads them"),
    users="trades in each window",
    more=_write_points,
)
