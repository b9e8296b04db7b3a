"""`privstream budget rename`: another name of a data set, such as of one whose first runs had none."""

from __future__ import annotations

import argparse

from privstream.pipelines.accounts.budget_command import add_place, ledger_of
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import DEFAULT_DATASET
from privstream.pipelines.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = (
        "All earlier runs of the data set, and its limit, are those of the new name, which later runs give as "
        "--dataset. Where there are runs of that name already, and no limit, the total has all of them."
    )
    add_place(parser)
    parser.add_argument(
        "--dataset", default=DEFAULT_DATASET, metavar="NAME", help=f"the name until now (default: {DEFAULT_DATASET})"
    )
    parser.add_argument("--to", required=True, metavar="NAME", help="the new name")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the name into the ledger."""
    if not arguments.to or not arguments.to.isprintable():
        raise UsageError(f"to must be a name of printable letters, got {arguments.to!r}")
    try:
        ledger_of(arguments).rename(arguments.dataset, arguments.to)
    except ValueError as error:
        raise UsageError(str(error)) from error
    say(f"data set {arguments.dataset!r} is called {arguments.to!r} from now on")


COMMAND = Command(
    description="Gives a data set another name in the ledger: its runs and its limit stay.",
    add_arguments=add_arguments,
    run=run,
)
