"""The commands that answer a question or all of a monitor, and that attack one. No Beam until one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.question import Question, QuestionInfo, loaded
from privstream.pipelines.options import Execution, OptionOf, options_of

TRIALS = 4000

FILE = {"file": {"metavar": "FILE.yaml", "help": "the monitor: data, windows, privacy, questions, output"}}
OF_MONITOR: tuple[OptionOf, ...] = tuple(
    option for option in options_of(None, ("output", "account")) if option.name != "output_format"
)


def run_command(kind: type[Question] | None = None) -> Command:
    """Return the command that answers a question; without one that of a monitor, which is in a file."""

    def run(given: Given, beam: Sequence[str], workers: int | None, dry_run: bool, file: str = "") -> None:
        try:
            monitor = given.monitor()
        except UsageError:
            if beam:  # an option that nobody knows is more likely the reason
                loaded("runners.launch.parse_beam_options")(list(beam))
            raise
        with given.errors(), clock("checking options and input"):
            prepared = loaded("run.run.Run").prepare(monitor, Execution(beam=beam, workers=workers, dry_run=dry_run))
        with prepared, given.errors(running=True):
            prepared.execute()

    return Command(
        description="Answers all questions of a file by one pipeline: events are read and checked once, and questions "
        "branch after that. All of them together cost the total of the file, which is one entry of the ledger. Any "
        "option of Apache Beam may be added, such as --runner."
        if kind is None
        else f"{kind.info.description} The guarantee protects {kind.info.protected}. Any option of Apache Beam may be "
        "added, such as --runner.",
        epilog=None if kind is None else kind.info.epilog,
        options=FILE if kind is None else {},
        keys=OF_MONITOR if kind is None else tuple(options_of(kind)),
        kind=kind,
        usual=None if kind is None else kind.info.usual,
        run=run,
        takes_beam_options=True,
    )


AUDIT_OPTIONS: dict[str, dict[str, Any]] = {
    "--trials": {"type": int, "default": TRIALS, "metavar": "N", "help": f"of each attack (default: {TRIALS:,})"},
    "--json": {"action": "store_true", "help": "print one JSON object"},
    "--key": {"metavar": "PATH", "help": "file with a noise key (default: a new random key for each run)"},
}


def audit_command(spec: QuestionInfo) -> Command:
    """Return the command that attacks the transform of a question."""
    summary = "" if spec.audit is None else spec.audit.summary
    return Command(
        description=f"Audits what answers the question {spec.word}: {summary}. The worst pair of neighbouring "
        "inputs runs through the whole pipeline, and all that noise is drawn for is compared with what is claimed. "
        "Tests in secret are attacked by thousands of trials, which must also catch a control with a larger budget. An "
        "audit can refute a guarantee and cannot prove it. It reads no data of yours, and costs no privacy budget.",
        options=AUDIT_OPTIONS,
        run=lambda **given: loaded("audit.audit_command.audit")(spec, **given),
    )
