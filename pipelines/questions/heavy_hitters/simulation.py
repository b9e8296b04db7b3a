"""`privstream simulate heavy-hitters`: writes event files to try things out on, with the truth beside them."""

from __future__ import annotations

import argparse

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.simulate.event_writers import ItemHolders, item_holders
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import simulate_example_1_4, simulate_heavy_hitters

CITY, EXAMPLE = "city", "example-1.4"
CITY_ONLY = ("windows", "items", "events_per_user", "trends")
ARGUMENTS = {"events_per_user": "events_per_user_and_window"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--workload",
        choices=(CITY, EXAMPLE),
        default=CITY,
        help="city: what a city searches for, with trends that rise and fall (default); example-1.4: Kaplan et al. "
        "(2020), where each person takes part in three of very many heavy hitters",
    )
    add_simulation(parser, truth="number of people with each item", windows=False)
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
    given = {name: getattr(arguments, name) for name in CITY_ONLY if getattr(arguments, name) is not None}
    if arguments.workload == EXAMPLE and given:
        raise UsageError(f"{next(iter(given))} must not be given with --workload {EXAMPLE}")
    if arguments.workload == CITY and arguments.windows is None:
        raise UsageError("windows must be given with --workload city")
    simulate = simulate_heavy_hitters if arguments.workload == CITY else simulate_example_1_4
    further = {ARGUMENTS.get(name, name): value for name, value in given.items()}
    write_files(arguments, simulate, truth_type=ItemHolders, truth_of=item_holders, **further)


COMMAND = Command(
    description="Writes simulated events to try things out on; nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
