"""`privstream serve`: a page that shows the results of a folder as they come."""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version
from typing import Any

from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.limit_options import limit
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import ledger_of, output_of
from privstream.pipelines.report.section import docs_site
from privstream.pipelines.serve.app import Access, App, add_port, is_loopback, listen, read_token
from privstream.pipelines.serve.folder import WatchedFolder
from privstream.pipelines.serve.health import Health, add_health
from privstream.pipelines.serve.page import Page
from privstream.pipelines.terminal import say

PORT, THREADS = 8080, 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    words = "with results of commands, and folders of runs without an end; or FILE.yaml, a monitor, for its folder"
    parser.add_argument("folder", metavar="FOLDER", help=words)
    add_port(parser, PORT)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="where to listen (default: 127.0.0.1)")
    words = "file with a token, which browsers ask for; required if the page can be reached from elsewhere"
    parser.add_argument("--token_file", metavar="PATH", help=words)
    parser.add_argument("--docs", metavar="URL", help="the site of the documentation, to which proofs are linked")
    budget = parser.add_argument_group("privacy budget")
    budget.add_argument("--ledger", metavar="PATH", help="file in which the runs are recorded: shows what is spent")
    budget.add_argument(
        "--budget_limit", type=limit, metavar="EPSILON[,DELTA]", help="limit of each data set: shows what is left"
    )
    health = parser.add_argument_group(
        "health of jobs", "Exact numbers, which no guarantee covers: on loopback alone, under /operator."
    )
    health.add_argument(
        "--operator_token_file", metavar="PATH", help="file with the token of those who may see the health of jobs"
    )
    add_health(health)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Check the options, listen, and answer until interrupted."""
    try:
        arguments.ledger = arguments.ledger or ledger_of(arguments.folder)
        arguments.folder = output_of(arguments.folder)
        server = _server(arguments)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    name = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    say(f"live page of {arguments.folder}: http://{name}:{server.effective_port}/ (Ctrl-C ends it)")
    if arguments.operator_token_file is not None:
        say(f"for operators: http://{name}:{server.effective_port}/operator")
    server.run()


def _server(arguments: argparse.Namespace) -> Any:
    """Return a server that listens."""
    if not os.path.isdir(arguments.folder):
        raise ValueError(f"FOLDER must be a folder that exists, got {arguments.folder}")
    access = Access(
        local=is_loopback(arguments.host),
        token=read_token("token_file", arguments.token_file),
        operator_token=read_token("operator_token_file", arguments.operator_token_file),
    )
    health, accounts = _health(arguments), Accounts.of(arguments.ledger, None)
    if accounts is not None:
        Ledger(accounts.path).read()
    elif arguments.budget_limit is not None:
        raise ValueError("budget_limit must be given with --ledger: without it, it is not known what is spent")
    page = Page(
        WatchedFolder(arguments.folder),
        accounts=accounts,
        limit=None if arguments.budget_limit is None else Limit(*arguments.budget_limit),
        health=health,
        version=version("privstream"),
        docs=docs_site(arguments.docs),
    )
    return listen(
        App(page, access, traceback=arguments.traceback), host=arguments.host, port=arguments.port, threads=THREADS
    )


def _health(arguments: argparse.Namespace) -> Health | None:
    """Return where the health of jobs is found, None if nobody has asked."""
    asked = bool(arguments.metrics) or arguments.dead_letter is not None
    if asked and arguments.operator_token_file is None:
        raise ValueError(
            "operator_token_file must be given with metrics or dead_letter: these numbers are exact, and everybody on "
            "this machine could see them. Make one with openssl rand -hex 32 > token && chmod 600 token"
        )
    if not asked and arguments.operator_token_file is not None:
        raise ValueError("operator_token_file must be given with metrics or dead_letter: there is nothing else to see")
    return Health(arguments.metrics, arguments.dead_letter) if asked else None


COMMAND = Command(
    description="Shows the results of a folder as a page that follows running jobs: what there is now and what there "
    "was before, each with its bands; alerts; what has been spent; and, for operators, the health of jobs. It listens "
    "on loopback unless it is given a host and a token.",
    add_arguments=add_arguments,
    run=run,
)
