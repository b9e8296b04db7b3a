"""A run as a pipeline: one reading, one or several questions about it, and their rows."""

from __future__ import annotations

import marshal
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.command import UsageError
from privstream.pipelines.locations import ARRIVAL, END
from privstream.pipelines.model.monitor import Data
from privstream.pipelines.model.question import loaded
from privstream.pipelines.run.asked import READ, RELEASED, Asked, stage_label
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.views_stream import FollowView
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import on_cluster
from privstream.pipelines.runners.launch import LOCAL_RUNNER
from privstream.pipelines.runners.processes import Tell, crew
from privstream.pipelines.sinks.writers import (
    WriteDeadLetterFiles,
    WriteReleased,
    WriteRows,
    WriteWindowFiles,
    alone_in,
)
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.files import EventFile, is_for
from privstream.pipelines.sources.frame_files import save_rows
from privstream.pipelines.sources.readers import ReadEvents, ReadSome, WatchEvents
from privstream.pipelines.stores import join
from privstream.pipelines.terminal import say
from privstream.transforms import DeadLetter
from privstream.transforms.batches import StepKey
from privstream.transforms.counters import Counters
from privstream.transforms.spill import fetch, keep
from privstream.transforms.stages import PrivateTransform, Shared
from typing_extensions import override

KAFKA_SECONDS = 0.5


def reader(data: Data, fields: Readings, options: PipelineOptions, folder: str) -> Any:
    """Return what reads the input."""
    if data.query is not None:
        if on_cluster(options):
            raise ValueError(
                "query must not be given with a cluster, whose workers could not read its rows: let the database write "
                "them as Parquet where workers can, and give that as input"
            )
        path = os.path.join(folder, "rows of the query.csv")
        save_rows(data.input, data.query, fields, path)
        return ReadEvents(path, fields)
    if not data.unbounded:
        return ReadEvents(data.input, fields, data.input_format)
    seconds = data.watch or KAFKA_SECONDS
    if not data.from_kafka:
        watermark = data.watermark or ARRIVAL
        return WatchEvents(data.input, fields, data.input_format, seconds=seconds, watermark=watermark)
    try:
        read = loaded("kafka.ReadKafka")
    except ImportError:
        raise ValueError("input of Kafka needs an extra: pip install 'privstream[kafka]'") from None
    return read(data.input, fields, data.kafka_settings(), seconds=seconds)


LETTERS = "\0dead letters"
"""What is sent under this name, which no question has, are dead letters."""

AT_ONCE = 1024
"""Elements that are written together."""

Place = tuple[str, int]
"""What elements are, a question or dead letters, and whose: the number of a process, or 0 for the command."""


def events_for(name: str, events: PCollection[Any], fields: Readings) -> PCollection[Any]:
    """Return what a question takes of the events that were read."""
    if len(fields.questions) == 1:
        return events
    taken: PCollection[Any] = events | stage_label(name, "Take") >> beam.Filter(is_for, name)
    return taken


SENT: defaultdict[Place, list[bytes]] = defaultdict(list)
RECEIVED: dict[str, Sequence[bytes]] = {}
"""What this process has sent, and what it has been sent: references to elements with their times."""


def begin(received: Mapping[str, Sequence[bytes]]) -> None:
    """Forget everything, and receive."""
    SENT.clear()
    RECEIVED.clear()
    RECEIVED.update(received)


class SendAway(beam.DoFn):
    """Sends elements of a name, plain values, to the process that has the shard in their key, or to the command."""

    def __init__(self, name: str, processes: int | None) -> None:
        self.name, self.processes = name, processes

    @override
    def start_bundle(self) -> None:
        self.waiting: defaultdict[int, list[Any]] = defaultdict(list)

    @override
    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        to = 0 if self.processes is None else StepKey.from_bytes(element[0]).shard % self.processes
        self.waiting[to].append((timestamp.micros, tuple(element)))
        if len(self.waiting[to]) >= AT_ONCE:
            self._write(to)

    @override
    def finish_bundle(self) -> None:
        for to in list(self.waiting):
            self._write(to)

    def _write(self, to: int) -> None:
        SENT[self.name, to].append(keep(marshal.dumps(self.waiting.pop(to))))


