"""`privstream demo`: simulates what a city searches for, watches it privately, and shows what was found."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

from privstream.mechanisms import checks
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import ENDING
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.plot.truth import Key, Verdict, judge, key, read_detection_threshold
from privstream.pipelines.simulate.event_writers import ItemHolders
from privstream.pipelines.sinks.row_files import iso_8601, read_row_file
from privstream.pipelines.terminal import printable
from privstream.transforms.rows import HeavyHitter
from rich.console import Console
from rich.table import Table
from rich.text import Text

KEY_BYTES = 32
MARK = "# Made by: privstream demo"
FOUND, BELOW, FALSE, MISSED = "green", "default", "bold magenta", "bold red"


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
    rows: list[HeavyHitter] = read_row_file(files.rows, HeavyHitter)
    truth: list[ItemHolders] = read_row_file(files.truth, ItemHolders)
    threshold = read_detection_threshold(files.rows)
    if threshold is None:
        raise RunError(f"{files.rows}.guarantee.json must exist")
    verdict = judge(rows, truth, threshold)
    console.print(_table(rows, truth, verdict))
    console.print(Text(verdict.sentence(threshold), style="bold"))
    published = {*verdict.found, *verdict.below, *verdict.false}
    near = sum(threshold // 2 <= row.holders < threshold and key(row) not in published for row in truth)
    console.print(
        f"{near:,} items that {threshold // 2:,} to {threshold - 1:,} people had were not reported; the guarantee "
        "allows that."
    )
    for line in (
        f"\nPicture: {files.picture}",
        f"The same rows again: sh {files.commands} (the noise key is in {files.key}; another demo makes another key)",
        f"Live page: {_typed(['serve', files.folder, '--ledger', f'{files.key}{ENDING}'])}",
        f"Took {time.monotonic() - began:.0f} s. Your own events: {_typed(['heavy-hitters', '--help'])}",
    ):
        console.print(Text(printable(line)), soft_wrap=True)


class _Files:
    """Where everything is."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.events = os.path.join(folder, "events.parquet")
        self.truth = os.path.join(folder, "truth.jsonl")
        self.rows = os.path.join(folder, "heavy_hitters.jsonl")
        self.picture = os.path.join(folder, "heavy_hitters.png")
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
    watch = ["heavy-hitters", "--input", files.events, "--output", files.rows, "--window", "3600"]
    watch += ["--epsilon", "1", "--delta", "1e-6", "--max_hits", "6", "--horizon", hours, "--items_per_step", "2"]
    watch += ["--noise_key_file", files.key, "--overwrite"]
    plot = ["plot", "heavy-hitters", "--input", files.rows, "--truth", files.truth, "--output", files.picture]
    return [simulate, watch, plot]


def _execute(console: Console, command: Sequence[str]) -> None:
    """Show a command, and do what it does."""
    console.print(Text(printable(f"$ {_typed(command)}"), style="bold"), soft_wrap=True)
    if cli.main(command):
        raise RunError("the demo ends here")
    console.print()


def _table(rows: Sequence[HeavyHitter], truth: Sequence[ItemHolders], verdict: Verdict) -> Table:
    """Return what was found and missed, a line for each window in which there was something."""
    holders = {key(row): row.holders for row in truth}
    counts = {key(row): row for row in rows}
    noise = max((row.count_stddev or 0.0 for row in rows), default=0.0)
    within = f"published count of those who count (± {2 * noise:.0f} in 95% of cases)"
    table = Table(title=f"by hour: item, {within}, true count of all people", title_justify="left")
    table.add_column("hour", no_wrap=True)
    table.add_column("found")
    table.add_column("missed")
    found: dict[int, list[Text]] = defaultdict(list)
    missed: dict[int, list[Text]] = defaultdict(list)
    for names, style in ((verdict.found, FOUND), (verdict.below, BELOW), (verdict.false, FALSE)):
        for name in names:
            count = counts[name].count
            text = f"{name.item} {'-' if count is None else f'{count:,}'} ({holders.get(name, 0):,})"
            found[_start(name)].append(Text(text, style=style))
    for name in verdict.missed:
        missed[_start(name)].append(Text(f"{name.item} ({holders[name]:,})", style=MISSED))
    for start in sorted({*found, *missed}):
        when = iso_8601(start)[5:16].replace("T", " ")
        table.add_row(when, Text(", ").join(found[start]), Text(", ").join(missed[start]))
    return table


def _start(name: Key) -> int:
    """Return the start of a window in microseconds."""
    return int(name.window_start.micros)


COMMAND = Command(
    description="Simulates two days of searches in a city, finds with differential privacy what many people search "
    "for, and shows what was found and what was missed. It keeps the files and prints the commands, so that you "
    "can run them by hand.",
    add_arguments=add_arguments,
    run=run,
)
