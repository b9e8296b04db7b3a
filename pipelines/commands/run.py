"""`privstream run FILE.yaml`: all questions of a monitor, by one pipeline that reads once, under one guarantee."""

from __future__ import annotations

import argparse

from privstream.pipelines.command import Command
from privstream.pipelines.console import clock
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import Execution, OptionOf, add_execution, add_options, given_to, options_of
from privstream.pipelines.yaml_file import read_document

OPTIONS: tuple[OptionOf, ...] = tuple(
    option for option in options_of(None, ("output", "account")) if option.name != "output_format"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="FILE.yaml", help="the monitor: data, windows, privacy, questions, output")
    add_options(parser, OPTIONS)
    add_execution(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Check everything that can be checked, run the pipeline, and write rows and what is promised of all."""
    given = given_to(None, arguments, OPTIONS, document=read_document(arguments.file))
    execution = Execution.of(arguments, others)
    with given.errors():
        monitor = given.monitor()
        with clock("sharing out the budget, checking input"):
            prepared = loaded("run.run.Run").prepare(monitor, execution)
    with prepared, given.errors(running=True):
        prepared.execute()


COMMAND = Command(
    description="Answers all questions of a file by one pipeline: events are read and checked once, and questions "
    "branch after that. All of them together cost the total of the file, which is one entry of the ledger. Any option "
    "of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=run,
    takes_beam_options=True,
)
