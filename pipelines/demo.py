"""`privstream demo`: simulates what a city searches for, watches it privately, and shows what was found."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from privstream.mechanisms import checks
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import ENDING
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.plot import write
from privstream.pipelines.report.result import read_result
from privstream.pipelines.show.words import interval
from privstream.pipelines.simulate.city import Truth
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.row_formats import iso_8601
from privstream.pipelines.terminal import printable
from privstream.transforms.rows import KeyCount
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

KEY_BYTES = 32
MARK = "# Made by: privstream demo"
SHOWN = 6
START = "2024-01-01"
TITLE = "What a simulated city searches for"

Holders = Mapping[tuple[str, int], int]
"""How many people had an item in the window that starts then, in microseconds since 1970."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--output", default="demo-output", metavar="FOLDER", help="where the files go (default: demo-output)"
    )
    parser.add_argument("--users", type=int, default=40_000, metavar="N", help="people (default: 40,000)")
    parser.add_argument("--windows", type=int, default=48, metavar="M", help="hours (default: 48)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the simulated events (default: 1)")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Simulate, watch, draw, and report."""
    began = time.monotonic()
    console = Console(highlight=False)
    try:
        checks.integer("users", arguments.users, minimum=1)
        checks.integer("windows", arguments.windows, minimum=1)
        checks.integer("seed", arguments.seed, minimum=0)
        files = _Files(arguments.output)
        commands = _commands(arguments, files)
        files.prepare(commands)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--output must be a folder that can be written: {error}") from error
    console.print("A city searches. What many people search for is published; what one person searches for is not.\n")
    for command in commands:
        _execute(console, command)
    rows: list[KeyCount] = read_row_file(files.rows, KeyCount)
    truth: list[Truth] = read_row_file(files.truth, Truth)
    holders = {(row.item, row.window_start.micros): row.number for row in truth}
    console.print(_largest(rows, holders))
    write(read_result(files.rows).chart(truth), files.picture)
    promise = Promise.read(f"{files.rows}.guarantee.json")
    assert promise is not None  # the run has written it
    for line in (
        _verdict(rows, holders, int(promise.number("accuracy", "detection_threshold"))),
        f"\nPicture, with the simulated truth: {files.picture}",
        f"Report: {files.report}",
        f"The same rows again: sh {files.commands} (the noise key is in {files.key}; another demo makes another key)",
        f"Live page: {_typed(['serve', files.folder, '--ledger', f'{files.key}{ENDING}'])}",
        f"Took {time.monotonic() - began:.0f} s. Your own events: {_typed(['counts', '--help'])}",
    ):
        console.print(Text(printable(line)), soft_wrap=True)


class _Files:
    """Where everything is."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.events = os.path.join(folder, "events.parquet")
        self.truth = os.path.join(folder, "truth.jsonl")
        self.rows = os.path.join(folder, "counts.jsonl")
        self.picture = os.path.join(folder, "counts.png")
        self.report = os.path.join(folder, "report.html")
        self.key = os.path.join(folder, "noise.key")
        self.commands = os.path.join(folder, "commands.sh")

    def prepare(self, commands: Sequence[Sequence[str]]) -> None:
        """Make the folder, write down the commands, and make a new noise key that only its owner can read."""
        os.makedirs(self.folder, exist_ok=True)
        if os.listdir(self.folder) and not self._is_demo():
            raise ValueError(f"--output must be a new folder, or one that a demo has made, got {self.folder}")
        with open(self.commands, "w") as file:
            file.writelines([f"{MARK}\n", *(f"{_typed(command)}\n" for command in commands)])
        for path in (self.key, f"{self.key}{ENDING}"):  # the ledger is about runs with the key before
            if os.path.exists(path):
                os.remove(path)
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(KEY_BYTES)}\n")

    def _is_demo(self) -> bool:
        """Tell whether a demo has made the folder."""
        try:
            with open(self.commands) as file:
                return file.readline().strip() == MARK
        except (FileNotFoundError, UnicodeDecodeError):
            return False


def _typed(command: Sequence[str]) -> str:
    """Return a command as one would type it; by its path where the shell does not find it, as after `make demo`."""
    program = "privstream"
    if shutil.which(program) is None:
        program = shlex.quote(os.path.relpath(os.path.join(os.path.dirname(sys.executable), program)))
    return f"{program} {shlex.join(command)}"


def _commands(arguments: argparse.Namespace, files: _Files) -> list[list[str]]:
    """Return the commands of the demo, as one would type them."""
    people, hours, seed = str(arguments.users), str(arguments.windows), str(arguments.seed)
    simulate = ["simulate", "heavy-hitters", "--users", people, "--windows", hours, "--seed", seed]
    simulate += ["--output", files.events, "--truth", files.truth]
    end = (datetime.fromisoformat(START) + timedelta(hours=arguments.windows)).isoformat()
    watch = ["counts", "--input", files.events, "--output", files.rows]
    watch += ["--window", "1h", "--start", START, "--end", end]
    watch += ["--epsilon", "1", "--delta", "1e-6", "--max-contributions", "40"]
    watch += ["--key", files.key, "--overwrite"]
    report = ["report", files.rows, "--ledger", f"{files.key}{ENDING}", "--output", files.report]
    report += ["--title", TITLE]
    return [simulate, watch, report]


def _execute(console: Console, command: Sequence[str]) -> None:
    """Show a command, and do what it does."""
    console.print(Text(printable(f"$ {_typed(command)}"), style="bold"), soft_wrap=True)
    if cli.main(command):
        raise RunError("the demo ends here")
    console.print()


def _largest(rows: Sequence[KeyCount], holders: Holders) -> Table:
    """Return the items with the largest counts, each in the hour of its largest one."""
    peaks: dict[str, KeyCount] = {}
    for row in rows:
        if row.item not in peaks or row.people > peaks[row.item].people:
            peaks[row.item] = row
    table = Table(title="the largest items, in the hour of most people", title_justify="left", box=SIMPLE_HEAD)
    for name in ("item", "hour", "published", "95% interval", "true"):
        table.add_column(name, justify="left" if name in ("item", "hour") else "right")
    for row in sorted(peaks.values(), key=lambda row: (-row.people, row.item))[:SHOWN]:
        true, hour = holders.get((row.item, row.window_start.micros), 0), iso_8601(row.window_start.micros)
        numbers = f"{row.people:,.0f}", interval(row.lower, row.upper), f"{true:,}"
        table.add_row(Text(row.item), hour[5:16].replace("T", " "), *numbers)
    return table


def _verdict(rows: Sequence[KeyCount], holders: Holders, sure: int) -> str:
    """Say what was found of the items that enough people had in some window, and how near the counts are."""
    large = {item for (item, _), people in holders.items() if people >= sure}
    found = {row.item for row in rows}
    judged = [(row, true) for row in rows if (true := holders.get((row.item, row.window_start.micros))) is not None]
    held = sum(row.lower <= true <= (math.inf if row.upper is None else row.upper) for row, true in judged)
    return (
        f"Of {len(large):,} items that at least {sure:,} people had in a window, {len(large & found):,} were found. "
        f"Of {len(judged):,} published counts with a known truth, {held:,} have it in their interval."
    )


COMMAND = Command(
    description="Simulates two days of searches in a city, counts with differential privacy how many people search "
    "for what, and shows the largest items, what rose, and what was missed. It keeps the files and prints the "
    "commands, so that you can run them by hand.",
    add_arguments=add_arguments,
    run=run,
)
