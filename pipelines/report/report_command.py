"""`privstream report`: results as one page, with pictures, tables, guarantees and what they have cost."""

from __future__ import annotations

import argparse
import importlib
from datetime import UTC, datetime
from importlib.metadata import version

from privstream.pipelines.accounts.ledger import ENDING
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import ledger_of, monitor_promise, output_of, read_result, results_of
from privstream.pipelines.report.section import section
from privstream.pipelines.sinks.row_files import check_destination, whole_file
from privstream.pipelines.terminal import say
from privstream.transforms.row_types import Time

TITLE = "Differentially private results"
LONGEST_TITLE = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    words = (
        "output of a command, a file or a folder, with its guarantee file; or a monitor, FILE.yaml or its folder, "
        "with all results"
    )
    parser.add_argument("results", nargs="+", metavar="RESULT", help=words)
    parser.add_argument("--output", required=True, metavar="PAGE", help="the page; ends in .html")
    parser.add_argument(
        "--title", default=TITLE, metavar="TEXT", help=f"heading, at most {LONGEST_TITLE} characters (default: {TITLE})"
    )
    parser.add_argument("--ledger", metavar="PATH", help="file in which the runs are recorded")
    parser.add_argument(
        "--key",
        metavar="PATH",
        help=f"the noise key of the runs; their ledger is PATH{ENDING} unless --ledger says otherwise. The page then "
        "has a fingerprint of the input, too, which only who has the key can check",
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the results, make the page, and write it."""
    try:
        if not arguments.output.lower().endswith(".html"):
            raise ValueError(f"--output must end in .html, got {arguments.output}")
        if not 0 < len(arguments.title.strip()) <= LONGEST_TITLE:
            raise ValueError(f"--title must have 1 to {LONGEST_TITLE} characters, got {len(arguments.title)}")
        check_destination(arguments.output)
        page = _page(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    try:
        with whole_file(arguments.output) as stream:
            stream.write(page.encode())
    except OSError as error:
        raise RunError(f"cannot write {arguments.output}: {error}") from error
    say(f"report: {arguments.output} ({len(page.encode()) / 1e6:.1f} MB)")


def _page(arguments: argparse.Namespace) -> str:
    """Return the page."""
    render = importlib.import_module("privstream.pipelines.report.page").render  # other commands need no templates
    named = {ledger_of(path) for path in arguments.results}  # a page of one monitor needs no option
    ledger = arguments.ledger or (named.pop() if len(named) == 1 and arguments.key is None else None)
    accounts = Accounts.of(ledger, arguments.key)
    with clock("reading and drawing results"):
        given = [output_of(path) for path in arguments.results]
        paths = [path for one in given for path in results_of(one)]
        sections = [section(read_result(path, Time), accounts) for path in paths]
        monitors = [each for each in map(monitor_promise, given) if each is not None]
    if accounts is None:
        say("no ledger was given (--ledger or --key): the page does not say what the data set has cost")
    page: str = render(
        title=arguments.title,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("privstream"),
        sections=sections,
        together=[each.number("guarantee") for each in monitors],
        costs=None if accounts is None else accounts.costs([one["dataset"] for one in sections]),
    )
    return page


COMMAND = Command(
    description="Makes one page of results: a picture and a table of each, what the numbers leave out, "
    "what is guaranteed and what is not, and what the data set has cost. The page needs no network.",
    add_arguments=add_arguments,
    run=run,
)
