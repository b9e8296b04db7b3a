"""`privstream plan predecessor`: how near to a query what is found will be, before any data is touched."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_predecessor import DynamicPredecessor
from privstream.mechanisms.points.incremental_predecessor import IncrementalPredecessor
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.plan.page import attempt
from privstream.pipelines.plan.ranges import DEFAULT_WINDOWS, add_budget_and_run, print_errors

NUMBERS = """\
The error is a number of points: with probability 1 - beta, in all answers together, no more points lie between a query
and the predecessor or successor that is told for it, and one does; where none is told, no more lie on that side.
That is for the worst data; each answer comes with a bound of its own, which is far smaller for insertions only: there
it counts the intervals on the way of the query that have not been found to hold points. With delta > 0 only deletions
gain.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    add_budget_and_run(parser).add_argument(
        "--answers", type=int, metavar="N", help="answers in the whole run (default: all points, in all windows)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        answer = plan(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    print_errors(arguments, answer, "points between, at most")


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the error of every variant."""
    windows = arguments.windows or DEFAULT_WINDOWS
    shared: dict[str, Any] = {
        "epsilon": arguments.epsilon,
        "universe": arguments.universe,
        "neighbouring": arguments.neighbouring,
        "queries": arguments.answers,
        "beta": arguments.beta,
    }
    checks.probability("delta", arguments.delta, zero=True)
    IncrementalPredecessor(**shared, horizon=arguments.windows)  # checks what all have in common

    def inserted(**options: Any) -> int:
        return IncrementalPredecessor(**shared, **options).error(windows)

    def deleted(**options: Any) -> int:
        return DynamicPredecessor(**shared, delta=arguments.delta, **options).error(windows)

    length = {"horizon": arguments.windows}
    methods: dict[str, Callable[[], int]] = {
        "insertions only": lambda: inserted(**length),
        "insertions only, duplicates counted": lambda: inserted(**length, duplicates="counted"),
        "insertions only, T unknown": inserted,
        "with deletions": lambda: deleted(**length),
        "with deletions, duplicates counted": lambda: deleted(**length, duplicates="counted"),
        "with deletions, T unknown": deleted,
    }
    return {"windows": windows, "errors": {name: attempt(method) for name, method in methods.items()}}


COMMAND = Command(
    description="Says, before any data is touched, how many points may lie between a query and what is told as nearest "
    "to it.",
    add_arguments=add_arguments,
    run=run,
)
