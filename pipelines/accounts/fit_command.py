"""`privstream budget fit`: how many runs fit into a limit."""

from __future__ import annotations

import argparse
import json
import os

from privstream.mechanisms.guarantee_records import read_guarantee_file
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.accounts.budget_command import add_place, ledger_path
from privstream.pipelines.accounts.entries import Contents
from privstream.pipelines.accounts.ledger import Ledger, limit_of
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET, limit
from privstream.pipelines.accounts.spending import MOST_RUNS, Limit, distinct, most_runs, spent
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.terminal import say

EXPLAINED = f"""\
The runs are equal and about the same people, such as one a day. Their total is composed as the ledger composes it.
--epsilon and --delta alone stand for any mechanism; with --gaussian for one whose noise is Gaussian, of which more fit,
and --like takes the privacy curve of a run that was made. With --ledger, what is spent already on --dataset counts,
and the limit in the ledger is taken if --limit is not given. A limit by period is for runs about one period of which
nothing is spent. More than {MOST_RUNS:,} runs are not counted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    parser.add_argument("--limit", type=limit, metavar="EPSILON[,DELTA]", help="the limit (default: the ledger's)")
    parser.add_argument("--epsilon", type=float, help="of each run")
    parser.add_argument("--delta", type=float, default=0.0, help="of each run (default: 0)")
    parser.add_argument("--gaussian", action="store_true", help="the noise of each run is Gaussian")
    parser.add_argument("--like", metavar="PATH", help="guarantee file of a run: the runs are like that one")
    add_place(parser)
    parser.add_argument(
        "--dataset", metavar="NAME", help=f"the data set of which some is spent already (default: {DEFAULT_DATASET})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Count, and print."""
    try:
        guarantee = _guarantee(arguments)
        wanted, earlier = _limit(arguments)
        found = most_runs(wanted, guarantee, earlier)
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps({"runs": found, "limit": wanted._asdict(), "earlier": len(earlier)}))
        return
    more = "or more " if found == MOST_RUNS else ""
    after = f" after {len(earlier):,} releases" if earlier else ""
    print(f"{found:,} {more}runs fit into {wanted.in_words()}{after}")
    if found and not earlier:
        say(f"together: epsilon {spent([guarantee] * found, wanted.delta):g}")


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


def _limit(arguments: argparse.Namespace) -> tuple[Limit, list[PrivacyGuarantee]]:
    """Return the limit, and what was released under it."""
    given = None if arguments.limit is None else Limit(*arguments.limit)
    if arguments.ledger is None and arguments.noise_key_file is None:
        if given is None or arguments.dataset is not None:
            raise ValueError("limit must be given without dataset, or a ledger with dataset")
        return given, []
    dataset = arguments.dataset or DEFAULT_DATASET
    contents = Ledger(ledger_path(arguments)).contents()
    wanted = given or _stored(contents, dataset)
    own = [entry for entry in contents.entries if entry.dataset == dataset]
    return wanted, [] if wanted.period is not None else [release[0].guarantee for release in distinct(own)]


def _stored(contents: Contents, dataset: str) -> Limit:
    """Return the limit in the ledger."""
    if dataset not in contents.limits:
        raise ValueError(f"limit must be given, since the ledger has none for data set {dataset!r}")
    return limit_of(contents.limits[dataset])


COMMAND = Command(
    description="Counts the runs that fit into a privacy budget, before any of them is made.",
    add_arguments=add_arguments,
    run=run,
)
