"""Reads files of events into the pipeline as Arrow record batches."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import Metrics
from privstream.pipelines.sources import avro_events, csv_lines, json_lines, parquet_events
from privstream.pipelines.sources.event_files import (
    COMPRESSED,
    Damage,
    EventFormat,
    InputFileError,
    Part,
    check_regular,
)
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.normalise import Normaliser
from privstream.pipelines.sources.plain_batches import plain_batches
from privstream.pipelines.sources.text_pieces import CompressionError
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

EVENTS = "events"

FORMATS = {
    "avro": cast(EventFormat, avro_events),
    "parquet": cast(EventFormat, parquet_events),
    "jsonl": cast(EventFormat, json_lines),
    "csv": cast(EventFormat, csv_lines),
}
ENDINGS = {"avro": "avro", "parquet": "parquet", "jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv"}
TEXT_FORMATS = ("jsonl", "csv")


class EventFile(NamedTuple):
    """A file that matched: its path, its size in bytes, its format, and when it came, if it was watched for.

    `modified` is when it was last changed, in seconds since 1970, as the filesystem says.
    """

    path: str
    size: int
    format: str
    came: int = 0
    modified: float = 0.0


class FilePart(NamedTuple):
    """A piece of a file for one worker; how many bytes the file had when it was found, and when it was last changed."""

    path: str
    format: str
    start: int
    end: int
    size: int
    modified: float = 0.0


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
        """Read the parts of all files side by side."""
        return (
            pbegin
            | "List files" >> beam.Create(self.files).with_output_types(EventFile)
            | "Cut into parts" >> beam.FlatMap(_list_unchanged).with_output_types(FilePart)
            | "Spread parts" >> beam.Reshuffle()
            | "Read parts"
            >> beam.ParDo(ReadPart(self.fields))
            .with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
            .with_outputs(DEAD_LETTERS, main=EVENTS)
        )

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"pattern": self.pattern, "files": len(self.files)}


def match_files(pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, in the order of their paths.

    Raises:
        InputFileError: none matches, a format is unknown, one is no file, or a file that needs a header is empty.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"--input_format must be one of {', '.join(FORMATS)}, got {format!r}")
    if any(sign in pattern for sign in "*?[") and os.path.basename(pattern) == pattern:
        pattern = os.path.join(os.curdir, pattern)  # Beam finds nothing for a bare glob
    try:
        found = FileSystems.match([pattern])[0].metadata_list if pattern else []
    except (BeamIOError, ValueError) as error:
        raise InputFileError(f"--input must be readable: cannot list {pattern} ({type(error).__name__})") from None
    if not found:
        raise InputFileError(f"--input must match at least one file: nothing matches {pattern}")
    files = [as_found(file, format or format_of(file.path)) for file in found]
    for file in files:
        check_regular(file.path)
        if file.size == 0 and file.format not in TEXT_FORMATS:
            raise InputFileError(
                f"{file.path} is empty: it has 0 bytes, but even without events {file.format} has a header"
            )
    return sorted(files)


def as_found(file: FileMetadata, format: str) -> EventFile:
    """Return a file as it is now, so that a later change can be seen."""
    return EventFile(file.path, file.size_in_bytes, format, modified=file.last_updated_in_seconds)


def check_unchanged(file: EventFile | FilePart) -> None:
    """Refuse a file that has changed since it was found: the noise of the run is bound to what was in it then.

    Raises:
        InputFileError: it has changed, or is gone.
    """
    try:
        now = as_found(FileSystems.get_filesystem(file.path).metadata(file.path), file.format)
    except BeamIOError:
        raise InputFileError(f"{file.path} must stay until it has been read") from None
    if (now.size, now.modified) != (file.size, file.modified):
        raise InputFileError(f"{file.path} must not change while a run reads it; start the run again")


def format_of(path: str) -> str:
    """Return the format that a path's ending stands for; text files may be compressed."""
    plain = path
    for ending in COMPRESSED:
        plain = plain.removesuffix(ending)
    format = ENDINGS.get(plain.rpartition(".")[2].lower())
    if format is None or (plain != path and format not in TEXT_FORMATS):
        known = ", ".join(f".{ending}" for ending in ENDINGS)
        raise InputFileError(f"--input must end in {known} (text also with .gz, .bz2 or .zst), got {path}")
    return format


def check_file(file: EventFile | FilePart, fields: FieldMapping) -> None:
    """Check that a file can be opened and that its schema or header, if it has one, has the fields.

    Raises:
        InputFileError, ValueError, TypeError: naming the file, the option or the field.
    """
    schema = FORMATS[file.format].schema(file.path)
    if schema is not None:
        fields.check(schema, file.path)


def list_parts(file: EventFile) -> Iterator[FilePart]:
    """Cut a file into parts."""
    for part in FORMATS[file.format].parts(file.path, file.size):
        yield FilePart(file.path, file.format, part.start, part.end, file.size, file.modified)


def _list_unchanged(file: EventFile) -> Iterator[FilePart]:
    """Cut a file into parts, if it is as it was found."""
    check_unchanged(file)
    return list_parts(file)


def dead_letter(reason: str, path: str, position: str = "", record: str = "") -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    texts = (reason, path, position, record)
    return DeadLetter(*[text.encode("utf-8", "backslashreplace").decode() for text in texts])


class ReadPart(beam.DoFn):
    """Reads, checks and normalises one part of a file."""

    def __init__(self, fields: FieldMapping) -> None:
        self.fields = fields
        self.normalise = Normaliser(fields)
        self.events_read = Metrics.counter("privstream", "events_read")
        self.events_malformed = Metrics.counter("privstream", "events_malformed")

    def process(self, element: FilePart) -> Iterator[Any]:
        """Read a part of a file that is as it was found, and stays so."""
        check_unchanged(element)
        yield from self.read(element)
        check_unchanged(element)

    def read(self, element: FilePart) -> Iterator[Any]:
        """Give batches of events, and tagged dead letters."""
        check_file(element, self.fields)
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
