"""`privstream simulate predecessor`: trades at price levels, and which levels with trades are near to given ones."""

from __future__ import annotations

import argparse
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, users="trades in each window", truth="the nearest levels with trades at each window's end")
    parser.add_argument("--universe", type=int, default=1 << 20, metavar="U", help="levels are 1 .. U (default: 2^20)")
    parser.add_argument("--queries", metavar="PATH", help="queries about levels, as `predecessor` reads them")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
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


COMMAND = Command(
    description="Writes simulated trades, in each window as many as there are users: the user field is the price "
    "level, the item is `trade`. Nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
