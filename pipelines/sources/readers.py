"""Reads files of events into the pipeline as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.runners.local_runner import moves_watermarks
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import (
    FilePart,
    check_file,
    check_unchanged,
    files_with,
    parts_of,
)
from privstream.pipelines.sources.normalise import Normaliser, read_part
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter

EVENTS = "events"
ROWS_AT_ONCE = 1 << 17
"""Small parts are read together until they have so many rows: each time costs a bundle."""

FILES_AT_ONCE = 16
"""Footers that are read at the same time, at launch."""


class EventsRead(NamedTuple):
    """What a reader gives: Arrow record batches, and records and whole files that could not be read."""

    events: PCollection[Any]
    dead_letters: PCollection[Any]


def read_by(reader: beam.DoFn, found: Any, label: str) -> EventsRead:
    """Return what a reader makes of elements."""
    typed = beam.ParDo(reader).with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
    read = found | label >> typed.with_outputs(DEAD_LETTERS, main=EVENTS)
    return EventsRead(read[EVENTS], read[DEAD_LETTERS])


class ReadEvents(beam.PTransform[Any, Any]):
    """Reads Avro, Parquet, JSON lines, CSV and XLSX.

    The output `events` has Arrow record batches, without nulls, with those of `user`, `item`, `time` (a timestamp in
    microseconds, UTC) and `value` (float64) that `fields` names; `dead_letters` has a `DeadLetter` for every
    record that cannot be made so. Counters: `events_read`, `events_malformed`, and `events_malformed_<reason>`.

    The files are listed when the transform is made, and looked at: all files of this machine, elsewhere the first one.
    A file that cannot be read at all or to its end, or whose header does not have the fields, ends the run with an
    error that names it; a malformed record does not.

    *Privacy*: what one person's record looks like decides only about that record. Errors and logs name files and
    fields, never values.

    Args:
        pattern: a path or glob on any of Beam's filesystems, or a folder of this machine.
        fields: which fields contain what.
        format: avro, parquet, jsonl, csv or xlsx; by the ending of each path if None.

    Raises:
        InputFileError, ValueError, TypeError: at once, naming the option, the file or the field.
    """

    def __init__(self, pattern: str, fields: AnyFields | None = None, format: str | None = None) -> None:
        super().__init__()
        self.pattern = pattern
        self.fields = fields or FieldMapping()
        self.files = files_with(self.fields, pattern, format)

    def expand(self, pbegin: Any) -> EventsRead:
        """Read the parts of all files: in the order of their least times where windows can be decided meanwhile."""
        parts = self.parts()
        moves = moves_watermarks(pbegin.pipeline)
        timed = [part for part in parts if moves and part.least is not None]
        others = [part for part in parts if not moves or part.least is None]
        read: list[EventsRead] = []
        if timed:
            read.append(pbegin | "In order" >> ReadInOrder(timed, self.fields))
        if others or not timed:
            read.append(pbegin | "In any order" >> ReadSome(others, self.fields))
        if len(read) == 1:
            return read[0]
        events, letters = ([each[number] for each in read] for number in range(2))
        return EventsRead(events | "All events" >> beam.Flatten(), letters | "All dead letters" >> beam.Flatten())

    def parts(self) -> list[FilePart]:
        """Return the parts of all files.

        Raises:
            InputFileError: a file has changed since it was found, or cannot be read.
        """
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            return list(chain.from_iterable(pool.map(lambda file: list(parts_of(file, self.fields)), self.files)))

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"pattern": self.pattern, "files": len(self.files)}


class ReadSome(beam.PTransform[Any, Any]):
    """Reads parts of files side by side, in any order; the watermark stays at the beginning until all are read.

    What is in a part whose least time the file states is stamped with that, so that the same events are late as where
    parts are read in order: those that are before it, in a window that was to be decided by then.
    """

    def __init__(self, parts: Sequence[FilePart], fields: AnyFields) -> None:
        super().__init__()
        self.parts = parts
        self.fields = fields

    def expand(self, pbegin: Any) -> EventsRead:
        """Read the parts."""
        listed = pbegin | "List parts" >> beam.Create(self.parts).with_output_types(FilePart)
        parts = listed | "Stamp parts" >> beam.Map(_stamped).with_output_types(FilePart)
        return read_by(ReadPart(self.fields), parts | "Spread parts" >> beam.Reshuffle(), "Read parts")


def _stamped(part: FilePart) -> Any:
    """Return a part at its least time, if it has one."""
    return part if part.least is None else TimestampedValue(part, Timestamp(micros=part.least))


class ReadPart(beam.DoFn):
    """Reads, checks and normalises one part of a file, which is refused if it is no longer as it was found."""

    unchanged = True

    def __init__(self, fields: AnyFields) -> None:
        self.fields = fields
        self.normalise = Normaliser(fields)
        self.checked: tuple[Any, ...] = ()

    def process(self, element: FilePart) -> Iterator[Any]:
        """Give batches of events, and tagged dead letters."""
        if self.unchanged:
            check_unchanged(element)
        file = element.path, element.size, element.marks
        if file != self.checked:  # once, not for each of its parts
            check_file(element, self.fields)
            self.checked = file
        for found in read_part(element, self.fields, self.normalise):
            yield TaggedOutput(DEAD_LETTERS, found) if isinstance(found, DeadLetter) else found
        if self.unchanged:
            check_unchanged(element)


Planned = tuple[int, str]
"""How many parts there are, and a digest of them in their order."""


class ReadInOrder(beam.PTransform[Any, Any]):
    """Reads parts whose least times are known, one after the other, and spreads their events.

    The watermark is the least time of what is still unread: nothing is ever late, unless a file states a least time and
    has an earlier event. Each event is stamped with the least time of its part, so this depends on the input alone.

    *Privacy*: one event of an early time can only delay windows. No newest time, which one event could move, counts.
    One such event in each part delays all windows to the end of the input, and state then holds all of it.

    Args:
        parts: with a least time each.
        fields: which fields contain what.
    """

    def __init__(self, parts: Sequence[FilePart], fields: AnyFields) -> None:
        super().__init__()
        self.parts = sorted(parts, key=lambda part: (part.least or 0, part.path, part.group))
        self.fields = fields

    def expand(self, pbegin: Any) -> EventsRead:
        """Read in one place, which takes little of the time, and go on everywhere."""
        reader = OrderedParts(self.parts, self.fields)
        typed = beam.ParDo(reader).with_output_types(bytes, **{DEAD_LETTERS: DeadLetter})
        parts = pbegin | "Parts" >> beam.Create([reader.planned])
        read = parts | "Read in order" >> typed.with_outputs(DEAD_LETTERS, main=EVENTS)
        spread = read[EVENTS] | "Spread events" >> beam.Reshuffle()
        return EventsRead(spread | "Unpack" >> beam.Map(unpack).with_output_types(pa.RecordBatch), read[DEAD_LETTERS])


class PartsProvider(RestrictionProvider):
    """The parts that are still to be read: by their numbers, one after the other."""

    def initial_restriction(self, element: Planned) -> OffsetRange:
        """Begin with all of them."""
        return OffsetRange(0, element[0])

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        """Track them by their numbers."""
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Planned, restriction: OffsetRange) -> int:
        """Return how many are left."""
        return int(restriction.size())


LEFT = beam.DoFn.RestrictionParam(PartsProvider())
WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())


class OrderedParts(beam.DoFn):
    """Gives packed batches of events, and tagged dead letters, of parts in the order in which they are given.

    The element says which parts they are: a job that is restored with other files refuses. After some of them it
    pauses, which lets Flink's runner pass the watermark on; timers that set themselves, as in `PolledSource`, do not
    once their input has ended. What that runner keeps of each pause, and does not free, ends with the run.
    """

    def __init__(self, parts: Sequence[FilePart], fields: AnyFields) -> None:
        self.parts = parts
        digest = blake2b(repr([tuple(part) for part in parts]).encode(), digest_size=16)
        self.planned = len(parts), digest.hexdigest()
        self.reader = ReadPart(fields)

    def process(self, element: Planned, tracker: Any = LEFT, watermark: Any = WATERMARK) -> Iterator[Any]:
        """Read the next parts; what is in a part comes at its least time, and the watermark follows."""
        if tuple(element) != self.planned:
            raise InputFileError("--input must match the files with which the job was started: these are others")
        number, rows = tracker.current_restriction().start, 0
        while tracker.try_claim(number):
            part = self.parts[number]
            least = Timestamp(micros=part.least)
            for found in self.reader.process(part):
                if isinstance(found, TaggedOutput):
                    yield TaggedOutput(found.tag, TimestampedValue(found.value, least))
                else:
                    yield TimestampedValue(pack(found), least)
            number, rows = number + 1, rows + part.rows
            if number < len(self.parts):
                watermark.set_watermark(Timestamp(micros=self.parts[number].least))
                if rows >= ROWS_AT_ONCE:
                    tracker.defer_remainder()
                    return


def pack(batch: pa.RecordBatch) -> bytes:
    """Encode a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack(data: bytes) -> pa.RecordBatch:
    """Decode a batch."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
