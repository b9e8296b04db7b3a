"""A run as a pipeline: one reading, one or several questions about it, and their rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.pipelines.accounts.account import Charge
from privstream.pipelines.command import UsageError
from privstream.pipelines.questions.asked import READ, Asked, Asking, InputRead, files_option
from privstream.pipelines.questions.input_output import check_workers, end_paths, prepare, reader, window_writer
from privstream.pipelines.questions.shares import (
    LETTERS,
    Receive,
    Share,
    events_for,
    perform,
    share_out,
)
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER
from privstream.pipelines.runners.processes import Crew, workers_for
from privstream.pipelines.sinks.terminal_table import TERMINAL
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, WriteWindowFiles, alone_in
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.normalise import OF_READING
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import DeadLetter
from privstream.transforms.counters import Counters


@dataclass(frozen=True, kw_only=True)
class PublishedView:
    """What is made of the rows of questions while a run goes on, and where it goes.

    Attributes:
        name: of the view.
        questions: names of those whose rows it is made of.
        follow: makes its rows of the paths of their files, by these names.
        write: writes them.
    """

    name: str
    questions: tuple[str, ...]
    follow: Any
    write: WriteWindowFiles


@dataclass(frozen=True, kw_only=True)
class Run(Asking):
    """Runs questions as one pipeline.

    Attributes:
        views: what is made of published rows while the run goes on.
    """

    views: tuple[PublishedView, ...] = ()

    @staticmethod
    def options(arguments: argparse.Namespace, beam_arguments: list[str]) -> PipelineOptions:
        """Return Beam's options.

        Raises:
            UsageError: see `launch.parse_beam_options`.
        """
        options = launch.parse_beam_options(beam_arguments)
        name_job(options, _job_name(arguments))
        return options

    @classmethod
    def of(cls, spec: QuestionSpec, arguments: argparse.Namespace, options: PipelineOptions, folder: str) -> InputRead:
        """Return what reads the input, and how many processes may share the work; see `reader`."""
        check_workers(arguments, options)
        read = reader(spec, arguments, folder=folder)
        return InputRead(read, workers_of(arguments, options, read))

    @staticmethod
    def write_to(asked: Asked, path: str, *, unbounded: bool) -> Any:
        """Return what writes the rows of a question.

        Raises:
            ValueError, TypeError, OSError: naming the option.
        """
        if unbounded:
            return window_writer(asked.spec, asked.arguments, asked.row_type, asked.destination)
        path, row_type = asked.raw(path)
        return WriteRows(
            path,
            row_type,
            order=() if asked.transform.explained is not None else asked.spec.order,
            option=files_option(asked.arguments),
            finish=asked.transform.finish,
            unfinished=asked.transform.unfinished,
            finish_table=asked.transform.finish_table,
        )

    @staticmethod
    def letters_to(path: str | None, *, unbounded: bool) -> WriteRows | WriteDeadLetterFiles | None:
        """Return what writes dead letters, a file or a folder of files, if they are wanted."""
        if not path:
            return None
        if unbounded:
            return WriteDeadLetterFiles(path)
        return WriteRows(path, DeadLetter, option="--dead_letter", private=True)

    def publish(
        self, options: PipelineOptions, writes: Sequence[Any], write_guarantees: Callable[[Charge], None]
    ) -> tuple[Counters, Charge]:
        """Run the pipeline.

        Args:
            options: of Beam.
            writes: what writes the rows of each question.
            write_guarantees: writes what is promised; it is called as soon as the runner has taken the pipeline if the
                input has no end, since rows are then to come, and not at all otherwise.

        Returns:
            The counters, and what was written into the ledger.
        """
        if self.unbounded:
            prepare(options)
        recorded: list[Charge] = []

        def build(pipeline: beam.Pipeline) -> None:
            """Build all of it; the last thing before it may start is that the ledger takes it."""
            try:
                self._build(pipeline, options, writes)
            except (ValueError, TypeError) as error:
                raise UsageError(str(error)) from error
            recorded.append(self.charged())

        def accepted() -> None:
            write_guarantees(recorded[0])

        ends = end_paths(each.arguments for each in self.questions)
        ends += [view.write.end for view in self.views]
        with alone_in(map(os.path.dirname, ends)) if ends else nullcontext():
            counters = self._run(options, build, ends, accepted if self.unbounded else None)
        return counters, recorded[0] if recorded else Charge(None, None)

    def try_out(self, options: PipelineOptions) -> tuple[Counters, Charge]:
        """Run the pipeline for its counters alone, and return them with what it would cost; rows are let go unseen.

        What the ledger or the limit would refuse is refused.
        """
        foreseen: list[Charge] = []

        def build(pipeline: beam.Pipeline) -> None:
            foreseen.append(self.charged())
            try:
                self._build(pipeline, options, [beam.FlatMap(_let_go) for _ in self.questions])
            except (ValueError, TypeError) as error:
                raise UsageError(str(error)) from error

        return self._run(options, build), foreseen[0]

    @property
    def processes(self) -> int:
        """How many processes share the work."""
        return self.workers if all(len(each.transform.segments) > 1 for each in self.questions) else 1

    def _run(
        self,
        options: PipelineOptions,
        build: Callable[[beam.Pipeline], None],
        ends: Sequence[str] = (),
        accepted: Callable[[], None] | None = None,
    ) -> Counters:
        """Run a pipeline; what processes share of it they do first."""
        if self.processes == 1:
            return launch.run(options, build, ends, accepted)
        share = Share(
            transforms={each.name: each.transform for each in self.questions},
            fields=self.fields,
            processes=self.processes,
            letters=bool(self.letters),
        )
        with Crew(self.processes, perform).working() as crew:
            first = partial(share_out, crew, share, self.read, options)
            return launch.run(options, build, ends, accepted, first)

    def _build(self, pipeline: beam.Pipeline, options: PipelineOptions, writes: Sequence[Any]) -> None:
        """Read once, run the transforms, and write; or do of that what processes do not share."""
        if self.processes > 1:
            launch.check(options, partial(self._build_all, writes=[beam.FlatMap(_let_go) for _ in writes]))
            self._build_last(pipeline, writes)
        else:
            self._build_all(pipeline, writes)

    def _build_all(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Read once, run the transforms, and write."""
        read = pipeline | READ >> self.read
        dead, written = [read.dead_letters], {}
        for asked, write in zip(self.questions, writes, strict=True):
            try:
                letters, written[asked.name] = self._branch(pipeline, read.events, asked, write)
            except (ValueError, TypeError) as error:
                raise type(error)(asked.label(str(error))) from None
            dead += letters
        for view in self.views:
            rows = {name: written[name] for name in view.questions} | f"{view.name}{OF_READING}Follow" >> view.follow
            rows | f"{view.name}{OF_READING}Write" >> view.write
        self._write_letters(dead)

    def _build_last(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Receive what processes have made of the input, run the segments that they do not share, and write."""
        dead = [pipeline | "Receive letters" >> Receive(LETTERS, DeadLetter)]
        for asked, write in zip(self.questions, writes, strict=True):
            transform = asked.transform
            shared = transform.shared_segments
            rows = pipeline | asked.label("Receive") >> Receive(asked.name, transform.segments[shared - 1].gives)
            if shared < len(transform.segments):
                published = rows | asked.label(type(transform).__name__) >> transform.segment(shared)
                dead.append(published.dead_letters)
                rows = published.rows
            rows | asked.label("Write") >> write
        self._write_letters(dead)

    def _write_letters(self, dead: Sequence[Any]) -> None:
        """Write dead letters, if they are wanted."""
        if self.letters:
            dead | "AllDeadLetters" >> beam.Flatten() | "WriteDeadLetters" >> self.letters

    def _branch(self, pipeline: beam.Pipeline, events: Any, asked: Asked, write: Any) -> tuple[list[Any], Any]:
        """Answer one question about the events that were read; return its dead letters, and what was written."""
        inputs = {name: pipeline | asked.label(f"Read {name}") >> each for name, each in asked.more.items()}
        events = events_for(asked.name, events, self.fields)
        named = asked.label(type(asked.transform).__name__) >> asked.transform.with_dead_letters()
        rows = {"events": events} | {name: each.events for name, each in inputs.items()}
        published = (rows if inputs else events) | named
        written = published.rows | asked.label("Write") >> write
        return [*(each.dead_letters for each in inputs.values()), published.dead_letters], written


def workers_of(arguments: argparse.Namespace, options: PipelineOptions, read: Any) -> int:
    """Return how many processes may share the work of a run.

    Only those of commands may: in a program of somebody's own they could begin by running all of it again.

    Raises:
        ValueError: several were asked for, and the runner or the input cannot have them.
    """
    given: int | None = getattr(arguments, "workers", 1)
    if options.view_as(StandardOptions).runner == LOCAL_RUNNER and isinstance(read, ReadEvents):
        return workers_for(given, sum(file.size for file in read.files))
    if given is not None and workers_for(given, 0) > 1:
        raise ValueError(f"workers must be 1 but for files on {LOCAL_RUNNER}, got {given}")
    return 1


def _let_go(row: Any) -> Iterator[Any]:
    """Keep nothing."""
    return iter(())


def _job_name(arguments: argparse.Namespace) -> str:
    """Return what a cluster calls the job: the question and the last part of the output's path."""
    to = "" if arguments.output == TERMINAL else f" to {os.path.basename(os.path.normpath(arguments.output))}"
    return f"{arguments.command}{to}"
