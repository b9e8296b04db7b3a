"""`privstream plan heavy-hitters`: what a privacy budget finds, before any data is touched."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.monitor.threshold_monitor import CALIBRATIONS, DEFAULT_TESTS
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.options import UNBOUNDED, add_count_share, horizon_steps
from privstream.pipelines.plan.page import add_json, reasons, show
from privstream.pipelines.plan.standard_methods import histogram_per_step, sparse
from rich.table import Table

DEFAULT_STEPS = 1_000
UNENDING = "unknown items, no bound on steps"
NAMES = {
    "clock": "clock",
    "target_charging": "target charging",
    "paper": "paper",
    "sparse": "sparse vector, re-run",
    "histogram_per_step": "histogram per step",
}
NUMBERS = """\
numbers in the answer:
  noise scale       how far noise moves a count, in people
  threshold         what a noisy count must reach to be reported
  found from        with probability 1 - beta, in no test of the whole run is an item missed that so many people
                    hold who are still counted, and in none is an item reported that nobody holds
  count stddev      standard deviation of the noise on the counts that are reported
With --json, detection_threshold is what is called `found from` here, and what cannot be is null, with a reason.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    budget = parser.add_argument_group("privacy, for each person over the whole run")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about a person, > 0")
    budget.add_argument("--delta", type=float, required=True, help="probability of leaking more; far below 1 / people")
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument("--max_hits", type=int, required=True, help="hits that one person is charged for, then dropped")
    budget.add_argument("--items_per_step", type=int, default=1, help="items of one person in a step (default: 1)")
    budget.add_argument("--streams_per_person", type=int, default=1, help="streams of one person (default: 1)")
    budget.add_argument(
        "--horizon",
        type=horizon_steps,
        default=argparse.SUPPRESS,
        metavar="STEPS",
        help=f"plan for items that are not known before: steps that one person takes part in, or {UNBOUNDED}; "
        "without this option every item of a public list is tested at every step",
    )
    add_count_share(budget)
    accuracy = parser.add_argument_group("accuracy")
    accuracy.add_argument(
        "--tests",
        type=int,
        default=DEFAULT_TESTS,
        metavar="N",
        help="tests, one for each item and step, in which all goes well (default: a million)",
    )
    accuracy.add_argument("--beta", type=float, default=0.05, help="probability that not all goes well (default: 0.05)")
    standard = parser.add_argument_group("standard methods to compare with")
    standard.add_argument(
        "--total_hits", type=int, metavar="C", help="hits in the whole stream, of whomever (default: one in each step)"
    )
    standard.add_argument(
        "--steps", type=int, help=f"steps of the whole stream (default: the horizon, else {DEFAULT_STEPS:,})"
    )
    add_json(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        budget = _budget(arguments)
        steps = arguments.steps if arguments.steps is not None else _horizon(arguments) or DEFAULT_STEPS
        total_hits = arguments.total_hits if arguments.total_hits is not None else steps
        checks.integer("steps", steps, minimum=1)
        checks.integer("total_hits", total_hits, minimum=1)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    answer: dict[str, Any] = {name: _attempt(partial(_calibrate, name, budget, arguments)) for name in CALIBRATIONS}
    answer["baselines"] = {
        "sparse": _attempt(lambda: vars(sparse(budget, total_hits=total_hits))) | {"total_hits": total_hits},
        "histogram_per_step": _attempt(lambda: vars(histogram_per_step(budget, steps=steps))) | {"steps": steps},
    }
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(budget, _items(arguments), answer)


def _budget(arguments: argparse.Namespace) -> MonitorBudget:
    """Return what may be spent."""
    horizon = _horizon(arguments)
    checks.integer("items_per_step", arguments.items_per_step, minimum=1)
    if horizon is not None:
        checks.integer("horizon", horizon, minimum=1)
    return MonitorBudget(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        max_hits=arguments.max_hits,
        tests=arguments.tests,
        beta=arguments.beta,
        neighbouring=arguments.neighbouring,
        domain="unknown" if "horizon" in arguments else "known",
        tests_per_person=None if horizon is None else horizon * arguments.items_per_step,
        items_per_step=arguments.items_per_step,
        streams_per_person=arguments.streams_per_person,
        count_share=arguments.count_share,
    )


def _horizon(arguments: argparse.Namespace) -> int | None:
    """Return the horizon, or None if none was given or it is unbounded."""
    return getattr(arguments, "horizon", None)


def _items(arguments: argparse.Namespace) -> str:
    """Say which items are looked for, and for how long."""
    if "horizon" not in arguments:
        return "items from a public list"
    return UNENDING if arguments.horizon is None else f"unknown items, {arguments.horizon:,} steps per person"


def _calibrate(name: str, budget: MonitorBudget, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what one calibration of the monitor finds."""
    if name != "clock" and _items(arguments) == UNENDING:
        raise ValueError(f"horizon must be a number of steps with calibration {name}")
    calibration = CALIBRATIONS[name].calibrate(budget)
    sigma = calibration.count_sigma
    return {
        "noise_scale": calibration.noise_scale,
        "threshold": calibration.threshold,
        "detection_threshold": calibration.detection_threshold(budget.tests, budget.beta),
        "count_stddev": None if sigma is None else math.sqrt(DiscreteGaussian(sigma).variance),
        "guarantee": replace(calibration.guarantee, horizon=_horizon(arguments)).to_dict(),
    }


def _attempt(calibrate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what is found, or, if that cannot be with these parameters, why."""
    try:
        return dict(calibrate())
    except (ValueError, OverflowError) as error:
        names = ("noise_scale", "threshold", "detection_threshold", "guarantee")
        reason = "epsilon must be larger" if isinstance(error, OverflowError) else str(error)
        return dict.fromkeys(names) | {"reason": reason}


def _print(budget: MonitorBudget, items: str, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    methods = {name: answer[name] for name in CALIBRATIONS} | answer["baselines"]
    title = f"epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.max_hits:,} hits per person, {items}"
    table = Table()
    table.add_column("method")
    for column in ("noise scale", "threshold", "found from"):
        table.add_column(column, justify="right")
    if budget.count_share:
        table.add_column("count stddev", justify="right")
    for name, found in methods.items():
        if name == "sparse":
            table.add_section()
        cells = [_number(found[key]) for key in ("noise_scale", "threshold", "detection_threshold")]
        table.add_row(NAMES[name], *cells, *([_number(found.get("count_stddev"))] if budget.count_share else []))
    why = reasons({NAMES[name]: found for name, found in methods.items()})
    rising = ["These are the thresholds of the first step; they rise slowly, with the logarithm of time."]
    sentences = [*why, *(rising if items == UNENDING else []), _best(budget, methods), _sharpest(budget, answer)]
    show(title, table, sentences)


def _number(value: float | None) -> str:
    """Write a number for people: three digits where it is small."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _best(budget: MonitorBudget, methods: dict[str, Any]) -> str:
    """Say which method finds most."""
    found = {name: m["detection_threshold"] for name, m in methods.items() if m["detection_threshold"] is not None}
    if not found:
        return "No method can meet this budget."
    best, *others = sorted(found, key=lambda name: found[name])
    text = (
        f"Best: {NAMES[best]}, which finds every item of {found[best]:,} people, with probability "
        f"{1 - budget.beta:g} in all {budget.tests:,} tests at once"
    )
    for other in others:
        if (best in CALIBRATIONS) != (other in CALIBRATIONS):
            return f"{text}; {NAMES[other]} needs {found[other]:,}."
    return f"{text}."


def _sharpest(budget: MonitorBudget, answer: dict[str, Any]) -> str:
    """Say what the limit on each person costs."""
    text = f"Sharpest limit: a person is counted in at most {budget.max_hits:,} hits, and then no more"
    more = _attempt(
        lambda: {
            "detection_threshold": CALIBRATIONS["clock"]
            .calibrate(replace(budget, max_hits=4 * budget.max_hits))
            .detection_threshold(budget.tests, budget.beta)
        }
    )
    if answer["clock"]["detection_threshold"] is None or more["detection_threshold"] is None:
        return f"{text}."
    return (
        f"{text}; --max_hits {4 * budget.max_hits} would raise what clock finds from "
        f"{answer['clock']['detection_threshold']:,} to {more['detection_threshold']:,} people."
    )


COMMAND = Command(
    description="Says, before any data is touched, what is found with a privacy budget: by each calibration of the "
    "threshold monitor, and by the standard methods.",
    add_arguments=add_arguments,
    run=run,
)
