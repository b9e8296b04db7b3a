"""A run as a pipeline: one reading, one or several questions about it, and their rows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.pipelines.command import UsageError
from privstream.pipelines.locations import ARRIVAL, END
from privstream.pipelines.model.data import Data
from privstream.pipelines.run.asked import READ, RELEASED, Asked, stage_label
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.shares import LETTERS, Receive, Share, events_for, perform, share_out
from privstream.pipelines.run.views_stream import Followed, FollowView
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import on_cluster
from privstream.pipelines.runners.launch import LOCAL_RUNNER
from privstream.pipelines.runners.processes import crew, workers_for
from privstream.pipelines.sinks.writers import WriteDeadLetterFiles, WriteRows, WriteWindowFiles, alone_in
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.frame_files import save_rows
from privstream.pipelines.sources.readers import ReadEvents, WatchEvents
from privstream.pipelines.stores import join
from privstream.pipelines.terminal import say
from privstream.transforms import DeadLetter
from privstream.transforms.counters import Counters

KAFKA_SECONDS = 0.5
ROWS_OF_QUERY = "rows of the query.csv"


def reader(data: Data, fields: AnyFields, options: PipelineOptions, folder: str) -> Any:
    """Return what reads the input."""
    if data.query is not None:
        if on_cluster(options):
            raise ValueError(
                "query must not be given with a cluster, whose workers could not read its rows: let the database write "
                "them as Parquet where workers can, and give that as input"
            )
        path = os.path.join(folder, ROWS_OF_QUERY)
        save_rows(data.input, data.query, fields, path)
        return ReadEvents(path, fields)
    if not data.unbounded:
        return ReadEvents(data.input, fields, data.input_format)
    seconds = data.watch or KAFKA_SECONDS
    if not data.from_kafka:
        watermark = data.watermark or ARRIVAL
        return WatchEvents(data.input, fields, data.input_format, seconds=seconds, watermark=watermark)
    try:
        module = importlib.import_module("privstream.pipelines.kafka")
    except ImportError:
        raise ValueError("input of Kafka needs an extra: pip install 'privstream[kafka]'") from None
    return module.ReadKafka(data.input, fields, data.kafka_settings(), seconds=seconds)


@dataclass(frozen=True)
class EventPipeline:
    """Questions as one pipeline.

    Attributes:
        workers: processes that share the work, where all questions let them.
        views: what is made of published rows while the run goes on.
        sent: where rows of these are sent, by name.
    """

    places: Places
    read: Any
    questions: tuple[Asked, ...]
    workers: int
    views: Sequence[Followed]
    sent: Mapping[str, Any]

    def run(
        self,
        options: PipelineOptions,
        charge: Callable[[], None],
        paths: Sequence[str] | None = None,
        accepted: Callable[[], None] | None = None,
    ) -> Counters:
        """Run it; return what was counted.

        Args:
            charge: writes the run into the ledger: the last thing before it may start.
            paths: where rows go; None discards them (a dry run).
            accepted: called as soon as the runner has taken the pipeline, of streaming input: rows are then to
                come.
        """
        unbounded = self.places.unbounded
        processes = self.workers if all(len(each.transform.segments) > 1 for each in self.questions) else 1
        if unbounded:
            _prepare(options)
        unseen = [beam.FlatMap(lambda row: ()) for _ in self.questions]
        writes = unseen if paths is None else list(map(self._writer, self.questions, paths))
        folders = [*(paths or ()), *(self.places.rows(view.name) for view in self.views)] if unbounded else []

        def build(pipeline: beam.Pipeline) -> None:
            try:
                if processes > 1:
                    self._build_all(launch.new_pipeline(options), unseen)  # what is wrong with it is raised
                    self._build_last(pipeline, writes)
                else:
                    self._build_all(pipeline, writes)
            except (ValueError, TypeError) as error:  # of options: it passes through a runner as what it is
                raise UsageError(str(error)) from error
            charge()

        with ExitStack() as stack:
            first = None
            if folders:
                stack.enter_context(alone_in(folders))
            if processes > 1:
                transforms = {each.name: each.transform for each in self.questions}
                letters = bool(self.places.monitor.output.dead_letter)
                share = Share(transforms=transforms, fields=self.read.fields, processes=processes, letters=letters)
                first = partial(share_out, stack.enter_context(crew(processes, perform)), share, self.read, options)
            return launch.run(options, build, [join(folder, END) for folder in folders], accepted, first)
        raise AssertionError  # a `with` may swallow errors as far as mypy knows

    def _writer(self, asked: Asked, path: str) -> Any:
        order = asked.question.info.order
        if self.places.unbounded:
            return self._windows(path, asked.row_type, order, asked.destinations)
        if asked.transform.view is None:
            return WriteRows(path, asked.row_type, order=order, option="output")
        return WriteRows(f"{path}{RELEASED}", asked.released_type, option="output", tables=asked.counts is not None)

    def _windows(self, path: str, row_type: type, order: Sequence[str], to: Any) -> WriteWindowFiles:
        return WriteWindowFiles(path, row_type, self.places.format, order, destinations=to, option="output")

    def _build_all(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Read once, run the transforms, and write."""
        read = pipeline | READ >> self.read
        dead, written = [read.dead_letters], {}
        for asked, write in zip(self.questions, writes, strict=True):
            try:
                letters, written[asked.name] = self._branch(read.events, asked, write)
            except (ValueError, TypeError) as error:
                raise type(error)(asked.label(str(error))) from None
            dead.append(letters)
        for view in self.views:
            table = view.table
            write = self._windows(self.places.rows(view.name), table.written_type, table.order, self.sent[view.name])
            rows = {name: written[name] for name in view.tables} | stage_label(view.name, "Follow") >> FollowView(view)
            rows | stage_label(view.name, "Write") >> write
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
        if path := self.places.monitor.output.dead_letter:
            file = self.places.unbounded and WriteDeadLetterFiles(path)
            letters = file or WriteRows(path, DeadLetter, option="dead_letter", owner_only=True)
            dead | "AllDeadLetters" >> beam.Flatten() | "WriteDeadLetters" >> letters

    def _branch(self, events: Any, asked: Asked, write: Any) -> tuple[Any, Any]:
        """Answer one question about the events that were read; return its dead letters, and what was written."""
        events = events_for(asked.name, events, self.read.fields)
        named = asked.label(type(asked.transform).__name__) >> asked.transform.of_checked().with_dead_letters()
        published = events | named
        return published.dead_letters, published.rows | asked.label("Write") >> write


def _prepare(options: PipelineOptions) -> None:
    standard = options.view_as(StandardOptions)
    standard.streaming = True
    if standard.runner.rpartition(".")[2] == LOCAL_RUNNER:
        say(
            f"{LOCAL_RUNNER} writes windows only when the input has ended, and without --end at most the first 512 "
            "of a question that publishes every window: use PrismRunner or FlinkRunner"
        )


def workers_of(given: int | None, options: PipelineOptions, read: Any) -> int:
    """Return how many processes may share the work of a run.

    Only those of commands may: in a program of somebody's own they could begin by running all of it again.
    """
    if options.view_as(StandardOptions).runner == LOCAL_RUNNER and isinstance(read, ReadEvents):
        return workers_for(given, sum(file.size for file in read.files))
    if given is not None and workers_for(given, 0) > 1:
        raise ValueError(f"workers must be 1 but for files on {LOCAL_RUNNER}, got {given}")
    return 1
