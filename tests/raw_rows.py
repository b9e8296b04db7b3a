"""Events as readers of files give them, and what questions can use of rows of Python values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from privstream.pipelines.sources.fields import FieldMapping, Readings
from privstream.pipelines.sources.files import files_with, normalise, parts_of, read_file, usable
from privstream.pipelines.sources.formats import Damage, RawEvents
from privstream.transforms.reading.fields import DeadLetter, column_of


def readings(**fields: Any) -> Readings:
    """Return what one question reads, in UTC if no zone is given."""
    return Readings.of({"": FieldMapping(**({"time_zone": "UTC"} | fields))})


def read_events(pattern: object, fields: Readings) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Read files without a pipeline."""
    for file in files_with(fields, str(pattern)):
        for part in parts_of(file):
            for each in usable(part, read_file, fields):
                yield each.value if isinstance(each, TaggedOutput) else each


def normalised(
    columns: Mapping[str, Any], fields: FieldMapping | Readings
) -> tuple[list[pa.RecordBatch], list[Damage]]:
    """Return the batches of questions, and what cannot be used; positions are the numbers of rows."""
    held = {name: values if isinstance(values, pa.Array) else column_of(values) for name, values in columns.items()}
    fields = fields if isinstance(fields, Readings) else Readings.of({"": fields})
    found = list(normalise(RawEvents(held, len(next(iter(held.values()))), str, str), fields))
    batches = [each for each in found if isinstance(each, pa.RecordBatch)]
    return batches, [each for each in found if isinstance(each, Damage)]
