"""`privstream simulate heavy-hitters`: writes event files to try things out on, with the truth beside them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.simulate.event_writers import ItemHolders, item_holders
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import SimulatedWindow, simulate_example_1_4, simulate_heavy_hitters

CITY, EXAMPLE = "city", "example-1.4"
CITY_ONLY = ("windows", "items", "events_per_user", "trends")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--workload",
        choices=(CITY, EXAMPLE),
        default=CITY,
        help="city: what a city searches for, with trends that rise and fall (default); example-1.4: Kaplan et al. "
        "(2020), where each person takes part in three of very many heavy hitters",
    )
    add_simulation(parser, truth="number of people with each item")
    parser.add_argument("--windows", type=int, metavar="M", help="number of windows (city; example-1.4 has its own)")
    city = parser.add_argument_group("city")
    city.add_argument("--items", type=int, help="number of items that are always searched for (default: 5000)")
    city.add_argument(
        "--events_per_user",
        type=float,
        help="average number of events of a person in a window, without trends (default: 0.5)",
    )
    city.add_argument("--trends", type=int, help="number of items that become popular and fade again (default: 8)")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(arguments, lambda: _windows(arguments), truth_type=ItemHolders, truth_of=item_holders)


def _windows(arguments: argparse.Namespace) -> tuple[Iterator[SimulatedWindow], int | None]:
    """Return the windows and, where it is known before, their number."""
    if arguments.workload == EXAMPLE:
        for name in CITY_ONLY:
            if getattr(arguments, name) is not None:
                raise UsageError(f"{name} must not be given with --workload {EXAMPLE}")
        example = simulate_example_1_4(users=arguments.users, seed=arguments.seed, window_seconds=arguments.window)
        return example, None
    if arguments.windows is None:
        raise UsageError("windows must be given with --workload city")
    chosen = {
        "items": arguments.items,
        "events_per_user_and_window": arguments.events_per_user,
        "trends": arguments.trends,
    }
    windows = simulate_heavy_hitters(
        users=arguments.users,
        windows=arguments.windows,
        seed=arguments.seed,
        window_seconds=arguments.window,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    return windows, arguments.windows


COMMAND = Command(
    description="Writes simulated events to try things out on; nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
