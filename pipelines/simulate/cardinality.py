"""`privstream simulate cardinality`: people who enter and leave a building, with a fire drill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.questions.spec import Option
from privstream.pipelines.simulate.simulation import simulation
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, people, start_simulation

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


def simulate_building(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, stay: float = 4 * 3600.0
) -> Iterator[TrueWindow]:
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
    rng, length = start_simulation(users, windows, seed, window_seconds)
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
        columns = people(who[order]), KINDS[kinds[order]], times[order]
        yield TrueWindow.of(start, length, columns, SetSize, [int(inside.sum())])


def _busy(seconds: np.ndarray) -> np.ndarray:
    """Return how busy the building is at these seconds after midnight: from 0.05 at two to 0.95 at fourteen o'clock."""
    return np.asarray(0.5 - 0.45 * np.cos(2 * np.pi * (seconds / DAY_SECONDS - 1 / 12)))


COMMAND = simulation(
    "Writes simulated events of people who enter and leave a building (items `enter` and `leave`), with busy days, a "
    "fire drill, and doors that sometimes report twice. Nothing in them is private.",
    simulate_building,
    SetSize,
    "how many people are in at the end of each window",
    Option("stay", "float", "average length of a stay, in seconds", 4 * 3600.0),
)
