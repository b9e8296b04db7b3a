"""Transforms that read events as Arrow record batches: from files, and from sources that are asked again and again."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.locations import ARRIVAL, MARKS
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import (
    EventFile,
    FolderPolls,
    check_file,
    check_unchanged,
    files_with,
    format_of,
    list_folder,
    parts_of,
)
from privstream.pipelines.sources.normalise import dead_letter, read_file
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND

EVENTS = "events"
FILES_AT_ONCE = 16  # whose footers are read, at launch
Found = Iterator[pa.RecordBatch | DeadLetter]


def read_by(read: Callable[..., Found], found: Any, label: str, fields: AnyFields) -> Any:
    """Return what a function makes of elements and fields: `events`, Arrow record batches, and `dead_letters`."""
    typed = beam.FlatMap(_tagged, read, fields).with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
    return found | label >> typed.with_outputs(DEAD_LETTERS, main=EVENTS)


def _tagged(element: Any, read: Callable[..., Found], fields: AnyFields) -> Iterator[Any]:
    for each in read(element, fields):
        yield TaggedOutput(DEAD_LETTERS, each) if isinstance(each, DeadLetter) else each


class ReadEvents(beam.PTransform[Any, Any]):
    """Reads Avro, Parquet, JSON lines, CSV and XLSX.

    The output `events` has Arrow record batches, without nulls, with those of `user`, `item`, `time` (a timestamp in
    microseconds, UTC) and `value` (float64) that `fields` names; `dead_letters` has a `DeadLetter` for every
    record that cannot be made so. Counters: `events_read`, `events_malformed`, and `events_malformed_<reason>`.

    *Privacy*: what one person's record looks like decides only about that record. Errors and logs name files and
    fields, never values.

    Args:
        pattern: a path, a folder or a glob on any of Beam's filesystems.
        fields: which fields contain what.
        format: avro, parquet, jsonl, csv or xlsx; by the ending of each path if None.

    Raises:
        InputFileError, ValueError, TypeError: at once, or in the run where a file cannot be read to its end; names the
            option, the file or the field.
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


class ReadSome(beam.PTransform[Any, Any]):
    """Reads parts of files side by side, in any order; each is refused if it is no longer as it was found."""

    def __init__(self, parts: Sequence[EventFile], fields: AnyFields) -> None:
        super().__init__()
        self.parts, self.fields = parts, fields

    def expand(self, pbegin: Any) -> Any:
        """Read the parts."""
        parts = pbegin | "List parts" >> beam.Create(self.parts).with_output_types(EventFile)
        return read_by(read_file, parts | "Spread parts" >> beam.Reshuffle(), "Read parts", self.fields)


class Answer(NamedTuple):
    """What a source says when it is asked: elements with the microseconds at which they arrived, and where to go on.

    Whatever comes later has arrived at the watermark, in microseconds, or after; None when nothing comes any more.
    """

    found: Iterable[tuple[Any, int]]
    position: bytes
    watermark: int | None


