"""What processes share of a run: segments of transforms, each for its part of files, people or items."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.run.asked import READ, stage_label
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.processes import Tell
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.sources.normalise import is_for
from privstream.pipelines.sources.readers import ReadEvents, ReadSome
from privstream.transforms import DeadLetter
from privstream.transforms.batches import StepKey
from privstream.transforms.counters import Counters
from privstream.transforms.spill import fetch, keep
from privstream.transforms.stages import PrivateTransform, Shared
from typing_extensions import override

LETTERS = "\0dead letters"
"""What is sent under this name, which no question has, are dead letters."""

AT_ONCE = 1024
"""So many elements are written together."""

Place = tuple[str, int]
"""What elements are, a question or dead letters, and whose: the number of a process, or 0 for the command."""


def events_for(name: str, events: PCollection[Any], fields: FieldMapping | SharedFields) -> PCollection[Any]:
    """Return what a question takes of the events that were read."""
    if not isinstance(fields, SharedFields):
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


class Receive(beam.PTransform[Any, Any]):
    """Gives the elements of a type that were sent to this process under a name, at their times."""

    def __init__(self, name: str, kind: Any) -> None:
        super().__init__()
        self.name, self.kind = name, kind

    @override
    def expand(self, pbegin: Any) -> Any:
        made = beam.FlatMap(_received, self.kind if self.kind is DeadLetter else None)
        return pbegin | "Names" >> beam.Create([self.name]) | "Open" >> made.with_output_types(self.kind)


def _received(name: str, kind: Any) -> Iterator[Any]:
    for reference in RECEIVED.get(name, ()):
        for micros, element in marshal.loads(fetch(reference)):
            yield TimestampedValue(element if kind is None else kind(*element), Timestamp(micros=micros))


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process does at a time: a segment of each question, for some parts of files or shards of people.

    Attributes:
        letters: whether dead letters are wanted.
        number: of this process, from 0 on.
        segment: its number; questions that share no such segment are left out.
        parts: what is read in the first segment.
        received: what comes from the segment before, by question.
    """

    transforms: Mapping[str, PrivateTransform]
    fields: FieldMapping | SharedFields
    processes: int
    letters: bool
    number: int = 0
    segment: int = 0
    parts: Sequence[EventFile] = ()
    received: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
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
                given = pipeline | stage_label(name, "Receive") >> Receive(name, before.gives)
            segment = transform.of_checked().segment(self.segment, Shared(self.number, self.processes))
            found = given | stage_label(name, type(transform).__name__) >> segment
            send = SendAway(name, self.processes if following else None)
            found.rows | stage_label(name, "SendAway") >> beam.ParDo(send)
            dead.append(found.dead_letters)
        if self.letters:
            together = dead | "DeadLettersOfShare" >> beam.Flatten()
            together | "SendLettersAway" >> beam.ParDo(SendAway(LETTERS, None))


def perform(task: bytes) -> tuple[Counters, dict[Place, list[bytes]]]:
    """Do a `Share`, as a process of a crew; return what was counted, and references to what was sent."""
    share: Share = pickler.loads(task)
    begin(share.received)
    counted = launch.run_quietly(PipelineOptions.from_dictionary(dict(share.options)), share.build)
    return counted, dict(SENT)


def evenly(parts: Sequence[EventFile], processes: int) -> list[list[EventFile]]:
    """Share out parts of files, the largest first, each to the process that has least, by rows or else by bytes."""
    shares: list[list[EventFile]] = [[] for _ in range(processes)]
    sizes = [0] * processes
    for part in sorted(parts, key=lambda part: part.rows or part.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(part)
        sizes[least] += part.rows or part.size
    return shares


def share_out(tell: Tell, share: Share, read: ReadEvents, options: PipelineOptions) -> Counters:
    """Let the processes of a crew do all segments of each question that they share; return what they have counted.

    This process receives what these have given. `share` is what all do alike.

    Raises:
        InputFileError: a file has changed since it was found, or cannot be read.
        RunError: one of them failed, or was killed.
    """
    given, parts = options.get_all_options(drop_default=True), evenly(read.parts(), share.processes)
    counted: list[Counters] = []
    here: defaultdict[str, list[bytes]] = defaultdict(list)
    there: list[defaultdict[str, list[bytes]]] = [defaultdict(list) for _ in range(share.processes)]
    for segment in range(max(each.shared_segments for each in share.transforms.values())):
        each = replace(share, segment=segment, options=given)
        tasks = [
            pickler.dumps(replace(each, number=number, parts=parts[number], received=dict(there[number])))
            for number in range(share.processes)
        ]
        there = [defaultdict(list) for _ in range(share.processes)]
        for found, sent in tell(tasks):
            counted.append(found)
            for (name, to), references in sent.items():
                whole = name == LETTERS or share.transforms[name].shared_segments == segment + 1
                (here if whole else there[to])[name] += references
    begin(here)
    return launch.added(counted)
