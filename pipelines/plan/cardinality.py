"""`privstream plan cardinality`: how far numbers of people in a set will be off, before any data is touched."""

from __future__ import annotations

import argparse
import json
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.cardinality.set_cardinality import UNITS, SetCardinality
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.options import UNBOUNDED, horizon_steps
from privstream.pipelines.plan.page import add_json, attempt, bound, reasons, show
from rich.table import Table

NUMBERS = """\
All errors hold with probability 1 - beta, for all windows of a stream together. "K unknown" and "T unknown" say what
the number costs if it need not be known when the run starts. Baselines: Algorithms 6 and 7 of Henzinger, Sricharan and
Steiner (2023), and the answer that is always 0.
"""

DEFAULT_WINDOWS = 1000
Options = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about the unit, > 0")
    budget.add_argument("--delta", type=float, default=0.0, help="probability of leaking more (default: 0, never)")
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument("--streams_per_person", type=int, default=1, help="streams of one person (default: 1)")
    budget.add_argument(
        "--streams",
        type=int,
        metavar="N",
        help="number of streams, which counts with replace_one (default: 1, if a person is in one, else any)",
    )
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--windows", type=horizon_steps, required=True, metavar="T", help=f"number of windows, or {UNBOUNDED}"
    )
    run.add_argument(
        "--max_updates",
        type=int,
        required=True,
        metavar="K",
        help="how often people enter or leave in the whole run, all together",
    )
    run.add_argument("--visits_per_person", type=int, default=1, metavar="N", help="for mode counter (default: 1)")
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
    """Return the error of every variant, or why there is none."""
    if arguments.windows is not None:
        checks.integer("windows", arguments.windows, minimum=1)
    windows, updates = arguments.windows or DEFAULT_WINDOWS, arguments.max_updates
    shared: Options = {"epsilon": arguments.epsilon, "delta": arguments.delta, "neighbouring": arguments.neighbouring}
    shared |= {"beta": arguments.beta}
    user = shared | {"streams_per_person": arguments.streams_per_person, "streams": arguments.streams}
    SetCardinality(**user, max_updates=updates, mode="sparse")  # checks what all have in common
    length = {"horizon": arguments.windows}
    known = {"max_updates": updates}
    visits = {"visits_per_person": checks.integer("visits_per_person", arguments.visits_per_person, minimum=1)}

    def error(**options: Any) -> int:
        return SetCardinality(**options).error(windows, updates)

    users = {
        "sparse": lambda: error(**user, **length, **known, mode="sparse"),
        "sparse, K unknown": lambda: error(**user, **length, mode="sparse"),
        "sparse, T unknown": lambda: error(**user, **known, mode="sparse"),
        "sparse, K and T unknown": lambda: error(**user, mode="sparse"),
        "direct": lambda: error(**user, **length, mode="direct"),
        f"counter, at most {_visits(arguments.visits_per_person)}": lambda: error(
            **user, **length, **visits, mode="counter"
        ),
        "paper": lambda: error(**user, **length, **known, mode="paper"),
        "paper, K unknown": lambda: error(**user, **length, mode="paper"),
        "paper, T unknown": lambda: error(**user, **known, mode="paper"),
        "paper, K and T unknown": lambda: error(**user, mode="paper"),
        "always 0": lambda: updates,
    }
    events = {
        "counter": lambda: error(**shared, **length, unit="event"),
        "counter, T unknown": lambda: error(**shared, unit="event"),
    }
    answers = {
        unit: {name: attempt(one) for name, one in them.items()}
        for unit, them in zip(UNITS, (users, events), strict=True)
    }
    return {"windows": windows, "max_updates": updates, **answers}


def _visits(number: int) -> str:
    return f"{number:,} visit{'s' * (number > 1)}"


def _print(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    windows = "unbounded" if arguments.windows is None else f"{arguments.windows:,}"
    budget = f"epsilon {arguments.epsilon:g}, delta {arguments.delta:g}"
    title = f"{budget}; {windows} windows, {arguments.max_updates:,} updates"
    table = Table()
    table.add_column("unit")
    table.add_column("mode")
    table.add_column("all estimates are within", justify="right")
    for unit in UNITS:
        for i, (name, found) in enumerate(answer[unit].items()):
            table.add_row("" if i else unit, name, bound(found))
        table.add_section()
    why = [reason for unit in UNITS for reason in reasons(answer[unit])]
    show(title, table, [*why, _sentence(arguments, answer)])


def _sentence(arguments: argparse.Namespace, answer: dict[str, Any]) -> str:
    """Say what is best for a person's whole life."""
    able = {name: found["error_bound"] for name, found in answer["user"].items() if found["error_bound"] is not None}
    best = min(able, key=lambda name: able[name])
    span = "" if arguments.windows else f" in the first {answer['windows']:,} windows"
    text = f"Best for unit user{span}: {best}, within {able[best]:,}."
    if best == "always 0":
        return text + " No private answer says more than 0 with this budget: raise epsilon, or count more people."
    if best.startswith("counter"):
        return text + " It lets each person enter so often only: what they do later does not count."
    return text + " However often one person comes and goes, all of it is protected."


COMMAND = Command(
    description="Says, before any data is touched, how far numbers of people in a set will be off: by every mode, with "
    "and without knowledge of the run.",
    add_arguments=add_arguments,
    run=run,
)
