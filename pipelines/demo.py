"""`privstream demo`: simulates what a city searches for, watches it privately, and shows what was found."""

from __future__ import annotations

import math
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from privstream.mechanisms import checks
from privstream.pipelines import cli
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.report.result import read_promise
from privstream.pipelines.simulate import Truth
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.terminal import printable
from privstream.transforms.rows import KeyCount
from rich.console import Console
from rich.text import Text

START = "2024-01-01"
NAMES = ("events.parquet", "truth.jsonl", "counts.jsonl", "counts.png", "report.html", "noise.key")
"""What the demo leaves in its folder, beside the guarantee and the ledger."""

OPTIONS: dict[str, dict[str, Any]] = {
    "--output": {"default": "demo-output", "metavar": "FOLDER", "help": "a folder (default: demo-output)"},
    "--users": {"type": int, "default": 40_000, "metavar": "N", "help": "people (default: 40,000)"},
    "--windows": {"type": int, "default": 48, "metavar": "M", "help": "hours (default: 48)"},
    "--seed": {"type": int, "default": 1, "metavar": "S", "help": "of the simulated events (default: 1)"},
}


def run(output: str, users: int, windows: int, seed: int) -> None:
    """Simulate, watch, draw, and report."""
    files = [os.path.join(output, name) for name in NAMES]
    events, truth, rows, picture, report, key = files
    console = Console(highlight=False)
    try:
        for name, number, least in (("users", users, 1), ("windows", windows, 1), ("seed", seed, 0)):
            checks.integer(name, number, minimum=least)
        end = (datetime.fromisoformat(START) + timedelta(hours=windows)).isoformat()
        os.makedirs(output, exist_ok=True)
        left = os.listdir(output)
        if left and not ({*NAMES} <= {*left} and all(name.startswith(NAMES) for name in left)):
            raise ValueError(f"--output must be a new folder, or one of an earlier demo, got {output}")
        for name in left:
            os.remove(os.path.join(output, name))
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--output must be a folder that can be written: {error}") from error
    size = f"--users {users} --windows {windows} --seed {seed}".split()
    asked = f"--window 1h --start {START} --end {end} --epsilon 1 --delta 1e-6 --max-contributions 40".split()
    console.print("A city searches. What many people search for is published; what one person searches for is not.\n")
    for command in (
        ["simulate", *size, "--output", events, "--truth", truth],
        ["counts", "--input", events, "--output", rows, *asked, "--key", key],
        ["plot", rows, "--output", picture],
        ["report", rows, "--output", report, "--title", "What a simulated city searches for"],
    ):
        console.print(Text(printable(f"$ {_typed(command)}"), style="bold"), soft_wrap=True)
        if cli.main(command):
            raise RunError("the demo ends here")
        console.print()
    sure = int(read_promise(rows).promise.number("accuracy", "detection_threshold"))
    for line in (
        _verdict(read_row_file(rows, KeyCount), read_row_file(truth, Truth), sure),
        f"\nPicture: {picture}",
        f"Report: {report}",
        f"Live page: {_typed(['serve', output])}",
        f"Your own events: {_typed(['counts', '--help'])}",
    ):
        console.print(Text(printable(line)), soft_wrap=True)


def _typed(command: Sequence[str]) -> str:
    """Return a command as one would type it; by its path where the shell does not find it, as after `make demo`."""
    program = "privstream"
    if shutil.which(program) is None:
        program = shlex.quote(os.path.relpath(os.path.join(os.path.dirname(sys.executable), program)))
    return f"{program} {shlex.join(command)}"


def _verdict(rows: Sequence[KeyCount], truth: Sequence[Truth], sure: int) -> str:
    """Say what was found of the items that enough people had in some window, and how near the counts are."""
    holders = {(row.item, row.window_start.micros): row.number for row in truth}
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
    "for what, and says what was found and missed. It prints its commands, and keeps all files.",
    options=OPTIONS,
    run=run,
)
