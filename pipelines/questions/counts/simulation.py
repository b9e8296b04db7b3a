"""`privstream simulate counts`: what a city searches for, with the true counts of windows or since the start."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.questions.options import SPANS
from privstream.pipelines.questions.top_k import simulation as leaders
from privstream.pipelines.simulate.streams import SimulatedWindow, simulate_heavy_hitters

LEAST = 10
"""Items with fewer people are left out of the truth."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    leaders.add_arguments(parser)
    parser.add_argument(
        "--over", choices=SPANS, default="window", help="what the truth is about, as of `counts` (default: window)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    leaders.write_searches(arguments, simulate_heavy_hitters if arguments.over == "window" else simulate_since_start)


def simulate_since_start(**city: Any) -> Iterator[SimulatedWindow]:
    """Return the windows of `simulate_heavy_hitters` with how many people had each item in them or before."""
    people: defaultdict[str, set[str]] = defaultdict(set)
    for window in simulate_heavy_hitters(**city):
        for user, item in zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True):
            people[item].add(user)
        yield replace(window, holders={item: len(who) for item, who in people.items() if len(who) >= LEAST})


COMMAND = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and how many people search "
    "for each item. Nothing in it is private.",
    add_arguments=add_arguments,
    run=run,
)
