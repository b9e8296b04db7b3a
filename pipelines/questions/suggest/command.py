"""The command `privstream suggest`: runs as every question does, and says which options to use. Imports no Beam."""

from __future__ import annotations

import argparse

from privstream.pipelines.command import Command
from privstream.pipelines.questions.commands import loaded, run_command
from privstream.pipelines.questions.suggest.question import SPEC, TERMINAL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: those of every question, of which the output need not be given, and a picture."""
    run_command(SPEC).add_arguments(parser)
    for action in parser._actions:
        if action.dest == "output":
            action.required, action.default = False, TERMINAL
            action.help = "rows: .avro .parquet .jsonl .csv, or - for tables on the terminal (default: -)"
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
