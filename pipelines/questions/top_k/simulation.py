"""`privstream simulate top-k`: what a city searches for, and the public list of all that it could search for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from privstream.pipelines.command import Command
from privstream.pipelines.simulate.city_words import TRENDS, search_names
from privstream.pipelines.simulate.event_writers import ItemHolders, item_holders
from privstream.pipelines.simulate.simulation import add_simulation, write_files, write_lines
from privstream.pipelines.simulate.streams import SimulatedWindow, simulate_heavy_hitters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="number of people with each item")
    parser.add_argument(
        "--items", type=int, default=1000, help="number of items that are always searched for (default: 1000)"
    )
    parser.add_argument(
        "--events_per_user",
        type=float,
        default=0.5,
        help="average number of events of a person in a window (default: 0.5)",
    )
    parser.add_argument(
        "--trends", type=int, default=8, help="number of items that become popular and fade again (default: 8)"
    )
    parser.add_argument("--domain", metavar="PATH", help="all items, one per line, as `top-k` reads them")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_searches(arguments, simulate_heavy_hitters)


def write_searches(arguments: argparse.Namespace, simulate: Callable[..., Iterator[SimulatedWindow]]) -> None:
    """Write what `simulate` returns, given the arguments of `simulate_heavy_hitters`, and the list of all items."""
    write_files(
        arguments,
        simulate,
        truth_type=ItemHolders,
        truth_of=item_holders,
        windows=arguments.windows,
        items=arguments.items,
        events_per_user_and_window=arguments.events_per_user,
        trends=arguments.trends,
    )
    write_lines(arguments.domain, sorted({*search_names(arguments.items), *TRENDS}))  # whether they come up or not


COMMAND = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and a list of all it could "
    "search for. Nothing in it is private.",
    add_arguments=add_arguments,
    run=run,
)
