"""`privstream budget`: what all runs on a data set have cost together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.pipelines.accounts.ledger import ENDING, Entry, Ledger
from privstream.pipelines.accounts.spending import Total, distinct, totals
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.terminal import printable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

EXPLAINED = """\
Runs count once for each run id and noise key: the same again costs nothing. For each unit that a release protects
(a person, an event ..), the total is what all releases promise together to this unit, by composition of their privacy
loss distributions, at the sum of their deltas; it is never above the plain sum of the epsilons. A release that protects
a larger unit enters with what that means for this one: a guarantee of epsilon 1 for adding or removing a person is one
of epsilon 2 for an event, since the person may have others (docs/proofs/units.md). A release that promises nothing to
this unit is counted below the table: the total does not cover what that release reveals about it.
"""

OF_RUN = ("time", "command", "name")
PROMISED = ("neighbouring", "epsilon", "delta")
OF_TOTAL = (*PROMISED, "plain_epsilon", "releases", "silent")
MINUTES = len("2030-01-31T12:00")
RUN_ID_LETTERS = 20
COLUMNS = ("time (UTC)", "command", "run id", "epsilon", "delta", "repeats")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    parser.add_argument("--ledger", metavar="PATH", help="file in which runs are recorded")
    parser.add_argument(
        "--noise_key_file", metavar="PATH", help=f"the noise key of the runs; their ledger is PATH{ENDING}"
    )
    parser.add_argument("--dataset", metavar="NAME", help="only this data set (default: all, each by itself)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Add up, and print."""
    path = _ledger_path(arguments)
    try:
        entries = Ledger(path).read()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not entries:
        raise UsageError(f"ledger must have at least one run, and {path} has none")
    names = list(dict.fromkeys(entry.dataset for entry in entries))
    if arguments.dataset is not None and arguments.dataset not in names:
        raise UsageError(f"dataset must be one of {', '.join(map(repr, names))}, got {arguments.dataset!r}")
    wanted = names if arguments.dataset is None else [arguments.dataset]
    accounts = {name: [entry for entry in entries if entry.dataset == name] for name in wanted}
    if arguments.json:
        found = [_describe(name, entries) for name, entries in accounts.items()]
        print(json.dumps({"ledger": path, "datasets": found}, indent=2))
        return
    console = Console()
    for name, entries in accounts.items():
        _show(console, name, entries)


def _ledger_path(arguments: argparse.Namespace) -> str:
    """Return which ledger it is."""
    if arguments.ledger is not None and arguments.noise_key_file is not None:
        raise UsageError("ledger must not be given with noise_key_file")
    if arguments.ledger is not None:
        return str(arguments.ledger)
    if arguments.noise_key_file is None:
        raise UsageError("ledger must be given, or noise_key_file, the key whose ledger lies beside it")
    return f"{arguments.noise_key_file}{ENDING}"


def _describe(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the account of a data set for machines."""
    return {
        "dataset": name,
        "runs": [_of_release(release) for release in distinct(entries)],
        "totals": [_of_total(total) for total in totals(entries)],
    }


def _of_release(release: Sequence[Entry]) -> dict[str, Any]:
    """Return what there is to say of one release, and how often it was repeated."""
    first, guarantee = release[0], release[0].guarantee
    promised = {"unit": str(guarantee.unit)} | {name: getattr(guarantee, name) for name in PROMISED}
    return {name: getattr(first, name) for name in OF_RUN} | promised | {"repeats": len(release) - 1}


def _of_total(total: Total) -> dict[str, Any]:
    """Return a total as plain values."""
    return {"unit": str(total.unit)} | {name: getattr(total, name) for name in OF_TOTAL}


def _show(console: Console, name: str, entries: Sequence[Entry]) -> None:
    """Print the account of a data set: a table for each unit, of the releases that promise something to it."""
    releases = [_of_release(release) for release in distinct(entries)]
    with clock("composing what was spent"):
        found = totals(entries)
    for total in found:
        title = f"data set {name}: {total.unit}, neighbours by {total.neighbouring}"
        console.print(Text(printable(title), style="bold"))
        console.print(_table(releases, total))
        if total.silent:
            console.print(f"not in this total: {_many(total.silent)} promising nothing to this unit")
        console.print()


def _table(releases: Sequence[Mapping[str, Any]], total: Total) -> Table:
    """Return a line for each release, and what they come to."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:3] else "right", no_wrap=True)
    for one, charge in zip(releases, total.charges, strict=True):
        if charge is None:
            continue
        texts = one["time"][:MINUTES], one["command"], _short(printable(one["name"]))
        table.add_row(*map(Text, texts), f"{charge.epsilon:g}", f"{charge.delta:g}", f"{one['repeats']:,}")
    table.add_section()
    number = _many(total.releases)
    table.add_row("all, composed", number, "", f"{total.epsilon:g}", f"{total.delta:g}", "")
    table.add_row("all, plain sum", number, "", f"{total.plain_epsilon:g}", f"{total.delta:g}", "")
    return table


def _many(releases: int) -> str:
    """Return a number of releases in words."""
    return f"{releases:,} release{'s' * (releases > 1)}"


def _short(run_id: str) -> str:
    """Return as much of a run id as a terminal has room for; JSON has all of it."""
    return run_id if len(run_id) <= RUN_ID_LETTERS else f"{run_id[: RUN_ID_LETTERS - 1]}…"


COMMAND = Command(
    description="Adds up the privacy budget that all runs on a data set have spent, from the ledger in which "
    "each run is recorded.",
    add_arguments=add_arguments,
    run=run,
)
