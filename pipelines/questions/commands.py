"""From the description of a question to its commands. Imports no Beam until one of them runs."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.questions.options import add_files, add_key, add_option, add_options, options_of
from privstream.pipelines.questions.spec import Option, Part, QuestionSpec, loaded

TRIALS = 4000
BEAM = "Any option of Apache Beam may be added, such as --runner."
UNPLANNED = (
    "epsilon",
    "method",
    "window",
    "period",
    "start",
    "end",
    "windows",
    "allowed_lateness",
    "shards",
)
"""Options of runs that say nothing about accuracy, or that plans have in another form."""


def with_beam(path: str) -> Any:
    """Return what needs Beam, which takes seconds to load."""
    with loaded("console.clock")("loading Apache Beam"):
        return loaded(path)


def run_command(spec: QuestionSpec) -> Command:
    """Return the command that answers a question."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = spec.epilog
        add_files(
            parser,
            user=spec.user,
            item=spec.item,
            value=spec.value,
            whole=spec.whole_values,
            watched=spec.watched,
        )
        add_options(parser, options_of(spec))
        add_key(parser)

    def run(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
        with_beam("questions.run_command.RunCommand")(spec).run(arguments, beam_arguments)

    return Command(
        description=f"{spec.description} The guarantee protects {spec.protected}. {BEAM}",
        add_arguments=add_arguments,
        run=run,
        takes_beam_options=True,
    )


UNBOUNDED = "plan for unbounded input, whose rows are seen window by window; without it for files, seen at the end"


def plan_command(spec: QuestionSpec) -> Command:
    """Return the command that says how accurate answers will be, by every method."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = spec.plan_epilog
        budget = parser.add_argument_group("budget")
        add_option(budget, Option("epsilon", "epsilons", "epsilon, or several values to compare"))
        means = f": {spec.error_means}" if spec.error_means else ""
        text = f"instead of --epsilon: find the smallest epsilon with this error{means}"
        add_option(budget, Option("error", "float", text))
        run = parser.add_argument_group("the run")
        if spec.has_windows:
            add_option(run, Option("windows", "int", "number of windows; without it, or --end, the run has no end"))
            add_option(run, Option("start", "Moment", "start of the first window"))
            add_option(run, Option("end", "Moment", "end of the last window, in place of --windows"))
            run.add_argument("--unbounded", action="store_true", help=UNBOUNDED)
            if all(option.name != "window" for option in spec.planned):
                add_option(run, Option("window", "Length", "length of a window, needed with --end"))
        for option in (*spec.sizes.values(), *spec.planned):
            add_option(run, option)
        apart = {*UNPLANNED, *spec.unplanned, *spec.assumed, *spec.sizes, *(option.name for option in spec.planned)}
        add_options(parser, [option for option in options_of(spec) if option.name not in apart])
        parser.add_argument_group("output").add_argument("--json", action="store_true", help="print one JSON object")

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        loaded("questions.plan_command.PlanCommand")(spec).run(arguments)

    return Command(
        description="Predicts, before any data is read, how accurate the answers of each method will be with one "
        "epsilon or several, or finds the epsilon that gives a wanted error. It costs no privacy budget.",
        add_arguments=add_arguments,
        run=run,
    )


def simulate_command(simulation: Part) -> Command:
    """Return the command that writes events to try a question with."""
    command: Command = loaded(simulation.path)
    return command


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
    parser.add_argument(
        "--noise_key_file", metavar="PATH", help="file with a noise key (default: a new random key for each run)"
    )


def audit_command(spec: QuestionSpec, audit: Part) -> Command:
    """Return the command that attacks the transform of a question."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        text = "what the attacked transforms promise, but for attacks on a delta (default: mostly 2, as the table says)"
        parser.add_argument("--epsilon", type=float, metavar="E", help=text)
        add_audit_options(parser)

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        loaded("audit.audit_command.AuditCommand")(spec, epsilon=arguments.epsilon).run(arguments)

    return Command(
        description=f"Attacks what answers the question {spec.word}: {audit.summary}. Thousands of trials run through "
        "the transform itself, with inputs that differ in one unit of privacy, and give lower bounds on epsilon and "
        "delta. Each attack must also catch a control, which has a larger budget than is claimed. An audit can "
        "refute a guarantee and cannot prove it. It reads no data of yours, and costs no privacy budget.",
        add_arguments=add_arguments,
        run=run,
    )
