"""`privstream simulate top-k`: what a city searches for, and the public list of all that it could search for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from privstream.mechanisms import checks
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.simulate.city_words import TRENDS, search_names
from privstream.pipelines.simulate.event_writers import ItemHolders, item_holders
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import SimulatedWindow, simulate_heavy_hitters
from privstream.pipelines.sinks.whole_files import check_destination, whole_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="number of people with each item")
    parser.add_argument("--windows", type=int, required=True, metavar="M", help="number of windows")
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
    write_domain(arguments.domain, arguments.items)
    write_files(
        arguments, lambda: (searches(arguments), arguments.windows), truth_type=ItemHolders, truth_of=item_holders
    )


def searches(arguments: argparse.Namespace) -> Iterator[SimulatedWindow]:
    """Return what is searched for, window by window."""
    return simulate_heavy_hitters(
        users=arguments.users,
        windows=arguments.windows,
        seed=arguments.seed,
        window_seconds=arguments.window,
        items=arguments.items,
        events_per_user_and_window=arguments.events_per_user,
        trends=arguments.trends,
    )


def write_domain(path: str | None, items: int) -> None:
    """Write the items that are always there, and everything that may come up, whether it does or not."""
    if path is None:
        return
    try:
        check_destination(path, "--domain")
        names = sorted({*search_names(checks.integer("items", items, minimum=1)), *TRENDS})
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    try:
        with whole_file(path) as stream:
            stream.write("".join(f"{name}\n" for name in names).encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


COMMAND = Command(
    description="Writes what a simulated city searches for, with trends that rise and fall, and a list of all it could "
    "search for. Nothing in it is private.",
    add_arguments=add_arguments,
    run=run,
)
