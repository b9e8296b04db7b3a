"""`privstream plan histogram`: how far live counts will be off, before any data is touched."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from privstream.mechanisms import (
    BinaryTreeCounter,
    BottomUpTreeCounter,
    BufferedToeplitzCounter,
    HistogramQueries,
    HistogramQuery,
    KaryTreeCounter,
    SquareRootToeplitzCounter,
    UnknownHorizonCounter,
)
from privstream.mechanisms.counters.continual_counter import ContinualCounter
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands import histogram_options
from privstream.pipelines.commands.options import UNBOUNDED, horizon_steps
from privstream.pipelines.plan.page import add_json, attempt, bound, reasons, show
from privstream.transforms.histograms.histogram_transform import UNITS
from privstream.transforms.histograms.questions import questions, watched
from rich.table import Table

MODES = ("direct", "anchored", "paper")
COUNTERS: dict[str, type[ContinualCounter]] = {
    "binary tree": BinaryTreeCounter,
    "binary tree, bottom-up": BottomUpTreeCounter,
    "k-ary tree": KaryTreeCounter,
    "square-root Toeplitz": SquareRootToeplitzCounter,
    "buffered Toeplitz": BufferedToeplitzCounter,
    "unknown horizon": UnknownHorizonCounter,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about the unit, > 0")
    budget.add_argument("--delta", type=float, default=0.0, help="probability of leaking more (default: 0, never)")
    budget.add_argument("--unit", choices=UNITS, default="event", help="one event (default), or a user's whole life")
    histogram_options.add_assumptions(budget)
    histogram_options.add_limits(budget)
    run = parser.add_argument_group("the run")
    run.add_argument("--categories", type=int, required=True, metavar="D", help="size of the domain")
    run.add_argument(
        "--windows", type=horizon_steps, required=True, metavar="T", help=f"number of windows, or {UNBOUNDED}"
    )
    run.add_argument("--largest", type=int, metavar="COUNT", help="largest count that is expected (default: T)")
    run.add_argument("--queries", default="histogram", metavar="A,B,..", help="as of `histogram` (default: histogram)")
    run.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    add_json(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        answer = plan(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(arguments, answer)


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the error of every mode and counter, or why there is none."""
    by_user = arguments.unit == "user"
    if by_user != (arguments.max_contributions is not None):
        raise ValueError("max_contributions must be given when the unit is a user, and only then")
    shape = {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "columns": arguments.categories,
        "row_columns": 1 if by_user else arguments.categories_per_row,
        "rows_per_unit": arguments.max_contributions or (1 if arguments.neighbouring == "replace_one" else None),
        "neighbouring": arguments.neighbouring,
    }
    restarts: dict[str, Any] = {"repeatable": bool(arguments.restartable) or arguments.windows is None}
    asked = questions(arguments.queries.split(","), arguments.categories)
    choices = watched(asked)
    budget = shape | restarts | {"horizon": arguments.windows, "beta": arguments.beta, "largest": arguments.largest}
    HistogramQueries(**budget)  # checks everything once
    largest = arguments.largest or arguments.windows or 100_000
    modes = {mode: attempt(partial(_mode_error, mode, budget, choices, largest)) for mode in MODES}
    counters = {
        name: attempt(partial(_counter_error, kind, shape, restarts, arguments)) for name, kind in COUNTERS.items()
    }
    return {"largest": largest, "modes": modes, "counters": counters}


def _mode_error(mode: str, budget: dict[str, Any], choices: list[tuple[HistogramQuery, ...]], largest: int) -> int:
    """Return the error of a mode, watching what is best to watch."""
    able = choices[-1:] if mode == "paper" else choices
    return min(HistogramQueries(**budget, mode=mode, queries=queries).error(largest) for queries in able)


def _counter_error(
    kind: type[ContinualCounter], shape: dict[str, Any], restarts: dict[str, Any], arguments: argparse.Namespace
) -> int:
    """Return the error of a counter that is fed in every window."""
    if kind is UnknownHorizonCounter:
        return kind(**shape, **restarts).error(arguments.windows or arguments.largest or 100_000, arguments.beta)
    if arguments.windows is None:
        raise ValueError("this counter needs to know the number of windows")
    return kind(**shape, horizon=arguments.windows).error(arguments.windows, arguments.beta)


def _print(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    windows = "unbounded" if arguments.windows is None else f"{arguments.windows:,}"
    unit = "event" if arguments.unit == "event" else f"user with {arguments.max_contributions:,} categories in all"
    title = (
        f"epsilon {arguments.epsilon:g}, delta {arguments.delta:g} for one {unit}; "
        f"{arguments.categories:,} categories, {windows} windows"
    )
    table = Table()
    table.add_column("all numbers are within, together")
    table.add_column("error", justify="right")
    for name, found in answer["modes"].items():
        table.add_row(f"mode {name}", bound(found))
    table.add_section()
    for name, found in answer["counters"].items():
        table.add_row(f"counter: {name}", bound(found))
    able = {name: found["error_bound"] for name, found in answer["modes"].items() if found["error_bound"] is not None}
    best = min(able, key=lambda name: able[name], default="none, no mode can meet this budget")
    text = (
        f"With probability {1 - arguments.beta:g} no number is off by more in the whole run; modes anchored and paper "
        f"while no answer exceeds {answer['largest']:,}. Best mode: {best}. Counters: what each would "
        "give in mode direct, which takes the k-ary tree for delta = 0 (with --restartable the binary tree), else the "
        "buffered Toeplitz counter, and the one for unknown horizon without an end."
    )
    show(title, table, [*reasons({**answer["modes"], **answer["counters"]}), text])


COMMAND = Command(
    description="Says, before any data is touched, how far live counts of categories will be off, by "
    "each mode, and by each continual counter.",
    add_arguments=add_arguments,
    run=run,
)
