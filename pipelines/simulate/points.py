"""`privstream simulate ranges`, `predecessor`: cars in a car park, trades at price levels, and the truth about them."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE
from privstream.pipelines.command import Command
from privstream.pipelines.questions.point_queries import write_point_queries
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, START_MICROS

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


@dataclass(frozen=True, eq=False)
class ParkWindow:
    """One window: `events`, and at its end the slots that are taken, in order."""

    start: int
    end: int
    events: pa.RecordBatch
    taken: np.ndarray


def parts(slots: int) -> list[tuple[int, int]]:
    """Return the ranges that are asked for: equal parts of all slots, and all of them."""
    edges = np.unique(np.linspace(0, slots, PARTS + 1).astype(np.int64)).tolist()
    found = [(low + 1, high) for low, high in itertools.pairwise(edges)]
    return sorted({*found, (1, slots)})


def simulate_park(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, slots: int = 4096
) -> Iterator[ParkWindow]:
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
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    checks.integer("slots", slots, minimum=1)
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
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
        columns = [
            pa.array(slot[order]).cast(pa.string()),
            pa.array(ACTIONS[kinds[order]], pa.string()),
            pa.array(times[order]),
        ]
        arrays = [column.cast(field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
        events = pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
        yield ParkWindow(start, start + length, events, np.flatnonzero(taken) + 1)


def _near(slots: int) -> np.ndarray:
    """Return how likely each free slot is to be taken: near ones are three times as likely as far ones."""
    weights = np.linspace(3.0, 1.0, slots)
    return np.asarray(weights / weights.sum())


def points_in_ranges(window: ParkWindow, ranges: list[tuple[int, int]]) -> Iterator[PointsInRange]:
    """Return the truth about one window."""
    start, end = Timestamp(micros=window.start), Timestamp(micros=window.end)
    for low, high in ranges:
        inside = np.searchsorted(window.taken, high, "right") - np.searchsorted(window.taken, low, "left")
        yield PointsInRange("", start, end, low, high, int(inside))


def add_park(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="how many cars stand in each part at the end of each window")
    parser.add_argument("--slots", type=int, default=4096, metavar="U", help="slots of the car park (default: 4096)")
    parser.add_argument("--queries", metavar="PATH", help="queries about the parts, as `ranges` reads them")


def run_park(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    ranges = parts(max(1, arguments.slots))
    write_files(
        arguments,
        simulate_park,
        truth_type=PointsInRange,
        truth_of=lambda window: points_in_ranges(window, ranges),
        windows=arguments.windows,
        slots=arguments.slots,
    )
    if arguments.queries is not None:
        write_point_queries(arguments.queries, ({"low": low, "high": high} for low, high in ranges))


RANGES = Command(
    description="Writes simulated events of a car park: the user field is the slot, the item is `park` or `leave`. "
    "Nothing in them is private.",
    add_arguments=add_park,
    run=run_park,
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


@dataclass(frozen=True, eq=False)
class TradeWindow:
    """One window: `events`, and the levels that have been traded at so far, in order."""

    start: int
    end: int
    events: pa.RecordBatch
    levels: np.ndarray


def asked(universe: int) -> list[int]:
    """Return the levels that are asked for, evenly spread."""
    return [int(level) for level in np.unique(np.linspace(1, universe, QUERIES + 2).astype(np.int64)[1:-1])]


def simulate_trades(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, universe: int = 1 << 20
) -> Iterator[TradeWindow]:
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
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    if checks.integer("universe", universe, minimum=4) > LARGEST_UNIVERSE:
        raise ValueError(f"universe must be <= 2**60, got {universe}")
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
    levels = np.empty(0, np.int64)
    for number in range(windows):
        start = START_MICROS + number * length
        width = universe * (0.05 + 0.45 * (number + 1) / windows)
        traded = np.rint(rng.normal(universe / 4, width / 2, users)).astype(np.int64)
        traded = traded[(traded >= 1) & (traded <= universe) & (abs(traded - universe // 2) > universe // 16)]
        times = np.sort(start + rng.integers(0, length, len(traded)))
        columns = [pa.array(traded).cast(pa.string()), pa.repeat("trade", len(traded)), pa.array(times)]
        arrays = [column.cast(field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
        levels = np.union1d(levels, traded)
        yield TradeWindow(start, start + length, pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA), levels)


def nearest_true(window: TradeWindow, queries: list[int]) -> Iterator[NearestTrue]:
    """Return the truth about one window."""
    start, end = Timestamp(micros=window.start), Timestamp(micros=window.end)
    for query in queries:
        below, above = window.levels[window.levels <= query], window.levels[window.levels >= query]
        predecessor, successor = (int(below[-1]) if len(below) else 0), (int(above[0]) if len(above) else 0)
        yield NearestTrue("", start, end, query, predecessor, successor)


def add_trades(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, users="trades in each window", truth="the nearest levels with trades at each window's end")
    parser.add_argument("--universe", type=int, default=1 << 20, metavar="U", help="levels are 1 .. U (default: 2^20)")
    parser.add_argument("--queries", metavar="PATH", help="queries about levels, as `predecessor` reads them")


def run_trades(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    queries = asked(min(max(4, arguments.universe), LARGEST_UNIVERSE))
    write_files(
        arguments,
        simulate_trades,
        truth_type=NearestTrue,
        truth_of=lambda window: nearest_true(window, queries),
        windows=arguments.windows,
        universe=arguments.universe,
    )
    if arguments.queries is not None:
        write_point_queries(arguments.queries, ({"point": point} for point in queries))


PREDECESSOR = Command(
    description="Writes simulated trades, in each window as many as there are users: the user field is the price "
    "level, the item is `trade`. Nothing in them is private.",
    add_arguments=add_trades,
    run=run_trades,
)
