"""Reads files as the commands do, but without a runner, so that thousands of cases take seconds."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from fuzz_meaning import Event, Rules
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import list_parts
from privstream.pipelines.sources.readers import ReadEvents, ReadPart
from privstream.transforms.events.event_fields import DeadLetter

REFUSALS = (ValueError, TypeError)
"""What a reader may raise: `InputFileError` is one of them. Anything else is a fault."""


@dataclass
class Outcome:
    """What came out of a file: events, dead letters, or an error in one clear line."""

    events: Counter[Event] = field(default_factory=Counter)
    letters: list[DeadLetter] = field(default_factory=list)
    error: str = ""


def read(path: Path, rules: Rules, format: str | None = None) -> Outcome:
    """Read a file to its end, or to the error that ends it."""
    found = Outcome()
    try:
        reader = ReadEvents(str(path), FieldMapping(**rules.options(), time_zone="UTC"), format)
        reading = ReadPart(reader.fields)
        for file in reader.files:
            for part in list_parts(file):
                for output in reading.process(part):
                    _add(output, found)
    except REFUSALS as error:
        found.error = str(error)
    return found


def _add(output: object, found: Outcome) -> None:
    """Keep a batch, or a dead letter."""
    if isinstance(output, TaggedOutput):
        found.letters.append(output.value)
        return
    assert isinstance(output, pa.RecordBatch)
    columns = output.to_pydict()
    times = output["time"].cast(pa.int64()).to_pylist()
    users, streams = (columns.get(name) or [""] * output.num_rows for name in ("user", "stream"))
    items = columns["item"] if "item" in columns else map(repr, columns["value"])
    found.events.update(Event(*row) for row in zip(users, items, times, streams, strict=True))
