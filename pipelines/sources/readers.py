"""Reads files of events into the pipeline as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import EventFile, check_unchanged, files_with, parts_of
from privstream.pipelines.sources.normalise import read_file
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter

EVENTS = "events"
FILES_AT_ONCE = 16  # whose footers are read, at launch


def read_by(
    read: Callable[..., Iterable[pa.RecordBatch | DeadLetter]], found: Any, label: str, fields: AnyFields
) -> Any:
    """Return what a function makes of elements and fields: `events`, Arrow record batches, and `dead_letters`."""
    typed = beam.FlatMap(_tagged, read, fields).with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
    return found | label >> typed.with_outputs(DEAD_LETTERS, main=EVENTS)


def _tagged(
    element: Any, read: Callable[..., Iterable[pa.RecordBatch | DeadLetter]], fields: AnyFields
) -> Iterator[Any]:
    for each in read(element, fields):
        yield TaggedOutput(DEAD_LETTERS, each) if isinstance(each, DeadLetter) else each


class ReadEvents(beam.PTransform[Any, Any]):
    """Reads Avro, Parquet, JSON lines, CSV and XLSX.

    The output `events` has Arrow record batches, without nulls, with those of `user`, `item`, `time` (a timestamp in
    microseconds, UTC) and `value` (float64) that `fields` names; `dead_letters` has a `DeadLetter` for every
    record that cannot be made so. Counters: `events_read`, `events_malformed`, and `events_malformed_<reason>`.

    The files are listed and looked at when the transform is made. A file that cannot be read to its end, or lacks a
    field, ends the run with an error that names it.

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
        self.pattern, self.fields = pattern, fields or FieldMapping()
        self.files = files_with(self.fields, pattern, format)

    def expand(self, pbegin: Any) -> Any:
        """Read the parts of all files."""
        return pbegin | "Parts of files" >> ReadSome(self.parts(), self.fields)

    def parts(self) -> list[EventFile]:
        """Return the parts of all files, which are as they were found."""
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(check_unchanged, self.files))
            return list(chain.from_iterable(pool.map(parts_of, self.files)))

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"pattern": self.pattern, "files": len(self.files)}


class ReadSome(beam.PTransform[Any, Any]):
    """Reads parts of files side by side, in any order."""

    def __init__(self, parts: Sequence[EventFile], fields: AnyFields) -> None:
        super().__init__()
        self.parts, self.fields = parts, fields

    def expand(self, pbegin: Any) -> Any:
        """Read the parts, each of which is refused if it is no longer as it was found."""
        parts = pbegin | "List parts" >> beam.Create(self.parts).with_output_types(EventFile)
        return read_by(read_file, parts | "Spread parts" >> beam.Reshuffle(), "Read parts", self.fields)
