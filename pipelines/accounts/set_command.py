"""`privstream budget set`: the limit of a data set, which all later runs must keep."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from privstream.pipelines.accounts.budget_command import add_place, ledger_path
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.limit_options import limit, period
from privstream.pipelines.accounts.spending import Limit, distinct, fullest, totals
from privstream.pipelines.command import Command, UsageError, parsed
from privstream.pipelines.terminal import NOTE, say

EXPLAINED = """\
From then on each run about the data set is refused that would bring its total above the limit, and each run about a
data set that the ledger does not know: a mistyped name opens no account. The limit is a line of the ledger. Another
limit needs --change, and the earlier one stays in the ledger.
With --period a total is of the releases that are about the same year or month, or the same days, counted from 1970,
by the time of the data (--start and --end of a run, in UTC) and not by the clock. A run that is about several periods
counts in each of them; one without --start counts in all, one without --end in all from its start on. It protects what
a person does in one period; for somebody who is there in n periods, the limits of n periods compose.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    add_place(parser)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="the data set, as runs name it")
    parser.add_argument(
        "--limit",
        required=True,
        type=limit,
        metavar="EPSILON[,DELTA]",
        help="the largest total. EPSILON alone limits the sum of all epsilons; with DELTA, all releases together must "
        "be (EPSILON, DELTA)-differentially private",
    )
    parser.add_argument(
        "--period", type=parsed(period), metavar="PERIOD", help="year, month or days such as 30d (default: all time)"
    )
    parser.add_argument("--change", action="store_true", help="change the limit that the data set has")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the limit into the ledger."""
    path = ledger_path(arguments)
    if not arguments.dataset or not arguments.dataset.isprintable():
        raise UsageError(f"dataset must be a name of printable letters, got {arguments.dataset!r}")
    epsilon, delta = arguments.limit
    wanted = Limit(epsilon, delta, arguments.period)
    try:
        receipt = Ledger(path).set_limit(arguments.dataset, wanted, change=arguments.change)
    except ValueError as error:
        raise UsageError(str(error)) from error
    how = "had this limit already" if receipt.repeats else "has a limit from now on"
    say(f"data set {arguments.dataset!r} {how}: {wanted.in_words()}; ledger: {path}, line {receipt.line}")
    entries = [entry for entry in Ledger(path).contents().entries if entry.dataset == arguments.dataset]
    for text in _overspent(wanted, [release[0] for release in distinct(entries)]):
        say(f"{NOTE}{text}")


def _overspent(limit: Limit, entries: Sequence[Entry]) -> Iterator[str]:
    """Say for each unit and period what is spent already of a limit, where nothing is left of it."""
    for when, about in [(None, entries)] if limit.period is None else fullest(limit.period, entries):
        for found in totals(about):
            if not limit.left(found):
                during = "" if when is None else f" in {when}"
                spent = f"epsilon {found.epsilon:g}, delta {found.delta:g}"
                runs = f"{found.releases:,} release{'s' * (found.releases > 1)}"
                yield f"already spent, for {found.unit}{during}: {spent} ({runs}); new runs about it are refused"


COMMAND = Command(
    description="Sets the privacy budget of a data set, once, in the ledger in which its runs are recorded.",
    add_arguments=add_arguments,
    run=run,
)
