"""A question that this process answers without a pipeline, such as `suggest`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.pipelines.command import CommandError, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.options import Execution
from privstream.pipelines.run.asked import Asked
from privstream.pipelines.runners.launch import cause
from privstream.pipelines.sinks.row_files import COMPLETE, plain_table, sort_table, write_row_file
from privstream.pipelines.sources.normalise import read_files
from privstream.pipelines.sources.readers import ReadEvents
from privstream.pipelines.terminal import say
from privstream.transforms.counters import Counters, counted, counter
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.spill import folder_on_disk, spilled


def check_local(monitor: Monitor, execution: Execution) -> None:
    """Refuse what a question without a pipeline cannot have."""
    if any(argument.startswith("--runner") for argument in execution.beam):
        raise UsageError("--runner must not be given: this command uses none")
    if monitor.data.unbounded:
        raise ValueError("watch must not be given, and input must have an end: limits are chosen from all of it")
    if monitor.output.send or "://" in monitor.output.path:
        raise ValueError("output must be a file of this machine, or -")


@dataclass(frozen=True)
class LocalPipeline:
    """A question whose transform reads and publishes, in the place of an `EventPipeline`."""

    read: ReadEvents
    asked: Asked
    letters: str | None

    def run(
        self, options: Any, charge: Callable[[], None], paths: Sequence[str] | None = None, accepted: Any = None
    ) -> Counters:
        """Write the run into the ledger, and then its rows, if there are paths; return what was counted."""
        charge()
        began = time.monotonic()
        try:
            found = self._answer(paths)
        except CommandError:
            raise
        except Exception as error:  # it might quote a record
            raise RunError(cause(error, reading=True)) from error
        say(f"read in {time.monotonic() - began:.1f} s")
        return found

    def _answer(self, paths: Sequence[str] | None) -> Counters:
        """Read, and write rows, if they are to be written, and dead letters; return what was counted."""
        asked = self.asked
        with (
            clock("reading"),
            spilled(),
            counted() as found,
            tempfile.TemporaryFile("w+", dir=folder_on_disk()) as letters,  # of their owner alone, and without a name
        ):

            def keep(letter: DeadLetter) -> None:
                if self.letters:
                    letters.write(f"{json.dumps(letter)}\n")

            rows = asked.transform.publish(read_files(self.read.files, self.read.fields), keep)
            for path in paths or ():
                _write(path, asked.row_type, sort_table(plain_table(asked.row_type, rows), asked.question.info.order))
            if self.letters:
                letters.seek(0)
                _write(self.letters, DeadLetter, (DeadLetter(*json.loads(line)) for line in letters), private=True)
        return {("", name): number for name, number in found.items()}


def _write(path: str, row_type: type, rows: Any, *, private: bool = False) -> None:
    write_row_file(path, row_type, rows, private=private)
    counter(COMPLETE).inc()
