"""The command `privstream suggest`: from events to the limits that suit a question. Imports no Beam until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.spec import QuestionSpec, loaded

QUANTILES, TERMINAL = "quantiles", "-"

SPEC = QuestionSpec(
    word="suggest",
    summary="choose limits of people from data, privately",
    description="Chooses limits that nobody can guess, such as --max_contributions, from the data itself: publishes "
    "for a small part of the budget how much people contribute, and prints the limits with which the run that follows "
    "is predicted to show most, what it will show, and what share of everything each limit keeps.",
    protected="a person over all that is read",
    known_as="histograms of contributions per user, for contribution bounds",
    transform="limits.suggest_limits.SuggestLimits",
    row="LimitShare",
    order=("measure", "limit"),
    title="rows about limits",
    published="limits_published",
    value="number, such as a price or a latency; without it none is read, but for quantiles (default: value)",
    whole_values=True,
    values_with="values",
    hidden=("values",),
    runs="suggest.local_run.LocalRun",
    prepare="suggest.command.prepare",
    settle="suggest.command.settle",
    below="suggest.answer.below",
    table=False,
    files=(),
    epilog="""\
The lines that begin with -- are options of the command that --question names, to be used for a run over the same
windows with --for_epsilon and --delta. This command spends --epsilon of the same people's budget, and so does each
repetition with other options or other data.
""",
)


REFUSED = ("copy", "kafka_setting", "watch", "watermark", "output_format")
"""Options of all commands that have no use here."""


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether values are read."""
    return {"values": given.get("value_field") is not None}


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether values are read, as an option would say it.

    Raises:
        ValueError: the input has no end, rows would go where they cannot be read again, or a unit has no use.
    """
    if "://" in str(given.get("output")) or given.get("copy") is not None:
        raise ValueError("--output must be a file of this machine, or -, and copy must not be given")
    if given.get("watch") is not None or str(given.get("input")).startswith("kafka://"):
        raise ValueError("watch must not be given, and --input must have an end: limits are chosen from all of it")
    if given.get("value_unit") is not None and given["question"] == QUANTILES:
        raise ValueError("value_unit must not be given with --question quantiles, which does not round values")
    return {"values": True if given.get("value_field") is not None or given["question"] == QUANTILES else None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: those of every question, of which the output need not be given, and a picture."""
    run_command(SPEC).add_arguments(parser)
    for action in parser._actions:
        if action.dest == "output":
            action.required, action.default = False, TERMINAL
            action.help = "rows: .avro .parquet .jsonl .csv, or - for tables on the terminal (default: -)"
        elif action.dest == "input":
            action.help = "events: a path or glob, .avro .parquet .jsonl .csv"
        elif action.dest in REFUSED:
            action.help = argparse.SUPPRESS
    for group in parser._action_groups:
        if group.description is not None:  # of input without an end
            group.description = argparse.SUPPRESS
    parser.add_argument("--horizon", dest="windows", type=int, metavar="N", help="deprecated name of --windows")
    parser.add_argument(
        "--picture", metavar="PATH", help="draw what each limit keeps, from the rows of --output: .png or .svg"
    )


def run(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
    """Publish the rows, say what they suggest, and draw them."""
    loaded("suggest.answer.answer")(arguments, beam_arguments)


COMMAND = Command(
    description=f"{SPEC.description} The guarantee protects {SPEC.protected}.",
    add_arguments=add_arguments,
    run=run,
    takes_beam_options=True,
)