def receive(pipeline: Any, stage: str, name: str, kind: Any) -> Any:
    """Return the elements of a type that were sent to this process under a name, at their times."""
    opened = beam.FlatMap(_received, kind if kind is DeadLetter else None).with_output_types(kind)
    return pipeline | f"{stage} what" >> beam.Create([name]) | stage >> opened


def _received(name: str, kind: Any) -> Iterator[Any]:
    for reference in RECEIVED.get(name, ()):
        for micros, element in marshal.loads(fetch(reference)):
            yield TimestampedValue(element if kind is None else kind(*element), Timestamp(micros=micros))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process does at a time: a segment of each question, for some parts of files or shards of people."""

    transforms: Mapping[str, PrivateTransform]
    fields: Readings
    processes: int
    letters: bool  # whether dead letters are wanted
    number: int = 0  # of this process, from 0 on
    segment: int = 0  # its number; questions that share no such segment are skipped
    parts: Sequence[EventFile] = ()  # what is read in the first segment
    received: Mapping[str, Sequence[bytes]] = field(default_factory=dict)  # from the segment before, by question
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, pipeline: beam.Pipeline) -> None:
        """Read, or receive, and send on what a segment of each question gives."""
        dead, read = [], None
        if self.segment == 0:
            read = pipeline | READ >> ReadSome(self.parts, self.fields)
            dead.append(read.dead_letters)
        for name, transform in self.transforms.items():
            following = transform.shared_segments - self.segment - 1
            if following < 0:
                continue
            if read is not None:
                given = events_for(name, read.events, self.fields)
            else:
                before = transform.segments[self.segment - 1]
                given = receive(pipeline, stage_label(name, "Receive"), name, before.gives)
            segment = transform.segment(self.segment, Shared(self.number, self.processes))
            found = given | stage_label(name, type(transform).__name__) >> segment
            send = SendAway(name, self.processes if following else None)
            found.rows | stage_label(name, "SendAway") >> beam.ParDo(send)
            dead.append(found.dead_letters)
        if self.letters:
            together = dead | "DeadLettersOfShare" >> beam.Flatten()
            together | "SendLettersAway" >> beam.ParDo(SendAway(LETTERS, None))


def perform(packed: bytes) -> tuple[Counters, dict[Place, list[bytes]]]:
    """Do a `Task`, as a process of a crew; return what was counted, and references to what was sent."""
    task: Task = pickler.loads(packed)
    begin(task.received)
    counted = launch.run_quietly(PipelineOptions.from_dictionary(dict(task.options)), task.build)
    return counted, dict(SENT)


def share_out(tell: Tell, task: Task, read: ReadEvents, options: PipelineOptions) -> Counters:
    """Let the processes of a crew do all segments of each question that they share; return what they have counted.

    This process receives what these have given. `task` is what all do alike.
    """
    parts = sorted(read.parts(), key=lambda part: part.rows or part.size, reverse=True)  # each takes one in turn
    counted: list[Counters] = []
    here: defaultdict[str, list[bytes]] = defaultdict(list)
    there: list[defaultdict[str, list[bytes]]] = [defaultdict(list) for _ in range(task.processes)]
    for segment in range(max(each.shared_segments for each in task.transforms.values())):
        task = replace(task, segment=segment, options=options.get_all_options(drop_default=True))
        tasks = [
            pickler.dumps(
                replace(task, number=number, parts=parts[number :: task.processes], received=dict(there[number]))
            )
            for number in range(task.processes)
        ]
        there = [defaultdict(list) for _ in range(task.processes)]
        for found, sent in tell(tasks):
            counted.append(found)
            for (name, to), references in sent.items():
                whole = name == LETTERS or task.transforms[name].shared_segments == segment + 1
                (here if whole else there[to])[name] += references
    begin(here)
    return launch.added(counted)


@dataclass(frozen=True)
class EventPipeline:
    """Questions as one pipeline."""

    options: PipelineOptions
    places: Places
    read: Any
    questions: Mapping[str, Asked]  # by the names of their rows
    workers: int  # processes that share the work, where all questions let them
    views: Sequence[FollowView]  # what is made of published rows while the run goes on
    sent: Mapping[str, Any]  # where rows of these are sent, by name

    def run(self, charge: Callable[[], None], paths: Sequence[str] | None = None) -> Counters:
        """Run it; return what was counted.

        Args:
            charge: writes the run into the ledger: the last thing before it may start.
            paths: where rows go; None discards them (a dry run).
        """
        options, unbounded = self.options, self.places.unbounded
        processes = self.workers if all(len(each.transform.segments) > 1 for each in self.questions.values()) else 1
        standard = options.view_as(StandardOptions)
        standard.streaming = unbounded or standard.streaming
        if unbounded and standard.runner == LOCAL_RUNNER:
            say(
                f"{LOCAL_RUNNER} writes windows only when the input has ended, and without --end at most the first 512 "
                "of a question that publishes every window: use PrismRunner or FlinkRunner"
            )
        unseen = [beam.FlatMap(lambda row: ()) for _ in self.questions]
        writes = unseen if paths is None else list(map(self._writer, self.questions, paths))
        folders = [*(paths or ()), *(self.places.rows(view.name) for view in self.views)] if unbounded else []
        transforms = {each.name: each.transform for each in self.questions.values()}
        letters = bool(self.places.monitor.output.dead_letter)
        task = Task(transforms=transforms, fields=self.read.fields, processes=processes, letters=letters)

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
            if tell is not None:
                counted.append(share_out(tell, task, self.read, options))

        counted: list[Counters] = []
        with alone_in(folders), crew(processes, perform) if processes > 1 else nullcontext() as tell:
            counted.append(launch.run(options, build, [join(folder, END) for folder in folders]))
        return launch.added(counted)

    def _writer(self, name: str, path: str) -> Any:
        asked = self.questions[name]
        order = asked.question.info.order
        if self.places.unbounded:
            return self._windows(path, asked.row_type, order, self.sent[name])
        if asked.transform.view is None:
            return WriteRows(path, asked.row_type, order=order)
        write = WriteRows if asked.counts is None else WriteReleased
        return write(f"{path}{RELEASED}", asked.released_type)

    def _windows(self, path: str, row_type: type, order: Sequence[str], to: Any) -> WriteWindowFiles:
        return WriteWindowFiles(path, row_type, self.places.format, order, destinations=to)

    def _build_all(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        read = pipeline | READ >> self.read
        dead, written = [read.dead_letters], {}
        for asked, write in zip(self.questions.values(), writes, strict=True):
            events = events_for(asked.name, read.events, self.read.fields)
            named = asked.label(type(asked.transform).__name__) >> asked.transform.with_dead_letters()
            try:
                published = events | named
            except (ValueError, TypeError) as error:
                raise type(error)(asked.label(str(error))) from None
            written[asked.name] = published.rows | asked.label("Write") >> write
            dead.append(published.dead_letters)
        for view in self.views:
            table = view.table
            write = self._windows(self.places.rows(view.name), table.written_type, table.order, self.sent[view.name])
            rows = {name: written[name] for name in view.tables} | stage_label(view.name, "Follow") >> view
            rows | stage_label(view.name, "Write") >> write
        self._write_letters(dead)

    def _build_last(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Receive what processes have made of the input, run the segments that they do not share, and write."""
        dead = [receive(pipeline, "Receive letters", LETTERS, DeadLetter)]
        for asked, write in zip(self.questions.values(), writes, strict=True):
            transform = asked.transform
            shared = transform.shared_segments
            rows = receive(pipeline, asked.label("Receive"), asked.name, transform.segments[shared - 1].gives)
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
