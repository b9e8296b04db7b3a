"""`privstream plan alerts`: how clearly a rule must be met to be noticed, and how often, with which budget."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.privacy.guarantee import NEIGHBOURING
from privstream.mechanisms.sparse_vector.sparse import Sparse
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.alerts import add_alerts
from privstream.pipelines.plan.page import add_json, reasons, show
from privstream.transforms.alerts.sparse_vector_alerts import BUDGETS, runs_touched
from rich.table import Table

NUMBERS = """\
numbers in the answer:
  margin            with probability 1 - beta, in all tests of a run at once, a number of people that passes its
                    threshold by more gives an alert while the run lasts, and none does that misses it by more
  alerts            that each run pays for in any case, and at most, if they are clear
  estimate stddev   standard deviation of the noise on the number in an alert, for a narrow one and for a clear one
Baselines: the sparse vector technique of Dwork and Roth, which gives no numbers, and a noisy count of every rule in
every window, which pays for windows without an alert too.
"""

SHARED, PER_RULE, SPARSE, COUNTS = "shared budget", "budget per rule", "sparse vector", "count per window"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    budget = parser.add_argument_group("privacy, for each person over the whole run")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about a person, > 0")
    add_alerts(budget)
    tests = parser.add_argument_group("tests")
    tests.add_argument("--rules", type=int, required=True, metavar="N", help="number of rules")
    tests.add_argument("--windows", type=int, required=True, metavar="N", help="number of windows, overlapping or not")
    tests.add_argument("--streams", type=int, default=1, metavar="N", help="number of streams (default: 1)")
    tests.add_argument(
        "--streams_per_person",
        type=int,
        metavar="N",
        help="streams that one person counts in; each stream then has a budget (default: any, and one budget for all)",
    )
    tests.add_argument(
        "--both_directions", action="store_true", help="some rules say at least and some at most: more noise if shared"
    )
    tests.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    add_json(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        checks.positive("epsilon", arguments.epsilon)
        for name in ("rules", "windows", "streams", "min_alerts"):
            checks.integer(name, getattr(arguments, name), minimum=1)
        if arguments.streams_per_person is not None:
            checks.integer("streams_per_person", arguments.streams_per_person, minimum=1)
        checks.one_of("budget", arguments.budget, BUDGETS)
        checks.one_of("neighbouring", arguments.neighbouring, tuple(NEIGHBOURING))
        checks.probability("beta", arguments.beta)
        answer = plan(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(arguments, answer)


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what each method gives."""
    return {
        SHARED: _attempt(lambda: _adaptive(arguments, by_rule=False)),
        PER_RULE: _attempt(lambda: _adaptive(arguments, by_rule=True)),
        SPARSE: _attempt(lambda: _sparse(arguments)),
        COUNTS: _attempt(lambda: _counts(arguments)),
    }


def _attempt(method: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a method gives, or why it gives nothing."""
    try:
        return method()
    except ValueError as error:
        return {"reason": str(error)}


def _adaptive(arguments: argparse.Namespace, *, by_rule: bool) -> dict[str, Any]:
    """Return what alerts give, with one run for all rules or one for each."""
    one_direction = by_rule or not arguments.both_directions
    by_stream = arguments.streams_per_person is not None
    touched = runs_touched(arguments.neighbouring, arguments.streams, arguments.streams_per_person)
    mechanism = AdaptiveSparseVector(
        epsilon=arguments.epsilon / (arguments.rules if by_rule else 1) / touched,
        min_hits=arguments.min_alerts,
        branches=arguments.branches,
        integer=True,
        monotone=one_direction and arguments.neighbouring == "add_remove",
        neighbouring=arguments.neighbouring,
    )
    tests = arguments.windows * (1 if by_stream else arguments.streams) * (1 if by_rule else arguments.rules)
    clearest = mechanism.tests.price
    return {
        "margin": mechanism.accuracy(tests, arguments.beta),
        "min_alerts": arguments.min_alerts,
        "max_alerts": (arguments.min_alerts - 1) * clearest + 1,
        "estimate_stddevs": [math.sqrt(mechanism.tests.variance(branch)) for branch in range(arguments.branches)],
        "runs": (arguments.rules if by_rule else 1) * (arguments.streams if by_stream else 1),
    }


def _sparse(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the textbook's technique gives for as many alerts."""
    mechanism = Sparse(
        epsilon=arguments.epsilon,
        max_hits=arguments.min_alerts,
        integer=True,
        neighbouring=arguments.neighbouring,
    )
    tests = arguments.windows * arguments.streams * arguments.rules
    alerts = arguments.min_alerts
    return {"margin": mechanism.accuracy(tests, arguments.beta), "min_alerts": alerts, "max_alerts": alerts, "runs": 1}


def _counts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what noisy counts give: a person may be in all of them, or in those of so many streams."""
    counts = arguments.windows * arguments.streams * arguments.rules
    limit = arguments.streams if arguments.streams_per_person is None else arguments.streams_per_person
    streams = runs_touched(arguments.neighbouring, arguments.streams, limit)
    law = DiscreteLaplace(arguments.windows * arguments.rules * streams / arguments.epsilon)
    return {
        "margin": float(law.tail_quantile(arguments.beta / (2 * counts))),
        "min_alerts": counts,
        "max_alerts": counts,
        "estimate_stddevs": [math.sqrt(law.variance)],
        "runs": 1,
    }


def _print(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    title = f"epsilon {arguments.epsilon:g}: {arguments.rules:,} rules in {arguments.windows:,} windows" + (
        f" of {arguments.streams:,} streams" if arguments.streams > 1 else ""
    )
    table = Table()
    table.add_column("method")
    for column in ("margin", "alerts", "estimate stddev"):
        table.add_column(column, justify="right")
    for name, found in answer.items():
        if name == SPARSE:
            table.add_section()
        table.add_row(name, *_cells(found))
    sentences = reasons(answer)
    chosen = answer[PER_RULE if arguments.budget == "per_rule" else SHARED]
    if "margin" in chosen:
        sentences.append(
            f"With --budget {arguments.budget}, set thresholds {math.ceil(chosen['margin']):,} people below what must "
            f"be noticed, and as many above what is usual. Tests without an alert cost nothing: more windows raise the "
            f"margin with their logarithm only."
        )
    show(title, table, sentences)


def _cells(found: dict[str, Any]) -> list[str]:
    """Write numbers for people."""
    if "reason" in found:
        return ["-"] * 3
    least, most = found["min_alerts"], found["max_alerts"]
    alerts = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    each = " each" if found["runs"] > 1 else ""
    stddevs = found.get("estimate_stddevs", [])
    spread = " to ".join(f"{stddev:,.0f}" for stddev in sorted({stddevs[0], stddevs[-1]})) if stddevs else "-"
    return [f"{math.ceil(found['margin']):,}", alerts + each, spread]


COMMAND = Command(
    description="Says, before any data is touched, how clearly a rule must be met to be noticed, how often, and how "
    "precise the numbers in alerts are; and what standard methods would give.",
    add_arguments=add_arguments,
    run=run,
)
