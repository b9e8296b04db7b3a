"""The boundary: from events of any form to checked batches of columns, and dead letters for what cannot be used."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue
from privstream.transforms.events.dead_letters import LOG, set_aside, text_of
from privstream.transforms.events.event_columns import TEXT_PER_BATCH, Unusable, usable_batches
from privstream.transforms.events.event_fields import EventFields, broken_by
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.single_events import Said, read_event
from privstream.transforms.timing.steps import MILLISECOND
from typing_extensions import override

ROWS_PER_BATCH = 65_536


class BatchCoder(Coder):
    """Pickles Arrow batches, as Beam does by itself; but asked for the size of one, which is often, it does not."""

    @override
    def encode(self, value: pa.RecordBatch) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    @override
    def decode(self, encoded: bytes) -> pa.RecordBatch:
        return pickle.loads(encoded)

    @override
    def estimate_size(self, value: pa.RecordBatch) -> int:
        return int(value.nbytes)

    @override
    def to_type_hint(self) -> type:
        return pa.RecordBatch  # type: ignore[no-any-return]


registry.register_coder(pa.RecordBatch, BatchCoder)

Together = tuple[int | None, bool]  # millisecond of arrival, if that is after the time; whether the item is a list


def gather(events: PCollection[Any], apply_dofn: ApplyDoFn, fields: EventFields) -> PCollection[pa.RecordBatch]:
    """Return the events that can be used as batches of the columns of `EventFields.schema`."""
    everywhere = events | "InOneWindow" >> beam.WindowInto(GlobalWindows())
    return apply_dofn(everywhere, GatherRows(fields), pa.RecordBatch)


class GatherRows(beam.DoFn):
    """Check events, and gather single ones of a bundle into Arrow batches.

    An element is a pair (user, item) whose time is the element's timestamp; or a row with `user`, `item`, `time` (a
    Beam Timestamp, a datetime, or a number of seconds since 1970; its timestamp, if it has no such field); or an Arrow
    batch with these columns. Events that break a rule become dead letters, and so does, as a whole, a batch of columns
    that cannot be used. What one element is decides about no other.

    A batch is late if its timestamp is. Where timestamps say when events arrived, whether an event is late must not
    depend on those it is with: so those that arrived after their own time are only with others of the same millisecond.

    Args:
        fields: what is read of an event.
    """

    def __init__(self, fields: EventFields) -> None:
        self.fields = fields

    @override
    def start_bundle(self) -> None:
        self._rows: dict[Together, list[Said]] = defaultdict(list)
        self._oldest: dict[Together, Any] = {}
        self._number = self._text = 0

    @override
    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        if isinstance(element, pa.RecordBatch):
            LOG.read(element.num_rows)
            for found in usable_batches(element, self.fields) if element.num_rows else ():
                yield set_aside(found.rule, found.record, number=found.number) if isinstance(found, Unusable) else found
            return
        LOG.read(1)
        try:
            row = read_event(element, timestamp, self.fields)
        except Exception as error:
            yield set_aside(broken_by(error, "event"), text_of(element))
            return
        self._keep(row, timestamp)
        self._window = window
        if self._number >= ROWS_PER_BATCH or self._text >= TEXT_PER_BATCH:
            yield from self._flush()

    @override
    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from self._flush()

    def _keep(self, row: Said, timestamp: Any) -> None:
        """Keep a row with those that it may be with."""
        arrived = None if timestamp.micros <= row.time else timestamp.micros // MILLISECOND
        together = arrived, isinstance(row.item, list)
        self._rows[together].append(row)
        self._oldest[together] = min(self._oldest.get(together, timestamp), timestamp)
        self._number += 1
        self._text += sum(map(_size, row))

    def _flush(self) -> Iterator[WindowedValue]:
        for (arrived, lists), rows in self._rows.items():
            schema = self.fields.schema(lists=lists)
            columns = dict(zip(Said._fields, zip(*rows, strict=True), strict=True))
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield WindowedValue(batch, self._oldest[arrived, lists], (self._window,))
        self.start_bundle()


def _size(value: Any) -> int:
    """Return the characters of what an event says."""
    if isinstance(value, list):
        return sum(map(len, value))
    return len(value) if isinstance(value, str) else 0
