"""`privstream simulate cardinality`: people who enter and leave a building, with a fire drill."""

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
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, START_MICROS

KINDS = np.array(["enter", "leave"])
DAY_SECONDS = 86_400.0
REPEATED = 0.05
"""Part of all events that are sent twice."""


class SetSize(NamedTuple):
    """How many people were in the set at the end of a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    size: int


@dataclass(frozen=True, eq=False)
class BuildingWindow:
    """One window: `events`, and how many people are in at its end."""

    start: int
    end: int
    events: pa.RecordBatch
    size: int


def simulate_building(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, stay: float = 4 * 3600.0
) -> Iterator[BuildingWindow]:
    """Simulate people at doors: many in the morning, fewer at night; once, everybody has to leave, and comes back.

    Some events are sent twice.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        stay: seconds that a person stays on average, > 0.

    Returns:
        The windows, made one at a time.
    """
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
    leaving = -np.expm1(-window_seconds / checks.positive("stay", stay))
    busy = _busy(window_seconds * (np.arange(windows) + 0.5))
    drill = round(0.5 * windows) + int(np.argmax(busy[round(0.5 * windows) :]))
    inside = np.zeros(users, bool)
    for number in range(windows):
        start = START_MICROS + number * length
        if windows > 2 and number == drill:
            moves = inside.copy()
        elif windows > 2 and number == drill + 1:
            moves = ~inside & (rng.random(users) < 0.6 * busy[number])
        else:
            moves = rng.random(users) < np.where(inside, leaving * (1.2 - busy[number]), leaving * busy[number])
        who = np.flatnonzero(moves)
        kinds = inside[who].astype(np.int64)  # those inside leave
        inside[who] ^= True
        times = start + rng.integers(0, length, len(who))
        again = np.flatnonzero(rng.random(len(who)) < REPEATED)
        who, kinds, times = (np.concatenate([part, part[again]]) for part in (who, kinds, times))
        order = np.argsort(times, kind="stable")
        names = pa.array([f"u{user:06}" for user in who[order].tolist()], pa.string())
        columns = [names, pa.array(KINDS[kinds[order]], pa.string()), pa.array(times[order])]
        arrays = [column.cast(field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
        events = pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
        yield BuildingWindow(start, start + length, events, int(inside.sum()))


def _busy(seconds: np.ndarray) -> np.ndarray:
    """Return how busy the building is at these seconds after midnight: from 0.05 at two to 0.95 at fourteen o'clock."""
    return np.asarray(0.5 - 0.45 * np.cos(2 * np.pi * (seconds / DAY_SECONDS - 1 / 12)))


def set_sizes(window: BuildingWindow) -> Iterator[SetSize]:
    """Return the truth about one window."""
    yield SetSize("", Timestamp(micros=window.start), Timestamp(micros=window.end), window.size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="how many people are in at the end of each window")
    parser.add_argument(
        "--stay", type=float, default=4 * 3600.0, metavar="SECONDS", help="average length of a stay (default: 14400)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(
        arguments,
        simulate_building,
        truth_type=SetSize,
        truth_of=set_sizes,
        windows=arguments.windows,
        stay=arguments.stay,
    )


COMMAND = Command(
    description="Writes simulated events of people who enter and leave a building (items `enter` and `leave`), with "
    "busy days, a fire drill, and doors that sometimes report twice. Nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
