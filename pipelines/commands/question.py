"""The commands that answer a question or all of a monitor, and that attack one. No Beam until one of them runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.console import clock
from privstream.pipelines.model.question import Question, QuestionInfo, loaded
from privstream.pipelines.options import Execution, OptionOf, add_execution, add_options, given_to, options_of
from privstream.pipelines.yaml_file import read_document

TRIALS = 4000
USUAL: Mapping[str, Any] = {"suggest": {"privacy": {"epsilon": 0.05, "delta": 1e-6}}}
"""What holds where nothing is given, by the words of commands."""

OF_MONITOR: tuple[OptionOf, ...] = tuple(
    option for option in options_of(None, ("output", "account")) if option.name != "output_format"
)


def run_command(kind: type[Question] | None = None) -> Command:
    """Return the command that answers a question; without one that of a monitor, which is in a file."""
    options = OF_MONITOR if kind is None else tuple(options_of(kind))

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        if kind is None:
            text = "the monitor: data, windows, privacy, questions, output"
            parser.add_argument("file", metavar="FILE.yaml", help=text)
        else:
            parser.epilog = kind.info.epilog
        add_options(parser, options, kind)
        add_execution(parser)

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        document = None if kind is not None else read_document(arguments.file)
        usual = None if kind is None else USUAL.get(kind.info.word)
        given = given_to(kind, arguments, options, document=document, usual=usual)
        execution = Execution.of(arguments, others)
        with given.errors():
            monitor = given.monitor()
            with clock("checking options and input"):
                prepared = loaded("run.run.Run").prepare(monitor, execution)
        with prepared, given.errors(running=True):
            prepared.execute()

    return Command(
        description="Answers all questions of a file by one pipeline: events are read and checked once, and questions "
        "branch after that. All of them together cost the total of the file, which is one entry of the ledger. Any "
        "option of Apache Beam may be added, such as --runner."
        if kind is None
        else f"{kind.info.description} The guarantee protects {kind.info.protected}. Any option of Apache Beam may be "
        "added, such as --runner.",
        add_arguments=add_arguments,
        run=run,
        takes_beam_options=True,
    )


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of audits."""
    parser.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        metavar="N",
        help=f"trials of each attack (default: {TRIALS:,})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--key", metavar="PATH", help="file with a noise key (default: a new random key for each run)")


def audit_command(spec: QuestionInfo) -> Command:
    """Return the command that attacks the transform of a question."""
    summary = "" if spec.audit is None else spec.audit.summary

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        loaded("audit.audit_command.audit")(spec, arguments)

    return Command(
        description=f"Audits what answers the question {spec.word}: {summary}. The worst pair of neighbouring "
        "inputs runs through the whole pipeline, and all that noise is drawn for is compared with what is claimed. "
        "Tests in secret are attacked by thousands of trials, which must also catch a control with a larger budget. An "
        "audit can refute a guarantee and cannot prove it. It reads no data of yours, and costs no privacy budget.",
        add_arguments=add_audit_options,
        run=run,
    )
