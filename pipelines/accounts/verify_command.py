"""`privstream budget verify`: whether a ledger is whole, and knows what was published."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
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
    path = ledger.path
    try:
        contents = ledger.contents()
        if not contents.lines:
            raise ValueError(f"ledger must have at least one line, and {path} has none")
        for name in arguments.guarantee:
            _check(contents, path, _file(name))
    except ValueError as error:
        raise RunError(str(error)) from error
    print(f"{path}: {len(contents.lines):,} lines, {len(contents.entries):,} of them runs, all as they were written")
    if arguments.guarantee:
        print(f"{len(arguments.guarantee):,} guarantee files agree")
    else:
        print("lines that were deleted at its end leave no trace in it: --guarantee PATH finds that of a run")
    print(f"head: {contents.heads[-1]}")


def _file(path: str) -> str:
    """Return the guarantee file that belongs to a path."""
    if os.path.isdir(path):
        return os.path.join(path, "_guarantee.json")
    return path if path.endswith(".json") else f"{path}.guarantee.json"


def _check(contents: Contents, ledger: str, path: str) -> None:
    """Refuse a guarantee file whose run the ledger does not have as it was."""
    mark, found = _mark(path)
    line, head = mark["line"], mark["head"]
    if line >= len(contents.heads):
        raise ValueError(f"ledger {ledger}: line {line} must be there, since {path} names it: lines were deleted")
    if contents.heads[line] != head:
        raise ValueError(f"ledger {ledger}: line {line} must be the one that {path} names: the ledger was changed")
    entry, promised = contents.lines[line - 1], _promised(found)
    if not isinstance(entry, Entry) or promised is None or not entry.promises(promised):
        raise ValueError(f"{path} must promise what line {line} of the ledger does: the guarantee file was changed")


def _promised(found: dict[str, Any]) -> PrivacyGuarantee | None:
    """Return the guarantee of a guarantee file, or None if it has none that can be."""
    try:
        return guarantee_of(found)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _mark(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a guarantee file says of the ledger, and all of it."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ValueError(f"guarantee must be files that can be read, got {path} ({error.strerror})") from None
    except ValueError:
        raise ValueError(f"guarantee must be files that privstream has written, got {path}") from None
    mark = found.get("ledger") if isinstance(found, dict) else None
    if mark is None:
        raise ValueError(f"{path} must name a line of a ledger: its run had none")
    if not isinstance(mark, dict) or type(mark.get("line")) is not int or mark["line"] < 1 or "head" not in mark:
        raise ValueError(f"guarantee must be files that privstream has written, got {path}")
    return mark, found


COMMAND = Command(
    description="Checks that no line of a ledger was changed or deleted, and that it has the runs of guarantee files.",
    add_arguments=add_arguments,
    run=run,
)
