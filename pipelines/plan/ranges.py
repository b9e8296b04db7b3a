"""`privstream plan ranges`: how far counts of points in ranges will be off, before any data is touched."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.points.range_counter import RangeCounter
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.options import UNBOUNDED, horizon_steps
from privstream.pipelines.commands.point_queries import read_point_queries
from privstream.pipelines.plan.page import add_json, attempt, bound, reasons, show
from privstream.transforms import RangeQuery
from rich.table import Table

NUMBERS = """\
All errors hold with probability 1 - beta, for all answers together, each a range that is asked in a window. With
--queries they are what a run with these ranges promises; with --ranges they hold for any ranges, and a run, which knows
its own, promises no more and mostly less. Baseline: fresh noise for each answer; an update moves each of them by 1 at
most.
"""

DEFAULT_WINDOWS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    run = add_budget_and_run(parser)
    run.add_argument("--ranges", type=int, metavar="N", help="ranges that are asked for in each window, or")
    run.add_argument("--queries", metavar="PATH", help="file with these ranges, as `ranges` takes it")


def add_budget_and_run(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that plans about points have in common; return the group about the run."""
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about an update, > 0")
    budget.add_argument("--delta", type=float, default=0.0, help="probability of leaking more (default: 0, never)")
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    run = parser.add_argument_group("the run")
    run.add_argument("--universe", type=int, required=True, metavar="U", help="points are 1 .. U")
    run.add_argument(
        "--windows", type=horizon_steps, required=True, metavar="T", help=f"number of windows, or {UNBOUNDED}"
    )
    run.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    add_json(parser)
    return run


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        answer = plan(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    print_errors(arguments, answer, "all counts are within")
    if arguments.queries is None and not arguments.json:
        print("A run knows its ranges: for most its bounds are smaller. --queries PATH says what it promises for them.")


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the error of every variant."""
    asked = _asked(arguments)
    ranges = checks.integer("ranges", arguments.ranges, minimum=1) if asked is None else len(asked)
    windows = arguments.windows or DEFAULT_WINDOWS
    shared: dict[str, Any] = {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "universe": arguments.universe,
        "neighbouring": arguments.neighbouring,
    }
    checks.probability("beta", arguments.beta)
    RangeCounter(**shared, horizon=arguments.windows)  # checks what all have in common

    def error(**options: Any) -> int:
        counter = RangeCounter(**shared, **options)
        widest = None if asked is None else counter.widest(*zip(*asked, strict=True))
        return counter.error_at(windows, arguments.beta, answers=ranges, every_step=True, intervals=widest)

    def fresh() -> int:
        replaced = 1 if arguments.neighbouring == "add_remove" else 2
        law = DiscreteLaplace(replaced * ranges * windows / arguments.epsilon)
        return max(0, law.tail_quantile(arguments.beta / (2 * ranges * windows)))

    methods: dict[str, Callable[[], int]] = {
        "duplicates ignored": lambda: error(horizon=arguments.windows),
        "duplicates counted": lambda: error(horizon=arguments.windows, duplicates="counted"),
        "duplicates ignored, T unknown": error,
        "duplicates counted, T unknown": lambda: error(duplicates="counted"),
        "fresh noise for each answer": fresh,
    }
    return {"windows": windows, "errors": {name: attempt(method) for name, method in methods.items()}}


def _asked(arguments: argparse.Namespace) -> list[tuple[int, ...]] | None:
    """Return the ranges that are asked for, if it is said which."""
    if (arguments.ranges is None) == (arguments.queries is None):
        raise ValueError("one of ranges and queries must be given")
    if arguments.queries is None:
        return None
    found = read_point_queries(arguments.queries, RangeQuery)
    if found.timed or not found.standing:
        raise ValueError("--queries must hold ranges for every window, at least one, and none with a time")
    return sorted(set(found.standing))


def print_errors(arguments: argparse.Namespace, answer: dict[str, Any], column: str) -> None:
    """Print an answer as one JSON object, or as a table and what it says."""
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
        return
    budget = f"epsilon {arguments.epsilon:g}, delta {arguments.delta:g}"
    points = f"points 1 .. {arguments.universe:,} ({math.ceil(math.log2(arguments.universe)) + 1} levels)"
    table = Table()
    table.add_column("method")
    table.add_column(column, justify="right")
    for name, found in answer["errors"].items():
        table.add_row(name, bound(found))
    able = {name: found["error_bound"] for name, found in answer["errors"].items() if found["error_bound"] is not None}
    best = min(able, key=lambda name: able[name], default=None)
    sentence = [] if best is None else [f"Best: {best}, within {able[best]:,}."]
    show(f"{budget}; {points}, {answer['windows']:,} windows", table, [*reasons(answer["errors"]), *sentence])


COMMAND = Command(
    description="Says, before any data is touched, how far counts of points in ranges will be off.",
    add_arguments=add_arguments,
    run=run,
)
