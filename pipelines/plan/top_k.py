"""`privstream plan top-k`: how right a ranking and its counts will be, before any data is touched."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from privstream.mechanisms import MeasuredTopK, checks
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.top_k import PERSON, add_shares
from privstream.pipelines.plan.page import add_json, show
from rich.table import Table

SHARES = (0.1, 0.25, 0.5, 0.75)
NUMBERS = """\
numbers in the answer, in people:
  mixed up within   with probability 1 - beta, no item that a window leaves out is held by more people than one
                    that it publishes, but for so many
  count within      with probability 1 - beta, a count is no further from the truth (the least error bound of a row)
  stddev            standard deviation of an estimate, where the items on top stand clear of the others
  without gaps      the same if the gaps were not used
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about the unit, > 0")
    budget.add_argument("--delta", type=float, default=0.0, help="probability of leaking more (default: 0, never)")
    add_shares(budget)
    run = parser.add_argument_group("the run")
    run.add_argument("--items", type=int, required=True, metavar="N", help="items on the public list")
    run.add_argument("--top", type=int, required=True, metavar="K", help="items to publish in each window")
    run.add_argument("--windows", type=int, metavar="T", help="windows that one person takes part in at most")
    run.add_argument("--items_per_step", type=int, default=1, help="items of one person in a window (default: 1)")
    run.add_argument("--streams_per_person", type=int, default=1, help="streams of one person (default: 1)")
    run.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    add_json(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        mechanism = _mechanism(arguments)
        answer = plan(mechanism, arguments.items, arguments.beta)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(arguments, mechanism, answer)


def _mechanism(arguments: argparse.Namespace) -> MeasuredTopK:
    """Return the mechanism that the options describe."""
    if (arguments.unit == PERSON) != (arguments.windows is not None):
        raise ValueError("windows must be given when the unit is a person in the whole run, and only then")
    checks.integer("top", arguments.top, minimum=1)
    checks.integer("items", arguments.items, minimum=arguments.top + 1)
    windows = 1 if arguments.windows is None else checks.integer("windows", arguments.windows, minimum=1)
    return MeasuredTopK(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        top=arguments.top,
        releases=windows * checks.integer("streams_per_person", arguments.streams_per_person, minimum=1),
        items_per_release=arguments.items_per_step,
        measure_share=arguments.measure_share,
        noise_law=arguments.noise_law,
        neighbouring=arguments.neighbouring,
    )


def plan(mechanism: MeasuredTopK, items: int, beta: float) -> dict[str, Any]:
    """Return the errors with the share that is asked for, and with others."""
    shares = sorted({mechanism.measure_share, *SHARES})
    each = [
        _errors(mechanism if share == mechanism.measure_share else replace(mechanism, measure_share=share), items, beta)
        for share in shares
    ]
    return {"measure_share": mechanism.measure_share, "shares": each, "guarantee": mechanism.guarantee.to_dict()}


def _errors(mechanism: MeasuredTopK, items: int, beta: float) -> dict[str, Any]:
    """Return the errors of one choice."""
    return {
        "measure_share": mechanism.measure_share,
        "selection_error": mechanism.selection_error(items, beta),
        "least_error_bound": mechanism.measure_error(beta),
        "estimate_stddev": mechanism.estimate_variance**0.5,
        "stddev_without_gaps": mechanism.measurement.variance**0.5,
    }


def _print(arguments: argparse.Namespace, mechanism: MeasuredTopK, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    unit = "a person in the whole run" if arguments.unit == PERSON else "a person in one window"
    windows = "" if arguments.windows is None else f", {arguments.windows:,} windows"
    title = (
        f"epsilon {mechanism.epsilon:g}, delta {mechanism.delta:g} for {unit}; "
        f"top {mechanism.top:,} of {arguments.items:,} items{windows}"
    )
    table = Table()
    table.add_column("share for counts")
    for column in ("mixed up within", "count within", "stddev", "without gaps"):
        table.add_column(column, justify="right")
    for found in answer["shares"]:
        asked = found["measure_share"] == answer["measure_share"]
        cells = [f"{found[name]:,.0f}" for name in ("selection_error", "least_error_bound")]
        cells += [f"{found[name]:,.1f}" for name in ("estimate_stddev", "stddev_without_gaps")]
        table.add_row(f"{found['measure_share']:g}" + (" (asked for)" if asked else ""), *cells)
    asked = next(found for found in answer["shares"] if found["measure_share"] == answer["measure_share"])
    cut = 1 - (asked["estimate_stddev"] / asked["stddev_without_gaps"]) ** 2
    text = (
        f"In a window, with probability {1 - arguments.beta:g}, items are not mixed up that differ by over "
        f"{asked['selection_error']:,.0f} people; gaps, which cost nothing, cut the variance of counts by {cut:.0%}."
    )
    show(title, table, [text])


COMMAND = Command(
    description="Says, before any data is touched, how right the ranking of each window and its counts will be.",
    add_arguments=add_arguments,
    run=run,
)
