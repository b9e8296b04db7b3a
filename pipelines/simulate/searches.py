"""`privstream simulate counts`, `heavy-hitters`, `top-k`: what a city searches for, and how many people do."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.model.types import SPANS
from privstream.pipelines.simulate.simulation import add_simulation, item_holders, write_files, write_lines
from privstream.pipelines.simulate.streams import (
    TRENDS,
    SimulatedWindow,
    search_names,
    simulate_heavy_hitters,
)
from privstream.pipelines.simulate.truths import ItemHolders


def add_city(parser: argparse.ArgumentParser, items: int = 1000) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="number of people with each item")
    parser.add_argument(
        "--items", type=int, default=items, help=f"number of items that are always searched for (default: {items:,})"
    )
    parser.add_argument(
        "--events_per_user",
        type=float,
        default=0.5,
        help="average number of events per person in a window (default: 0.5)",
    )
    parser.add_argument(
        "--trends", type=int, default=8, help="number of items that become popular and fade again (default: 8)"
    )
    parser.add_argument("--domain", metavar="PATH", help="all items, one per line, as `top-k` reads them")


def run_top_k(arguments: argparse.Namespace, others: list[str]) -> None:
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


TOP_K = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and a list of all it could "
    "search for. Nothing in it is private.",
    add_arguments=add_city,
    run=run_top_k,
)


LEAST = 10
"""Items with fewer people are left out of the truth."""


def add_counts(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_city(parser)
    parser.add_argument(
        "--over", choices=SPANS, default="window", help="what the truth is about, as of `counts` (default: window)"
    )


def run_counts(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_searches(arguments, simulate_heavy_hitters if arguments.over == "window" else simulate_since_start)


def simulate_since_start(**city: Any) -> Iterator[SimulatedWindow]:
    """Return the windows of `simulate_heavy_hitters` with how many people had each item in them or before."""
    people: defaultdict[str, set[str]] = defaultdict(set)
    for window in simulate_heavy_hitters(**city):
        for user, item in zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True):
            people[item].add(user)
        yield replace(window, holders={item: len(who) for item, who in people.items() if len(who) >= LEAST})


COUNTS = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and how many people search "
    "for each item. Nothing in it is private.",
    add_arguments=add_counts,
    run=run_counts,
)


HEAVY_HITTERS = replace(TOP_K, add_arguments=partial(add_city, items=5000))
