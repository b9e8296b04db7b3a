"""What every `privstream simulate` does: write events window by window, and the truth about them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from privstream.mechanisms.privacy.units import SECOND, in_words
from privstream.pipelines.command import RunError, UsageError
from privstream.pipelines.durations import seconds
from privstream.pipelines.help_page import parsed
from privstream.pipelines.simulate.event_writers import Window, write_simulation
from privstream.pipelines.sinks.whole_files import check_destination, whole_file
from privstream.pipelines.terminal import say
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

FURTHER_FILES = ("truth", "domain", "queries", "rules")


def add_simulation(
    parser: argparse.ArgumentParser, *, truth: str, users: str = "number of people", windows: bool = True
) -> None:
    """Add the options of a simulation, of a number of `windows` if there may be many; texts say what these are."""
    parser.add_argument("--users", type=int, required=True, metavar="N", help=users)
    parser.add_argument("--seed", type=int, required=True, metavar="S", help="the same seed gives the same events")
    parser.add_argument("--output", required=True, metavar="PATH", help="events: .avro .parquet .jsonl or .csv")
    parser.add_argument("--truth", metavar="PATH", help=f"{truth}: .avro .parquet or .jsonl")
    parser.add_argument(
        "--window",
        type=parsed(seconds),
        default=3600.0,
        metavar="DURATION",
        help="length of a window in seconds, or such as 90s, 30m, 1h, 1d (default: 1h)",
    )
    if windows:
        parser.add_argument("--windows", type=int, required=True, metavar="M", help="number of windows")


def write_files(
    arguments: argparse.Namespace,
    simulate: Callable[..., Iterator[Window]],
    *,
    truth_type: type,
    truth_of: Callable[[Window], Iterable[Any]],
    **further: Any,
) -> None:
    """Simulate and write events and truth, with a progress bar.

    Args:
        arguments: with the options of `add_simulation`.
        simulate: returns the windows, given `users`, `seed`, `window_seconds` and what is in `further`.
        truth_type: the NamedTuple that the truth consists of.
        truth_of: returns the rows of truth about one window.
        further: arguments of `simulate`, with `windows` if their number is known before.

    Raises:
        UsageError: an argument breaks its rule.
        RunError: a file could not be written.
    """
    try:
        _check_files(arguments)
        simulated = simulate(users=arguments.users, seed=arguments.seed, window_seconds=arguments.window, **further)
        with _progress() as progress:
            task = progress.add_task("simulating", total=further.get("windows"))
            written = write_simulation(
                arguments.output,
                simulated,
                arguments.truth,
                lambda done: progress.update(task, completed=done),
                truth_type=truth_type,
                truth_of=truth_of,
            )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise RunError(f"cannot write {arguments.output}: {error.strerror or error}") from error
    text = (
        f"{written.events:,} events of {arguments.users:,} people in {written.windows:,} windows of "
        f"{in_words(round(arguments.window * SECOND))}: {arguments.output}"
    )
    say(text if arguments.truth is None else f"{text}\ntruth: {arguments.truth}")


def write_lines(path: str | None, lines: Iterable[str]) -> None:
    """Write a list to a file, if there is one.

    Raises:
        RunError: the file could not be written.
    """
    if path is None:
        return
    try:
        with whole_file(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse to write two things into one file, and further files that cannot be written."""
    taken: dict[str, str] = {}
    for name in ("output", *FURTHER_FILES):
        path = getattr(arguments, name, None)
        if path is not None and taken.setdefault(os.path.realpath(path), f"--{name}") != f"--{name}":
            raise ValueError(f"--{name} must not be written over {taken[os.path.realpath(path)]}, got {path}")
    for name in FURTHER_FILES[1:]:
        if (path := getattr(arguments, name, None)) is not None:
            check_destination(path, f"--{name}")


def _progress() -> Progress:
    """Return a progress bar on the terminal, which vanishes when all is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
