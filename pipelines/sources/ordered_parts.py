"""Reads parts of files in the order of their least times, so that the watermark moves while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FilePart
from privstream.pipelines.sources.read_part import EVENTS, EventsRead, ReadPart
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

ROWS_AT_ONCE = 1 << 17
"""Small parts are read together until they have so many rows: each time costs a bundle."""


Planned = tuple[int, str]
"""How many parts there are, and a digest of them in their order."""


class ReadInOrder(beam.PTransform[Any, Any]):
    """Reads parts whose least times are known, one after the other, and spreads their events.

    The watermark is the least time of what is still unread: nothing is ever late, unless a file states a least time and
    has an earlier event. Such an event is late if its window was to be decided by the time that its part states: each
    event is stamped with that, so this depends on the input alone.

    *Privacy*: one event of an early time can only delay windows. No newest time, which one event could move, counts.
    One such event in each part delays all windows to the end of the input, and state then holds all of it.

    Args:
        parts: with a least time each.
        fields: which fields contain what.
    """

    def __init__(self, parts: Sequence[FilePart], fields: FieldMapping) -> None:
        super().__init__()
        self.parts = sorted(parts, key=_by_time)
        self.fields = fields

    def expand(self, pbegin: Any) -> Any:
        """Read in one place, which takes little of the time, and go on everywhere."""
        reader = OrderedParts(self.parts, self.fields)
        read = (
            pbegin
            | "Parts" >> beam.Create([reader.planned])
            | "Read in order"
            >> beam.ParDo(reader)
            .with_output_types(bytes, **{DEAD_LETTERS: DeadLetter})
            .with_outputs(DEAD_LETTERS, main=EVENTS)
        )
        events = (
            read[EVENTS]
            | "Spread events" >> beam.Reshuffle()
            | "Unpack" >> beam.Map(unpack).with_output_types(pa.RecordBatch)
        )
        return EventsRead(events, read[DEAD_LETTERS])


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

    def __init__(self, parts: Sequence[FilePart], fields: FieldMapping) -> None:
        self.parts = parts
        self.planned = len(parts), _digest(parts)
        self.reader = ReadPart(fields)

    def process(
        self,
        element: Planned,
        tracker: Any = LEFT,
        watermark: Any = WATERMARK,
    ) -> Iterator[Any]:
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


def _by_time(part: FilePart) -> tuple[int, str, int]:
    """Order parts by their least times."""
    return part.least or 0, part.path, part.start


def _digest(parts: Sequence[FilePart]) -> str:
    """Return what tells lists of parts apart."""
    return blake2b(repr([tuple(part) for part in parts]).encode(), digest_size=16).hexdigest()
