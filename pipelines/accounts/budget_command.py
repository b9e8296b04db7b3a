"""`privstream budget show`: what all runs on a data set have cost together, and what is left."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger
from privstream.pipelines.accounts.spending import MOST_RUNS, Standing, distinct, standings_of
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.terminal import printable

EXPLAINED = """\
A run counts once for each label and noise key: a repetition costs nothing. For each unit that a run protects (a person,
an event ..) the total is what all runs promise together to this unit: the plain sum, or less by composition. A run that
protects a larger unit enters with what that means for this one: epsilon 1 for adding or removing a person is epsilon 2
for an event (docs/proofs/units.md). What is spent of a limit also holds where runs were chosen after results; without
a limit it holds for runs that were chosen before (docs/proofs/budget.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    add_place(parser)
    parser.add_argument("--dataset", metavar="NAME", help="only this data set (default: all, each alone)")
    parser.add_argument("--json", action="store_true", help="print JSON, with every run")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which ledger it is."""
    parser.add_argument("--ledger", metavar="PATH", help="file, or table of PostgreSQL, in which runs are recorded")
    parser.add_argument("--key", metavar="PATH", help=f"the noise key of the runs; their ledger is PATH{ENDING}")


def limit(text: str) -> tuple[float, float]:
    """Return the largest epsilon and the largest delta that are allowed."""
    try:
        epsilon, delta = (float(part) for part in text.split(","))
    except ValueError:
        epsilon = delta = math.nan
    if not (0 < epsilon < math.inf and 0 <= delta < 1):
        rule = "must be EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), such as 4,1e-5"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
    return epsilon, delta


def ledger_of(arguments: argparse.Namespace) -> Ledger:
    """Return the ledger that is named."""
    if (arguments.ledger is None) == (arguments.key is None):
        raise UsageError("ledger must be given, or key, the noise key whose ledger lies beside it, and not both")
    try:
        return Ledger(arguments.ledger if arguments.key is None else f"{arguments.key}{ENDING}")
    except ValueError as error:
        raise UsageError(str(error)) from error


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Add up, and print."""
    ledger = ledger_of(arguments)
    try:
        contents = ledger.contents()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not contents.lines:
        raise UsageError(f"ledger must have at least one line, and {ledger.path} has none")
    names = contents.datasets
    if arguments.dataset is not None and arguments.dataset not in names:
        raise UsageError(f"dataset must be one of {', '.join(map(repr, names))}, got {arguments.dataset!r}")
    wanted = names if arguments.dataset is None else [arguments.dataset]
    if arguments.json:
        print(json.dumps({"ledger": ledger.path, "datasets": [_plain(name, contents) for name in wanted]}, indent=2))
        return
    for name in wanted:
        print("\n".join(map(printable, _lines(name, contents))))


def _plain(name: str, contents: Contents) -> dict[str, Any]:
    """Return all that there is to say of a data set as plain values."""
    limit, own = contents.limits.get(name), contents.about(name)
    return {
        "dataset": name,
        "runs": [_of_release(release) for release in distinct(own)],
        "totals": [_of_standing(found, own[-1]) for found in standings_of(contents, name)],
        "limit": None if limit is None else limit._asdict(),
    }


def _of_release(release: list[Entry]) -> dict[str, Any]:
    """Return what there is to say of one release, and how often it was repeated."""
    names = ("time", "command", "name", "neighbouring", "epsilon", "delta", "mu", "slack")
    first = release[0]
    return {name: getattr(first, name) for name in names} | {"unit": str(first.unit), "repeats": len(release) - 1}


def _of_standing(found: Standing, last: Entry) -> dict[str, Any]:
    """Return a total as plain values."""
    cost = last.about(found.unit, found.neighbouring)
    return {
        "unit": str(found.unit),
        "neighbouring": found.neighbouring,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "plain_epsilon": sum(each.epsilon for each in found.costs),
        "releases": len(found.costs),
        "silent": found.silent,
        "left": found.left,
        "more": None if cost is None else found.more(cost),
    }


def _lines(name: str, contents: Contents) -> Iterator[str]:
    """Yield the account of a data set in a few lines."""
    limit, own = contents.limits.get(name), contents.about(name)
    yield f"data set {name!r}: {'no limit is set' if limit is None else f'limit {limit.in_words()}'}"
    for found in standings_of(contents, name):
        releases = f"{len(found.costs):,} release{'s' * (len(found.costs) > 1)}"
        yield f"  {found.unit}, neighbours by {found.neighbouring}"
        yield f"    spent  epsilon {found.epsilon:.4g} at delta {found.delta:.3g}, by {releases}"
        if found.silent:
            yield f"    not in this total: {found.silent:,} releases that promise nothing to this unit"
        cost = own[-1].about(found.unit, found.neighbouring)
        if found.left is not None and cost is not None:
            more = found.more(cost) or 0
            many = f"{more:,}{' or more' * (more == MOST_RUNS)} more"
            like = f"{many} like the last one (epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g})"
            yield f"    left   epsilon {found.left:.4g}; {like}"


COMMAND = Command(
    description="Adds up the privacy budget that all runs on a data set have spent, from the ledger in which "
    "each run is recorded.",
    add_arguments=add_arguments,
    run=run,
)
