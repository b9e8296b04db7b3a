"""The commands that answer a question or all of a monitor. No Beam until one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.question import Question, loaded
from privstream.pipelines.options import OptionOf, options_of

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
        with ExitStack() as stack:
            with given.errors(), clock("checking options and input"):
                prepare = loaded("run.run.Run").prepare
                prepared = stack.enter_context(prepare(monitor, beam=beam, workers=workers, dry_run=dry_run))
            with given.errors(running=True):
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
        run=run,
        takes_beam_options=True,
    )
