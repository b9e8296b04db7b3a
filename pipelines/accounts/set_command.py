"""`privstream budget set`: the limit of a data set, which all later runs must keep."""

from __future__ import annotations

import argparse

from privstream.pipelines.accounts.budget_command import add_place, ledger_of, limit
from privstream.pipelines.accounts.entries import Limit
from privstream.pipelines.accounts.spending import standings_of
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.terminal import NOTE, say

EXPLAINED = """\
From then on each run about the data set is refused that would bring its total above the limit, and each run about a
data set that the ledger does not know: a mistyped name opens no account. A limit holds also for runs that were chosen
after earlier results (docs/proofs/budget.md); set it before the first run. Another limit needs --change, and the
earlier one stays in the ledger.
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
        metavar="EPSILON,DELTA",
        help="all runs together must be (EPSILON, DELTA)-differentially private",
    )
    parser.add_argument("--change", action="store_true", help="change the limit that the data set has")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the limit into the ledger."""
    ledger, wanted = ledger_of(arguments), Limit(*arguments.limit)
    if not arguments.dataset or not arguments.dataset.isprintable():
        raise UsageError(f"dataset must be a name of printable letters, got {arguments.dataset!r}")
    try:
        receipt = ledger.set_limit(arguments.dataset, wanted, change=arguments.change)
    except ValueError as error:
        raise UsageError(str(error)) from error
    how = "had this limit already" if receipt.repeats else "has a limit from now on"
    say(f"data set {arguments.dataset!r} {how}: {wanted.in_words()}")
    for found in standings_of(receipt.contents, arguments.dataset):
        if not found.left:
            spent = f"epsilon {found.epsilon:.4g} by {len(found.costs):,} releases"
            say(f"{NOTE}already spent, for {found.unit}: {spent}; new runs about it are refused")


COMMAND = Command(
    description="Sets the privacy budget of a data set, once, in the ledger in which its runs are recorded.",
    add_arguments=add_arguments,
    run=run,
)
