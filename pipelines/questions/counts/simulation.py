"""`privstream simulate counts`: what a city searches for, with the true counts of windows or since the start."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from privstream.pipelines.command import Command
from privstream.pipelines.questions.options import SPANS
from privstream.pipelines.questions.top_k import simulation as leaders
from privstream.pipelines.simulate.event_writers import ItemHolders, item_holders
from privstream.pipelines.simulate.simulation import write_files
from privstream.pipelines.simulate.streams import SimulatedWindow

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
    leaders.write_domain(arguments.domain, arguments.items)

    def windows() -> tuple[Iterator[SimulatedWindow], int | None]:
        simulated = leaders.searches(arguments)
        return simulated if arguments.over == "window" else since_start(simulated), arguments.windows

    write_files(arguments, windows, truth_type=ItemHolders, truth_of=item_holders)


def since_start(windows: Iterator[SimulatedWindow]) -> Iterator[SimulatedWindow]:
    """Return the same windows with the number of different people who had each item in them or before."""
    people: defaultdict[str, set[str]] = defaultdict(set)
    for window in windows:
        for user, item in zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True):
            people[item].add(user)
        yield replace(window, holders={item: len(who) for item, who in people.items() if len(who) >= LEAST})


COMMAND = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and how many people search "
    "for each item. Nothing in it is private.",
    add_arguments=add_arguments,
    run=run,
)
