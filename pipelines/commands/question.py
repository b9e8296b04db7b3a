"""The commands that answer a question or all of a monitor, and the schema of such files. No Beam until one runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.question import Question, loaded
from privstream.pipelines.options import options_of
from privstream.pipelines.terminal import json_text, spinner

FILE = {"file": {"metavar": "FILE.yaml", "help": "the monitor: data, windows, privacy, questions, output"}}
OF_FILE = (
    "Answers all questions of a file in one pipeline, which reads and checks events once. Together they cost the "
    "budget of the file, as one entry of the ledger."
)
DRY_RUN = (
    "read all input and say how much of it can be used; nothing is published, recorded or spent. The numbers are "
    "exact: guard them like the input"
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
            with given.errors(), spinner("checking options and input"):
                prepare = loaded("run.run.Run").prepare
                prepared = stack.enter_context(prepare(monitor, beam=beam, workers=workers, dry_run=dry_run))
            with given.errors(running=True):
                prepared.execute()

    text = OF_FILE if kind is None else f"{kind.info.description} The guarantee protects {kind.info.protected}."
    return Command(
        description=f"{text} Any option of Apache Beam may be added, such as --runner.",
        epilog=None if kind is None else kind.info.epilog,
        options={**(FILE if kind is None else {}), "--dry-run": {"action": "store_true", "help": DRY_RUN}},
        keys=tuple(options_of(kind) if kind else options_of(None, ("output", "account"))),
        kind=kind,
        run=run,
        takes_beam_options=True,
    )


DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON schema of monitors: a file that a monitor is read from is valid, and no other keys are."""
    return {"$schema": DRAFT, **Monitor.model_json_schema(by_alias=True), "title": "a monitor of privstream"}


SCHEMA = Command(
    description="Prints the JSON schema of monitors. An editor with it completes the keys of a monitor, says what each "
    "is, and marks mistakes while you write. A first line of the file names it: "
    "`# yaml-language-server: $schema=monitor.schema.json`.",
    run=lambda: print(json_text(schema(), 2)),
)
