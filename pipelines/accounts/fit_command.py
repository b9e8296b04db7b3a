"""`privstream budget fit`: how many runs fit into a limit."""

from __future__ import annotations

import argparse
import json
import os

from privstream.mechanisms.guarantee_records import read_guarantee_file
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.accounts.budget_command import add_place, ledger_of, limit
from privstream.pipelines.accounts.entries import Contents, Entry, Limit
from privstream.pipelines.accounts.spending import MOST_RUNS, standings
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import DEFAULT_DATASET

EXPLAINED = f"""\
The runs are equal and about the same people, such as one a day; they are counted by the filter that refuses runs.
--epsilon and --delta alone stand for any mechanism; with --gaussian for one whose noise is Gaussian, of which more fit,
and --like takes what a run promised that was made. With --ledger or --key, what is spent already on --dataset counts,
and the limit in the ledger is taken if --limit is not given. More than {MOST_RUNS:,} runs are not counted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    parser.add_argument("--limit", type=limit, metavar="EPSILON,DELTA", help="the limit (default: the ledger's)")
    parser.add_argument("--epsilon", type=float, help="of each run")
    parser.add_argument("--delta", type=float, default=0.0, help="of each run (default: 0)")
    parser.add_argument("--gaussian", action="store_true", help="the noise of each run is Gaussian")
    parser.add_argument("--like", metavar="PATH", help="guarantee file of a run: the runs are like that one")
    add_place(parser)
    parser.add_argument(
        "--dataset",
        default=DEFAULT_DATASET,
        metavar="NAME",
        help=f"the data set of which some is spent already (default: {DEFAULT_DATASET})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Count, and print."""
    try:
        contents = Contents()
        if not (arguments.ledger is None and arguments.key is None):
            contents = ledger_of(arguments).contents()
        wanted = contents.limits.get(arguments.dataset) if arguments.limit is None else Limit(*arguments.limit)
        if wanted is None:
            raise ValueError(f"limit must be given, since no ledger has one for data set {arguments.dataset!r}")
        found = _fitting(_next(arguments), contents.about(arguments.dataset), wanted)
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps({"runs": found, "limit": wanted._asdict()}))
        return
    more = "or more " if found == MOST_RUNS else ""
    print(f"{found:,} {more}runs fit into what is left of {wanted.in_words()}")


def _next(arguments: argparse.Namespace) -> Entry:
    """Return each of the runs."""
    nothing = dict.fromkeys(("label", "digest", "name", "dataset", "command", "version", "data", "key", "output"), "")
    return Entry.of(_guarantee(arguments), **nothing)


def _fitting(entry: Entry, earlier: list[Entry], limit: Limit) -> int:
    """Return how many equal runs fit after earlier ones: the fewest, of all units that they promise something to."""
    fewest = MOST_RUNS
    for found in standings([*earlier, entry], limit):
        if (cost := entry.about(found.unit, found.neighbouring)) is not None:
            fewest = min(fewest, found.without_last().more(cost) or 0)
    return fewest


def _guarantee(arguments: argparse.Namespace) -> PrivacyGuarantee:
    """Return what each run promises."""
    if (arguments.like is None) == (arguments.epsilon is None):
        raise ValueError("epsilon must be given, or like, the guarantee file of a run, and not both")
    if arguments.like is not None:
        if arguments.gaussian or arguments.delta:
            raise ValueError("like must not be given with gaussian or delta")
        if os.path.isdir(arguments.like):
            raise ValueError(f"like must be the guarantee file of a run, got the folder {arguments.like}")
        return read_guarantee_file(arguments.like)
    epsilon, delta = arguments.epsilon, arguments.delta
    curve = GaussianCurve(shift=largest_shift(epsilon, delta)) if arguments.gaussian else None
    return PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=epsilon, delta=delta, curve=curve)


COMMAND = Command(
    description="Counts the runs that fit into a privacy budget, before any of them is made.",
    add_arguments=add_arguments,
    run=run,
)
