"""Reads files of events into the pipeline as Arrow record batches."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.runners.local_runner import moves_watermarks
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import EventFile, FilePart, check_file, match_files, timed_parts
from privstream.pipelines.sources.ordered_parts import ReadInOrder
from privstream.pipelines.sources.read_part import EVENTS, EventsRead, ReadPart
from privstream.pipelines.sources.text_pieces import CompressionError
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

FILES_AT_ONCE = 16
"""Footers that are read at the same time, at launch."""


class ReadEvents(beam.PTransform[Any, Any]):
    """Reads Avro, Parquet, JSON lines and CSV.

    The output `events` has Arrow record batches with `user`, `item` (text), `time` (a timestamp in microseconds, UTC)
    and, with streams, `stream` (text), without nulls. The output `dead_letters` has a `DeadLetter` for every record
    that cannot be made so. Counters: `events_read`, `events_malformed`, and `events_malformed_<reason>`.

    The files are listed when the transform is made, and looked at: all files of this machine, elsewhere the first one.
    So most errors show at launch, before a run is written down and paid for. A file that cannot be read at all or to
    its end, or whose header does not have the fields, ends the run with an error that names it; a malformed record or a
    damaged Avro block does not.

    *Privacy*: what one person's record looks like decides only about that record: which fields are read, and whether
    there are streams, is decided by `fields`. Errors and logs name files and fields, never values.

    Args:
        pattern: a path or glob on any of Beam's filesystems.
        fields: which fields contain what.
        format: avro, parquet, jsonl or csv; by the ending of each path if None.

    Raises:
        InputFileError, ValueError, TypeError: at once, naming the option, the file or the field.

    Example:
        >>> events = pipeline | ReadEvents("events-*.parquet", FieldMapping(item="query"))  # doctest: +SKIP
        >>> events.events, events.dead_letters  # doctest: +SKIP
    """

    def __init__(self, pattern: str, fields: FieldMapping | None = None, format: str | None = None) -> None:
        super().__init__()
        self.pattern = pattern
        self.files = match_files(pattern, format)
        self.fields = fields or FieldMapping()
        for file in self.files[:1] + [file for file in self.files[1:] if FileSystems.get_scheme(file.path) is None]:
            with suppress(CompressionError):  # the run fails with it, wherever in the file the damage is
                check_file(file, self.fields)

    def expand(self, pbegin: Any) -> Any:
        """Read the parts of all files: in the order of their least times where windows can be decided meanwhile."""
        if not moves_watermarks(pbegin.pipeline):
            return pbegin | "Side by side" >> ReadSideBySide(self.files, self.fields)
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            parts = list(chain.from_iterable(pool.map(partial(timed_parts, self.fields), self.files)))
        timed = [part for part in parts if part.least is not None]
        untimed = {part.path for part in parts if part.least is None}
        read = []
        if timed:
            read.append(pbegin | "In order" >> ReadInOrder(timed, self.fields))
        if untimed or not timed:
            others = [file for file in self.files if file.path in untimed or not timed]
            read.append(pbegin | "Side by side" >> ReadSideBySide(others, self.fields, timed=not timed))
        if len(read) == 1:
            return read[0]
        events, letters = ([each[number] for each in read] for number in range(2))
        return EventsRead(events | "All events" >> beam.Flatten(), letters | "All dead letters" >> beam.Flatten())

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"pattern": self.pattern, "files": len(self.files)}


class ReadSideBySide(beam.PTransform[Any, Any]):
    """Reads parts of files in any order, and at once; the watermark stays at the beginning until all are read.

    What is in a part whose least time the file states is stamped with that, so that the same events are late as where
    parts are read in order: those that are before it, in a window that was to be decided by then.

    Args:
        files: what is read.
        fields: which fields contain what.
        timed: whether parts with a least time are read, too.
    """

    def __init__(self, files: Sequence[EventFile], fields: FieldMapping, timed: bool = True) -> None:
        super().__init__()
        self.files = files
        self.fields = fields
        self.timed = timed

    def expand(self, pbegin: Any) -> Any:
        """Cut the files into parts, and read these wherever there is room."""
        read = (
            pbegin
            | "List files" >> beam.Create(self.files).with_output_types(EventFile)
            | "Cut into parts" >> beam.FlatMap(_stamped_parts, self.fields, self.timed).with_output_types(FilePart)
            | "Spread parts" >> beam.Reshuffle()
            | "Read parts"
            >> beam.ParDo(ReadPart(self.fields))
            .with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
            .with_outputs(DEAD_LETTERS, main=EVENTS)
        )
        return EventsRead(read[EVENTS], read[DEAD_LETTERS])


def _stamped_parts(file: EventFile, fields: FieldMapping, timed: bool) -> Iterator[Any]:
    """Cut a file into parts; those with a least time come at that time, if they are asked for."""
    for part in timed_parts(fields, file):
        if part.least is None:
            yield part
        elif timed:
            yield TimestampedValue(part, Timestamp(micros=part.least))
