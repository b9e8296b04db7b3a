"""Reads one part of a file: batches of events, and dead letters for what cannot be used."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.pipelines.sources.event_files import Damage, Part
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, FilePart, check_file, check_unchanged
from privstream.pipelines.sources.normalise import Normaliser
from privstream.pipelines.sources.plain_batches import plain_batches
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

EVENTS = "events"


class EventsRead(NamedTuple):
    """What a reader gives.

    Attributes:
        events: Arrow record batches.
        dead_letters: records, and whole files, that could not be read.
    """

    events: PCollection[Any]
    dead_letters: PCollection[Any]


def dead_letter(reason: str, path: str, position: str = "", record: str = "") -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    texts = (reason, path, position, record)
    return DeadLetter(*[text.encode("utf-8", "backslashreplace").decode() for text in texts])


class ReadPart(beam.DoFn):
    """Reads, checks and normalises one part of a file."""

    def __init__(self, fields: FieldMapping) -> None:
        self.fields = fields
        self.normalise = Normaliser(fields)
        self.checked: tuple[Any, ...] = ()
        self.events_read = Metrics.counter("privstream", "events_read")
        self.events_malformed = Metrics.counter("privstream", "events_malformed")

    def process(self, element: FilePart) -> Iterator[Any]:
        """Read a part of a file that is as it was found, and stays so."""
        check_unchanged(element)
        yield from self.read(element)
        check_unchanged(element)

    def read(self, element: FilePart) -> Iterator[Any]:
        """Give batches of events, and tagged dead letters."""
        file = element.path, element.size, element.modified
        if file != self.checked:  # once, not for each of its parts
            check_file(element, self.fields)
            self.checked = file
        part = Part(element.start, element.end)
        for found in FORMATS[element.format].read(element.path, part, self.fields.names()):
            if isinstance(found, Damage):
                yield self.refuse(found.code, dead_letter(found.reason, element.path, found.position, found.record))
                continue
            batch, refusals = self.normalise(found)
            for row, code, reason in refusals:
                letter = dead_letter(reason, element.path, found.position(row), found.record(row))
                yield self.refuse(code, letter)
            self.events_read.inc(batch.num_rows)
            if batch.num_rows:
                yield from plain_batches(batch)

    def refuse(self, code: str, letter: DeadLetter) -> Any:
        """Count a record and send it away."""
        self.events_malformed.inc()
        Metrics.counter("privstream", f"events_malformed_{code}").inc()
        return beam.pvalue.TaggedOutput(DEAD_LETTERS, letter)
