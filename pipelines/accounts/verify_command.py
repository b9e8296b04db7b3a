"""`privstream budget verify`: whether a ledger is whole, and knows what was published."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.pipelines.accounts.budget_command import add_place, ledger_of
from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.command import Command, RunError

EXPLAINED = """\
Each line of a ledger has the digest of the line before it, and each guarantee file that of its run's line. A line that
was changed, added or deleted is found by the lines after it; the last one is found by the guarantee file of its run
alone, so name those files that you trust. Exit status 1: something is missing or does not agree.
This finds who changed a ledger and not the guarantee files; who can write both can make both anew.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    add_place(parser)
    parser.add_argument(
        "--guarantee",
        nargs="+",
        default=[],
        metavar="PATH",
        help="guarantee files of runs that the ledger must have; or their rows, or folders of rows",
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read all lines, and compare them with guarantee files."""
    ledger = ledger_of(arguments)
    try:
        contents = ledger.contents()
        if not contents.lines:
            raise ValueError(f"ledger must have at least one line, and {ledger.path} has none")
        for path in arguments.guarantee:
            _check(contents, path)
    except ValueError as error:
        raise RunError(str(error)) from error
    lines, runs = len(contents.lines), len(contents.entries)
    print(f"{ledger.path}: {lines:,} lines, {runs:,} of them runs, all as they were written")
    if arguments.guarantee:
        print(f"{len(arguments.guarantee):,} guarantee files agree")
    else:
        print("lines that were deleted at its end leave no trace in it: --guarantee PATH finds that of a run")
    print(f"head: {contents.heads[-1]}")


def _check(contents: Contents, path: str) -> None:
    """Refuse a guarantee file whose run the ledger does not have as it was."""
    if os.path.isdir(path):
        path = os.path.join(path, "_guarantee.json")
    path = path if path.endswith(".json") else f"{path}.guarantee.json"
    promised = _read(path)
    try:
        head, guarantee = promised["ledger"]["head"], guarantee_of(promised)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path} must name a line of a ledger and promise something: it was changed") from None
    if head not in contents.heads[1:]:
        raise ValueError(f"the ledger must have the line that {path} names: lines were changed or deleted")
    line = contents.heads.index(head)
    entry = contents.lines[line - 1]
    if not isinstance(entry, Entry) or not entry.promises(guarantee):
        raise ValueError(f"{path} must promise what line {line} of the ledger does: the guarantee file was changed")


def _read(path: str) -> Any:
    """Return what a guarantee file says."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"guarantee must be files that can be read, got {path} ({type(error).__name__})") from None


COMMAND = Command(
    description="Checks that no line of a ledger was changed or deleted, and that it has the runs of guarantee files.",
    add_arguments=add_arguments,
    run=run,
)
