"""Reads parts of files in the order of their least times, so that the watermark moves while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FilePart
from privstream.pipelines.sources.polled_source import Answer, PolledSource, spread_parts
from privstream.pipelines.sources.read_part import EVENTS, EventsRead, ReadPart
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

READER = b"files"
ROWS_AT_ONCE = 1 << 17
"""Small parts are read together until they have so many rows: each time costs a bundle."""

POSITION_BYTES = 8


class ReadInOrder(beam.PTransform[Any, Any]):
    """Reads parts whose least times are known, one after the other, and spreads their events.

    The watermark is the least time of what is still unread: nothing is ever late, unless a file states a least time and
    has an earlier event. Such an event is late if its window was to be decided by the time that its part states: each
    event is stamped with that, so this depends on the input alone.

    *Privacy*: one event of an early time can only delay windows. No newest time, which one event could move, counts.

    Args:
        parts: with a least time each.
        fields: which fields contain what.
    """

    def __init__(self, parts: Sequence[FilePart], fields: FieldMapping) -> None:
        super().__init__()
        self.parts = sorted(parts, key=_by_time)
        self.fields = fields

    def expand(self, pbegin: Any) -> EventsRead:
        """Read in one place, which takes little of the time, and go on everywhere."""
        read = spread_parts(pbegin, [READER]) | "Read in order" >> beam.ParDo(
            OrderedParts(self.parts, self.fields)
        ).with_output_types(bytes, **{DEAD_LETTERS: DeadLetter}).with_outputs(DEAD_LETTERS, main=EVENTS)
        events = (
            read[EVENTS]
            | "Spread events" >> beam.Reshuffle()
            | "Unpack" >> beam.Map(unpack).with_output_types(pa.RecordBatch)
        )
        return EventsRead(events, read[DEAD_LETTERS])


class OrderedParts(PolledSource):
    """Gives packed batches of events, and tagged dead letters, of parts in the order in which they are given."""

    def __init__(self, parts: Sequence[FilePart], fields: FieldMapping) -> None:
        super().__init__(seconds=0)
        self.parts = parts
        self.reader = ReadPart(fields)

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """Read the next parts; the watermark then is the least time of those after them."""
        first = 0 if position is None else int.from_bytes(position, "big")
        last = self._until(first)
        reached = self.parts[last].least if last < len(self.parts) else None
        return Answer(self._read(first, last), last.to_bytes(POSITION_BYTES, "big"), reached)

    def _until(self, first: int) -> int:
        """Return the number after the last part that is read together with the first one."""
        last, rows = first, 0
        while last < len(self.parts) and (last == first or rows + self.parts[last].rows <= ROWS_AT_ONCE):
            rows += self.parts[last].rows
            last += 1
        return last

    def _read(self, first: int, last: int) -> Iterator[tuple[Any, int]]:
        """Read some parts; what is in a part comes at its least time."""
        for part in self.parts[first:last]:
            for found in self.reader.process(part):
                yield found if isinstance(found, TaggedOutput) else pack(found), part.least or 0


def pack(batch: pa.RecordBatch) -> bytes:
    """Encode a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def unpack(data: bytes) -> pa.RecordBatch:
    """Decode a batch."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _by_time(part: FilePart) -> tuple[int, str, int]:
    """Order parts by their least times."""
    return part.least or 0, part.path, part.start
