"""The commands of a question: to answer it, to plan, to simulate and to audit. No Beam until one of them runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.console import clock
from privstream.pipelines.model.question import Question, QuestionInfo, loaded
from privstream.pipelines.options import (
    Execution,
    OptionOf,
    add_execution,
    add_layers,
    add_options,
    given_to,
    options_of,
)

TRIALS = 4000
BEAM = "Any option of Apache Beam may be added, such as --runner."
USUAL: Mapping[str, Any] = {"suggest": {"privacy": {"epsilon": 0.05, "delta": 1e-6}}}
"""What holds where nothing is given, by the words of commands."""


def run_command(kind: type[Question]) -> Command:
    """Return the command that answers a question."""
    info, options = kind.info, tuple(options_of(kind))

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = info.epilog
        add_options(parser, options, kind)
        add_execution(parser)

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        given = given_to(kind, arguments, options, usual=USUAL.get(info.word))
        execution = Execution.of(arguments, others)
        with given.errors():
            monitor = given.monitor()
            with clock("checking options and input"):
                prepared = loaded("run.run.Run").prepare(monitor, execution)
        with prepared, given.errors(running=True):
            prepared.execute()

    return Command(
        description=f"{info.description} The guarantee protects {info.protected}. {BEAM}",
        add_arguments=add_arguments,
        run=run,
        takes_beam_options=True,
    )


PLANNED = ("window", "start", "end", "renew_every", "delta", "people", "time_zone")
"""Options of all questions that say something about accuracy."""


def planned_options(kind: type[Question]) -> tuple[OptionOf, ...]:
    """Return the options of a plan that are those of a run, too."""
    info = kind.info
    apart = {*info.unplanned, *info.assumed, *(stand.name for stand in info.stands.values())}
    return tuple(
        option
        for option in options_of(kind, ("windows", "privacy", "data"))
        if option.name not in apart and (option.place[0] == "questions" or option.name in PLANNED)
    )


def plan_command(kind: type[Question]) -> Command:
    """Return the command that says how accurate answers will be."""
    info, options = kind.info, planned_options(kind)

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("plan")
        group.add_argument("--epsilon", metavar="X[,X..]", help="epsilon, or several values to compare")
        text = "instead of --epsilon: find the smallest epsilon with this error"
        group.add_argument("--error", type=float, metavar="X", help=text)
        if "window" in {option.name for option in options}:
            group.add_argument(
                "--windows", type=int, metavar="N", help="number of windows, in place of --start and --end"
            )
            text = "plan for unbounded input, whose rows are seen window by window; without it for files"
            group.add_argument("--unbounded", action="store_true", help=text)
        for stand in info.stands.values():
            group.add_argument(f"--{stand.name}", metavar="N", required=stand.needed, help=stand.text)
        group.add_argument("--json", action="store_true", help="print one JSON object")
        add_layers(group)
        add_options(parser, options, kind)

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        loaded("commands.one_plan.Plan").of(kind, arguments, options).run(arguments)

    return Command(
        description="Predicts, before any data is read, how accurate the answers will be with one epsilon "
        "or several, or finds the epsilon that gives a wanted error. It costs no privacy budget.",
        add_arguments=add_arguments,
        run=run,
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
    text = "processes that share the trials; what they find is the same (default: one for each processor, at most 8)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--key", metavar="PATH", help="file with a noise key (default: a new random key for each run)")


def audit_command(spec: QuestionInfo) -> Command:
    """Return the command that attacks the transform of a question."""
    summary = "" if spec.audit is None else spec.audit.summary

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        loaded("audit.audit_command.AuditCommand")(spec).run(arguments)

    return Command(
        description=f"Audits what answers the question {spec.word}: {summary}. The worst pair of neighbouring "
        "inputs runs through the whole pipeline, and all that noise is drawn for is compared with what is claimed. "
        "Tests in secret are attacked by thousands of trials, which must also catch a control with a larger budget. An "
        "audit can refute a guarantee and cannot prove it. It reads no data of yours, and costs no privacy budget.",
        add_arguments=add_audit_options,
        run=run,
    )
