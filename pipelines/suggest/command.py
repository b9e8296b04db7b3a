"""The command `privstream suggest`: from events to the limits that suit a question. Imports no Beam until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.spec import QuestionSpec, loaded

TERMINAL = "-"

SPEC = QuestionSpec(
    word="suggest",
    summary="choose the limit of a person from data, privately",
    description="Chooses --max_contributions from the data itself: publishes for a small part of the budget how many "
    "contributions people have, items in windows, and prints what each limit keeps, its noise, and which items are "
    "found with it.",
    protected="a person over all that is read",
    known_as="histograms of contributions per user, for contribution bounds",
    transform="limits.suggest_limits.SuggestLimits",
    row="LimitShare",
    order=("above",),
    title="rows about limits",
    published="limits_published",
    runs="suggest.local_run.LocalRun",
    settle="suggest.command.settle",
    below="suggest.answer.below",
    table=False,
    files=(),
    epilog="""\
The line that begins with -- is an option of counts, to be used for a run over the same windows with --for_epsilon and
--delta. This command spends --epsilon of the same people's budget, and so does each repetition with other options or
other data.
""",
)


REFUSED = ("copy", "kafka_setting", "watch", "watermark", "output_format")
"""Options of all commands that have no use here."""


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse options that have no use here.

    Raises:
        ValueError: the input has no end, or rows would go where they cannot be read again.
    """
    if "://" in str(given.get("output")) or given.get("copy") is not None:
        raise ValueError("--output must be a file of this machine, or -, and copy must not be given")
    if given.get("watch") is not None or str(given.get("input")).startswith("kafka://"):
        raise ValueError("watch must not be given, and --input must have an end: limits are chosen from all of it")
    return {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: those of every question, of which the output need not be given."""
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


def run(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
    """Publish the rows, and say what they suggest."""
    loaded("suggest.answer.answer")(arguments, beam_arguments)


COMMAND = Command(
    description=f"{SPEC.description} The guarantee protects {SPEC.protected}.",
    add_arguments=add_arguments,
    run=run,
    takes_beam_options=True,
)
