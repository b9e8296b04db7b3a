"""What every command that watches events does: read, run one transform, write rows, and say what is promised."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import apache_beam as beam
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.commands.endless import (
    INPUT,
    end_path,
    guarantee_path,
    is_endless,
    prepare,
    reader,
    writers,
)
from privstream.pipelines.commands.options import UNBOUNDED
from privstream.pipelines.commands.run_report import RunReport
from privstream.pipelines.runners import launch
from privstream.pipelines.sinks.dead_letter_files import WriteDeadLetterFiles
from privstream.pipelines.sinks.whole_files import check_destination, write_json
from privstream.pipelines.sinks.window_files import WriteWindowFiles, check_folder
from privstream.pipelines.sinks.writers import TERMINAL, WriteRows, file_or_terminal
from privstream.pipelines.terminal import say
from privstream.transforms import DeadLetter
from privstream.transforms.events.private_transform import PrivateTransform

PLACES = (
    "command",
    "about",
    "traceback",
    "input",
    "output",
    "dead_letter",
    "noise_key_file",
    "noise_key_variable",
    "kafka_setting",
)
"""Options that say where things are and how to get there, not what is promised."""

NO_COUNTERS = (
    "the runner has given no counters, as of a job with checkpoints, which is cancelled at its end: how much could not "
    "be used is not known here"
)


@dataclass(frozen=True, kw_only=True)
class EventPipeline:
    """A command from events to private rows: what is its own.

    Attributes:
        row_type: the NamedTuple that is published.
        order: fields to sort by, `-` before a name for falling numbers.
        title: of the table on the terminal; what the rows are.
        transform: makes the transform from the options, and from whether the events carry a stream.
        accuracy: what is found with it: numbers for machines, and one `sentence` for people.
        published: the counter of what was published.
        unusable: counters of events that count in no answer, and how to say it, beside those of all commands.
        unanswered: counters of queries that are not answered, likewise.
        beyond: counters of what else was left out, likewise.
        public_files: options that name further files to read.
        more_inputs: makes, from the options, further readers by name. The transform then gets a dictionary of
            collections with these and `events`; each reader gives rows (`events`) and `dead_letters`.
        watched: the option whose files may come without an end.
    """

    row_type: type
    order: tuple[str, ...]
    title: str
    transform: Callable[[argparse.Namespace, bool], PrivateTransform]
    accuracy: Callable[[Any], dict[str, Any]]
    published: str
    unusable: Mapping[str, str] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)
    beyond: Mapping[str, str] = field(default_factory=dict)
    public_files: tuple[str, ...] = ("domain",)
    more_inputs: Callable[[argparse.Namespace], Mapping[str, Any]] | None = None
    watched: str = INPUT

    def run(self, arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
        """Check everything that can be checked, run the pipeline, and write what it promises beside its output."""
        options = launch.parse_beam_options(beam_arguments)
        try:
            endless = is_endless(arguments)
            read = reader(arguments, self.watched)
            more = {} if self.more_inputs is None else dict(self.more_inputs(arguments))
            transform = self.transform(arguments, bool(read.fields.stream))
            promised = self.promise(transform, arguments)
            guarantee_file = guarantee_path(arguments)
            if endless:
                check_folder(arguments.output)
            if arguments.output != TERMINAL:
                check_destination(guarantee_file)
            self._check_apart(arguments, [file.path for file in read.files])
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from error
        with file_or_terminal(arguments.output, self.row_type, title=self.title) as path:
            try:
                write: WriteRows | WriteWindowFiles
                letters: WriteRows | WriteDeadLetterFiles | None
                if endless:
                    write, letters = writers(arguments, self.row_type, self.order, self.watched)
                    prepare(options)
                else:
                    write = WriteRows(path, self.row_type, order=self.order)
                    dead = arguments.dead_letter
                    letters = WriteRows(dead, DeadLetter, option="--dead_letter", private=True) if dead else None
            except (ValueError, TypeError, OSError) as error:
                raise UsageError(str(error)) from error

            def build(pipeline: beam.Pipeline) -> None:
                inputs = {"events": pipeline | "Read" >> read}
                inputs |= {name: pipeline | f"Read {name}" >> reader for name, reader in more.items()}
                read_rows = {name: each.events for name, each in inputs.items()}
                named = type(transform).__name__ >> transform.with_dead_letters()
                published = (read_rows if more else read_rows["events"]) | named
                published.rows | "Write" >> write
                if letters:
                    dead = [each.dead_letters for each in inputs.values()] + [published.dead_letters]
                    dead | "AllDeadLetters" >> beam.Flatten() | "WriteDeadLetters" >> letters

            if arguments.noise_key_file is None and arguments.noise_key_variable is None:
                say("noise key: a new random one, for this run only; with --noise_key_file it could be repeated")
            accepted = partial(write_json, guarantee_file, promised) if endless else None  # rows are still to come
            counters = launch.run(options, build, end_path(arguments), accepted)
        if arguments.output != TERMINAL and not endless:
            write_json(guarantee_file, promised)
        self._report(arguments, promised, counters)

    def promise(self, transform: PrivateTransform, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return guarantee, accuracy and the public parameters that they hold for, for machines and people.

        What was not given, and has no default, is left out; so is the horizon of a guarantee that has none.
        """
        given = {name: value for name, value in vars(arguments).items() if name not in PLACES and value is not None}
        if getattr(arguments, "horizon", "") is None:
            given["horizon"] = UNBOUNDED
        guarantee = {name: value for name, value in transform.guarantee.to_dict().items() if value is not None}
        return {
            "made_by": {"command": f"privstream {arguments.command}", "version": version("privstream")},
            "parameters": given,
            "guarantee": guarantee,
            "accuracy": self.accuracy(transform),
        }

    def _check_apart(self, arguments: argparse.Namespace, inputs: list[str]) -> None:
        """Refuse to write over a file that this run reads or writes.

        Raises:
            ValueError: naming the option and the path.
        """
        taken = {os.path.realpath(path): "--input" for path in inputs}
        for option in ("noise_key_file", *self.public_files):
            if getattr(arguments, option) is not None:
                taken[os.path.realpath(getattr(arguments, option))] = f"--{option}"
        written = {"--dead_letter": arguments.dead_letter}
        if arguments.output != TERMINAL:
            written = {"--output": arguments.output, "the guarantee": guarantee_path(arguments), **written}
        for option, path in written.items():
            if not path:
                continue
            other = taken.setdefault(os.path.realpath(path), option)
            if other != option:
                raise ValueError(f"{option} must not be written over {other}, got {path}")

    def _report(self, arguments: argparse.Namespace, promised: dict[str, Any], counters: dict[str, int]) -> None:
        """Tell what was read, what was published, and what that promises.

        Raises:
            NothingUsableError: nothing that was read could be used, so that accuracy is beside the point.
        """
        report = RunReport(counters, unusable=self.unusable, unanswered=self.unanswered, beyond=self.beyond)
        published = counters.get(self.published, 0)
        nothing = report.nothing_usable(published) if report.known else None
        lines = [] if nothing else report.warning()
        if report.known:
            lines.append(f"{report.usable:,} of {report.records:,} events usable, {published:,} {self.title} published")
            lines += report.left_out(arguments.dead_letter)
        else:
            lines.append(NO_COUNTERS)
        lines.append(promised["guarantee"]["paragraph"])
        if nothing is None:
            lines.append(promised["accuracy"]["sentence"])
        if arguments.output != TERMINAL:
            lines.append(f"rows: {arguments.output}, guarantee: {guarantee_path(arguments)}")
        say("\n".join(lines))
        if nothing is not None:
            raise NothingUsableError(nothing)
