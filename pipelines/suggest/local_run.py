"""How limits are suggested: this process reads all files and publishes the rows; there is no pipeline, and no Beam."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from privstream.pipelines.accounts.account import Charge
from privstream.pipelines.command import CommandError, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.questions.arguments import input_fields
from privstream.pipelines.questions.asked import Asked, Asking, InputRead, bounded_input, files_option
from privstream.pipelines.questions.spec import QuestionSpec, loaded
from privstream.pipelines.sinks.row_files import COMPLETE, check_destination, output_format, sort_rows, write_row_file
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.found_files import EventFile, files_with
from privstream.pipelines.sources.normalise import read_files
from privstream.transforms.counters import Counters, counted, counter
from privstream.transforms.events.event_fields import DeadLetter
from privstream.transforms.spill import folder_on_disk, spilled


class Files(NamedTuple):
    """Files of events, and what is read of them."""

    files: Sequence[EventFile]
    fields: AnyFields


class LocalRun(Asking):
    """Runs a question whose transform reads and publishes by itself."""

    @staticmethod
    def options(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
        """Let files in stores be reached as options of Beam say; others have no use.

        Raises:
            UsageError: an option that nobody knows, or a runner.
        """
        if any(argument.startswith("--runner") for argument in beam_arguments):
            raise UsageError("runner must not be given: this command reads the input by itself")
        if beam_arguments:
            loaded("runners.launch.parse_beam_options")(beam_arguments)

    @staticmethod
    def of(spec: QuestionSpec, arguments: argparse.Namespace, options: None, folder: str) -> InputRead:
        """Return what is read."""
        path, fields, form = bounded_input(arguments, input_fields(spec, arguments), folder)
        return InputRead(Files(files_with(fields, path, form), fields), 1)

    @staticmethod
    def write_to(asked: Asked, path: str, *, unbounded: bool) -> str:
        """Check that rows can be written there.

        Raises:
            ValueError: naming the option.
        """
        return _checked(path, files_option(asked.arguments))

    @staticmethod
    def letters_to(path: str | None, *, unbounded: bool) -> str | None:
        """Check that dead letters can be written there, if they are wanted.

        Raises:
            ValueError: naming the option.
        """
        return _checked(path, "--dead_letter") if path else None

    def publish(
        self, options: None, writes: Sequence[str], write_guarantees: Callable[[Charge], None]
    ) -> tuple[Counters, Charge]:
        """Write the run into the ledger, and then its rows; return what was counted, and what the ledger says."""
        charge = self.charged()
        return self._answer(writes[0]), charge

    def try_out(self, options: None) -> tuple[Counters, Charge]:
        """Do all of it but write rows; what the ledger or the limit would refuse is refused."""
        charge = self.charged()
        return self._answer(None), charge

    def _answer(self, path: str | None) -> Counters:
        """Read, write rows, if they are to be written, and dead letters; return what was counted."""
        (asked,) = self.questions
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
        return {("", name): number for name, number in found.items()}


def _checked(path: str, option: str) -> str:
    """Return a path where a file of rows can be written."""
    output_format(path, option)
    check_destination(path, option)
    return path


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
