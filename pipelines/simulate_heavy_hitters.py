"""`privstream simulate heavy-hitters`: writes event files to try things out on, with the truth beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.event_writers import Written, write_simulation
from privstream.pipelines.simulate import SimulatedWindow, simulate_example_1_4, simulate_heavy_hitters
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

CITY, EXAMPLE = "city", "example-1.4"
CITY_ONLY = ("windows", "items", "events_per_user", "trends")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--workload",
        choices=(CITY, EXAMPLE),
        default=CITY,
        help="city: what a city searches for, with trends that rise and fall (default); example-1.4: Kaplan et al. "
        "(2020), where everybody takes part in three of very many heavy hitters",
    )
    parser.add_argument("--users", type=int, required=True, metavar="N", help="number of people")
    parser.add_argument("--windows", type=int, metavar="M", help="number of windows (city; example-1.4 has its own)")
    parser.add_argument("--seed", type=int, required=True, metavar="S", help="the same seed gives the same events")
    parser.add_argument("--output", required=True, metavar="PATH", help="events: .avro .parquet .jsonl or .csv")
    parser.add_argument("--truth", metavar="PATH", help="true holders of each item: .avro .parquet or .jsonl")
    parser.add_argument("--window", type=float, default=3600.0, metavar="SECONDS", help="length (default: 3600)")
    city = parser.add_argument_group("city")
    city.add_argument("--items", type=int, help="number of items that are always there (default: 5000)")
    city.add_argument("--events_per_user", type=float, help="average in a window, without trends (default: 0.5)")
    city.add_argument("--trends", type=int, help="number of items that come up and go away again (default: 8)")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    try:
        windows, total = _windows(arguments)
        with _progress() as progress:
            task = progress.add_task("simulating", total=total)
            written = write_simulation(
                arguments.output,
                windows,
                arguments.truth,
                lambda done: progress.update(task, completed=done),
            )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise RunError(f"cannot write {arguments.output}: {error.strerror or error}") from error
    print(_summary(arguments, written), file=sys.stderr)


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


def _progress() -> Progress:
    """Return a progress bar on the terminal, which vanishes when all is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _summary(arguments: argparse.Namespace, written: Written) -> str:
    """Say what was written."""
    text = (
        f"{written.events:,} events of {arguments.users:,} people in {written.windows:,} windows of "
        f"{arguments.window:g} s: {arguments.output}"
    )
    return text if arguments.truth is None else f"{text}\ntrue holders: {arguments.truth}"


COMMAND = Command(
    description="Writes simulated events to try things out on; nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