class PolledSource(beam.DoFn):
    """Asks for new elements every few seconds; its input is one pair of bytes for each part of the source.

    Output and position of one question are kept together, or neither. Flink's runner would keep a piece of state, for
    ever, for each time that a splittable DoFn pauses.
    """

    POSITION = ReadModifyWriteStateSpec("polled_source_position", BytesCoder())
    AGAIN = TimerSpec("polled_source_again", TimeDomain.WATERMARK)
    """Set at the watermark of the source; fires at once, since nothing else holds back the watermark of its input."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._asked: dict[bytes, float] = {}  # cache of pauses: when each part was asked by this instance

    @abstractmethod
    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """Ask once; the position is None at first."""

    def process(self, element: tuple[bytes, bytes], again: Any = beam.DoFn.TimerParam(AGAIN)) -> None:
        """Start with a part, in 1970: no earlier event is accepted."""
        again.set(Timestamp(0))

    @on_timer(AGAIN)
    def ask(
        self,
        part: Any = beam.DoFn.KeyParam,
        watermark: Any = beam.DoFn.TimestampParam,
        position: Any = beam.DoFn.StateParam(POSITION),
        again: Any = beam.DoFn.TimerParam(AGAIN),
    ) -> Iterator[TimestampedValue[Any]]:
        """Ask when the time has come, pass on what was found, and come back."""
        wait = self._asked.get(part, -self.seconds) + self.seconds - time.monotonic()
        time.sleep(max(0, wait))
        self._asked[part] = time.monotonic()
        kept = position.read()
        answer = self.poll(part, kept, watermark.micros)
        for element, arrived in answer.found:
            yield TimestampedValue(element, Timestamp(micros=max(arrived, watermark.micros)))
        if answer.watermark is None:
            position.clear()
            return
        if answer.position != kept:
            position.write(answer.position)
        reached = min(max(answer.watermark, watermark.micros), END_OF_TIME)
        again.set(Timestamp(micros=reached // MILLISECOND * MILLISECOND))


def poll_parts(pbegin: Any, parts: list[bytes], source: PolledSource, found: Any) -> Any:
    """Return what a source finds, elements of type `found`; its parts are asked side by side."""
    polled = (
        pbegin
        | "Parts" >> beam.Create([(part, b"") for part in parts]).with_output_types(tuple[bytes, bytes])
        | "Spread parts" >> beam.Reshuffle()
        | "Ask" >> beam.ParDo(source).with_output_types(found)
    )
    polled.is_bounded = False  # only of a splittable DoFn does Beam see that by itself
    return polled


UNREADABLE = (InputFileError, ValueError, TypeError, OSError, pa.ArrowException)
"""What a file can do to its reader; anything else is a fault of the reader and ends the run."""


class WatchEvents(beam.PTransform[Any, Any]):
    """Reads files that come into a folder, each once, as `ReadEvents` does.

    Remove old files when the run can no longer have to go back to them, and use no name again while its file is there.
    The watermark is, with `arrival`, the time of day, held back by files that came and have not been taken; with
    `marks`, the time in the name of an empty file `_UNTIL_20300101T120000Z`. `_END` ends the stream.

    A file that cannot be read, is gone or has grown when its turn comes, or lacks a field is one dead letter.
    Counters as `ReadEvents`, `files_taken`, `files_unreadable`, `files_changed`, `listings_failed`.

    *Privacy*: the times at which files come, and their names, must not depend on single persons. The watermark never
    follows the times of events, so no one person's event decides when a window closes, or whether others are late.

    Args:
        pattern: a folder on any of Beam's filesystems, or a folder and a glob for the names in it.
        fields, format: as of `ReadEvents`.
        seconds: pause between two polls, > 0.
        watermark: arrival or marks.

    Raises:
        InputFileError, ValueError, TypeError: at once, if there is no such folder, or none of its files can be used.
    """

    def __init__(
        self, pattern: str, fields: AnyFields, format: str | None = None, *, seconds: float, watermark: str = ARRIVAL
    ) -> None:
        super().__init__()
        self.seconds, self.watermark = seconds, watermark
        self.pattern, self.format, self.fields = pattern, format, fields
        if (listing := list_folder(pattern)) is None:
            raise InputFileError(f"--input must be a folder that can be listed, to be watched, got {pattern}")
        there = [seen for seen in listing if not seen.is_mark and seen.size]
        self.files = sorted(EventFile(seen.path, seen.size, format or "") for seen in there)
        self._check_one()

    def expand(self, pbegin: Any) -> Any:
        """Poll the folder, and read files side by side."""
        folder = PollFolder(self.pattern, self.format, self.seconds, self.watermark)
        found = poll_parts(pbegin, [b"folder"], folder, EventFile)
        return read_by(read_watched, found | "Spread files" >> beam.Reshuffle(), "Read files", self.fields)

    def _check_one(self) -> None:
        """Refuse options by which none of the files that are there at launch can be used."""
        refused: Exception | None = None
        for file in self.files:
            try:
                return check_file(file._replace(format=file.format or format_of(file.path)), self.fields)
            except UNREADABLE as error:
                refused = refused or error
        if refused:
            raise refused


class PollFolder(PolledSource):
    """Gives an `EventFile` for each file that has come."""

    def __init__(self, pattern: str, format: str | None, seconds: float, watermark: str) -> None:
        super().__init__(seconds)
        self.pattern, self.format, self.by_marks = pattern, format, watermark == MARKS

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """List the folder once; when the folder cannot be listed, nothing is known and time stands still."""
        polls, began = FolderPolls.from_bytes(position), Timestamp.now().micros
        listing = list_folder(self.pattern)
        if listing is None:
            counter("listings_failed").inc()
            return Answer((), polls.to_bytes(), watermark)
        found, reached = polls.poll(listing, began)
        counter("files_taken").inc(len(found))
        counter("files_changed").inc(polls.changed)
        files = []
        for seen in found:
            marks = [mark.until for mark in listing if mark.came < seen.came]  # that nothing before is missing
            arrived = max(marks, default=0) if self.by_marks else seen.came
            files.append((EventFile(seen.path, seen.size, self.format or ""), arrived))
        return Answer(files, polls.to_bytes(), polls.until if self.by_marks and reached is not None else reached)


def read_watched(element: EventFile, fields: AnyFields) -> Found:
    """Yield batches of events of a file; what cannot be read any further is a dead letter."""
    if not element.size:
        return
    try:
        yield from read_file(element._replace(format=element.format or format_of(element.path)), fields)
    except UNREADABLE as error:
        counter("files_unreadable").inc()
        own = isinstance(error, InputFileError) or type(error) in (ValueError, TypeError)  # quotes no record
        reason = str(error) if own and "\n" not in str(error) else ""
        reason = reason or f"{element.path} must be readable ({type(error).__name__})"
        yield dead_letter(reason, element.path, "", "")
