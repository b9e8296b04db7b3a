"""How limits are suggested: this process reads all files and publishes the rows; there is no pipeline, and no Beam."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from privstream.pipelines.command import CommandError, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import Execution
from privstream.pipelines.run.asked import Asked
from privstream.pipelines.run.run import shared_fields
from privstream.pipelines.sinks.row_files import COMPLETE, check_destination, output_format, sort_rows, write_row_file
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import EventFile, files_with
from privstream.pipelines.sources.frame_files import save_rows
from privstream.pipelines.sources.normalise import read_files
from privstream.pipelines.terminal import say
from privstream.transforms.counters import Counters, counted, counter
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.spill import folder_on_disk, spilled


@dataclass(frozen=True)
class Files:
    """Files of events, and what is read of them."""

    files: Sequence[EventFile]
    fields: AnyFields


def options_of(monitor: Monitor, execution: Execution) -> None:
    """Let files in stores be reached as options of Beam say; others have no use.

    Raises:
        UsageError: an option that nobody knows, or a runner; or the input has no end.
    """
    if any(argument.startswith("--runner") for argument in execution.beam):
        raise UsageError("--runner must not be given: this command uses none")
    if execution.beam:
        loaded("runners.launch.parse_beam_options")(list(execution.beam))
    if monitor.data.unbounded:
        raise ValueError("watch must not be given, and input must have an end: limits are chosen from all of it")
    if monitor.output.send or "://" in monitor.output.path:
        raise ValueError("output must be a file of this machine, or -")


def reader_of(
    monitor: Monitor, fields: Mapping[str, FieldMapping], options: None, execution: Execution, folder: str
) -> tuple[Files, int]:
    """Return what is read, by one process."""
    read, data = shared_fields(fields), monitor.data
    path, form = data.input, data.input_format
    if data.query is not None:
        path, form = f"{folder}/rows of the query.parquet", None
        save_rows(data.input, data.query, read, path)
    return Files(files_with(read, path, form), read), 1


def pipeline_of(
    monitor: Monitor, read: Files, asked: tuple[Asked, ...], workers: int, streamed: Any, sent: Any, places: Any
) -> LocalPipeline:
    """Return what reads, answers and writes."""
    letters = monitor.output.dead_letter
    if letters:
        output_format(letters, "dead_letter")
        check_destination(letters, "dead_letter")
    return LocalPipeline(read, asked[0], letters)


@dataclass(frozen=True)
class LocalPipeline:
    """A question whose transform reads and publishes by itself.

    Attributes:
        read: what is read.
        asked: the question.
        letters: where dead letters go.
    """

    read: Files
    asked: Asked
    letters: str | None

    def run(
        self, options: None, paths: Sequence[str], charge: Callable[[], None], accepted: Any, format: str
    ) -> Counters:
        """Write the run into the ledger, and then its rows; return what was counted."""
        charge()
        return self._answer(paths[0])

    def try_out(self, options: None, charge: Callable[[], None]) -> Counters:
        """Do all of it but write rows; what the ledger or the limit would refuse is refused."""
        charge()
        return self._answer(None)

    def _answer(self, path: str | None) -> Counters:
        """Read, write rows, if they are to be written, and dead letters; return what was counted."""
        asked, began = self.asked, time.monotonic()
        with (
            clock("reading"),
            _errors_without_records(),
            spilled(),
            counted() as found,
            tempfile.TemporaryFile("w+", dir=folder_on_disk()) as letters,  # of their owner alone, and without a name
        ):

            def keep(letter: DeadLetter) -> None:
                if self.letters:
                    letters.write(f"{json.dumps(letter)}\n")

            read = read_files(self.read.files, self.read.fields)
            rows = asked.transform.publish(read, keep)
            if path is not None:
                _write(path, asked.row_type, sort_rows(rows, asked.spec.order))
            if self.letters:
                letters.seek(0)
                _write(self.letters, DeadLetter, (DeadLetter(*json.loads(line)) for line in letters), private=True)
        say(f"read in {time.monotonic() - began:.1f} s")
        return {("", name): number for name, number in found.items()}


def _write(path: str, row_type: type, rows: Any, *, private: bool = False) -> None:
    """Write a file, and count it."""
    write_row_file(path, row_type, rows, private=private)
    counter(COMPLETE).inc()


@contextmanager
def _errors_without_records() -> Iterator[None]:
    """Let errors say what they say where a pipeline fails: nothing that could quote a record."""
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        raise RunError(loaded("runners.launch.cause")(error, reading=True)) from error
