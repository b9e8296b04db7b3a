"""Transforms that read events as Arrow record batches: from files, and from sources that are asked again and again."""

from __future__ import annotations

import json
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.locations import ARRIVAL, END, MARKS
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.files import (
    FILES_AT_ONCE,
    EventFile,
    Raw,
    check_fields,
    check_unchanged,
    files_with,
    format_of,
    parts_of,
    read_file,
    usable,
)
from privstream.pipelines.sources.formats import Damage, InputFileError
from privstream.pipelines.stores import filesystems, is_glob, join, scheme_of
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, MILLISECOND

EVENTS = "events"


def read_by(read: Callable[[Any, Readings], Raw], found: Any, label: str, fields: Readings) -> Any:
    """Return what a function reads of elements, which have a path: `events` in batches, and `dead_letters`."""
    typed = beam.FlatMap(usable, read, fields).with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter})
    return found | label >> typed.with_outputs(DEAD_LETTERS, main=EVENTS)


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

    def __init__(self, pattern: str, fields: Readings, format: str | None = None) -> None:
        super().__init__()
        self.fields, self.files = fields, files_with(fields, pattern, format)

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

    def __init__(self, parts: Sequence[EventFile], fields: Readings) -> None:
        super().__init__()
        self.parts, self.fields = parts, fields

    def expand(self, pbegin: Any) -> Any:
        """Read the parts."""
        parts = pbegin | "List parts" >> beam.Create(self.parts).with_output_types(EventFile)
        return read_by(read_file, parts | "Spread parts" >> beam.Reshuffle(), "Read parts", self.fields)


class Polled(NamedTuple):
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
    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Polled:
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
        self, pattern: str, fields: Readings, format: str | None = None, *, seconds: float, watermark: str = ARRIVAL
    ) -> None:
        super().__init__()
        self.seconds, self.watermark = seconds, watermark
        self.pattern, self.format, self.fields = pattern, format, fields
        if (listing := list_folder(pattern)) is None:
            raise InputFileError(f"--input must be a folder that can be listed, to be watched, got {pattern}")
        there = [seen for seen in listing if not seen.is_mark and seen.size]
        refused: list[Exception] = []
        for seen in sorted(there):
            try:
                check_fields(EventFile(seen.path, seen.size, format_of(seen.path, format)), fields)
                break  # options are right by which one of the files that are there at launch can be used
            except (ValueError, TypeError) as error:
                refused.append(error)
        else:
            if refused:
                raise refused[0]

    def expand(self, pbegin: Any) -> Any:
        """Poll the folder, and read files side by side."""
        folder = PollFolder(self.pattern, self.format, self.seconds, self.watermark)
        found = poll_parts(pbegin, [b"folder"], folder, EventFile)
        return read_by(read_watched, found | "Spread files" >> beam.Reshuffle(), "Read files", self.fields)


class PollFolder(PolledSource):
    """Gives an `EventFile` for each file that has come."""

    def __init__(self, pattern: str, format: str | None, seconds: float, watermark: str) -> None:
        super().__init__(seconds)
        self.pattern, self.format, self.by_marks = pattern, format, watermark == MARKS

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Polled:
        """List the folder once; when the folder cannot be listed, nothing is known and time stands still."""
        polls, began = FolderPolls(*json.loads(position or b"[]")), Timestamp.now().micros
        listing = list_folder(self.pattern)
        if listing is None:
            counter("listings_failed").inc()
            return Polled((), polls.to_bytes(), watermark)
        found, reached = polls.poll(listing, began)
        counter("files_taken").inc(len(found))
        counter("files_changed").inc(polls.changed)
        files = []
        for seen in found:
            marks = [mark.until for mark in listing if mark.came < seen.came]  # that nothing before is missing
            arrived = max(marks, default=0) if self.by_marks else seen.came
            files.append((EventFile(seen.path, seen.size, self.format or ""), arrived))
        return Polled(files, polls.to_bytes(), polls.until if self.by_marks and reached is not None else reached)


def read_watched(element: EventFile, fields: Readings) -> Raw:
    """Read a file that has come; what cannot be read any further is damage."""
    if not element.size:
        return
    try:
        file = element._replace(format=format_of(element.path, element.format))
        check_unchanged(file)
        check_fields(file, fields)
        for part in parts_of(file):
            yield from read_file(part, fields)
    except (ValueError, TypeError) as error:  # what the file breaks as a whole: it quotes no record
        counter("files_unreadable").inc()
        yield Damage("", str(error), "", by=())


UNTIL = re.compile(r"_UNTIL_(\d{8}T\d{6}Z)")
KEPT_SECONDS = 3600  # a file that is gone is remembered so long, in case a listing was incomplete


class Seen(NamedTuple):
    """A file in a listing: its path, bytes, time of change, and when it came, both in microseconds since 1970."""

    path: str
    size: int
    changed: int
    came: int

    @property
    def name(self) -> str:
        """The name without the folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_mark(self) -> bool:
        """Whether its name alone says something."""
        return self.name.startswith("_")

    @property
    def stamp(self) -> str:
        """What changes with the file."""
        return f"{self.size} {self.changed}"

    @property
    def until(self) -> int:
        """The time that it names, if it is a mark, in microseconds; else 0."""
        with suppress(ValueError):
            if found := UNTIL.fullmatch(self.name):
                return int(datetime.strptime(found[1], "%Y%m%dT%H%M%S%z").timestamp()) * MICROS
        return 0


@dataclass
class FolderPolls:
    """What has been taken of a watched folder, and what was seen at the last poll.

    Each file is taken once, in the order in which they came, when two polls have found it with the same size and time
    of change. A mark, `_END` (no file will come any more) or `_UNTIL_20300101T120000Z` (no event before that time),
    counts when every file that came before it has been taken.
    """

    taken: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name -> its stamp, and since when it is gone (seconds; 0 while it is there)."""

    waiting: dict[str, str] = field(default_factory=dict)  # name -> stamp, of what the last poll saw and did not take
    until: int = 0  # the watermark that the marks allow, in microseconds
    changed: int = 0  # number of files that have changed after they were taken

    def poll(self, listing: Sequence[Seen], now: int) -> tuple[list[Seen], int | None]:
        """Take what has come, by a listing that began at `now`, in microseconds since 1970.

        Returns:
            The files to read, in order, and until when everything that came has been taken; None at the end.
        """
        there = {seen.name: seen for seen in listing}
        self._forget(there, now // MICROS)
        self.changed = sum(name in self.taken and self.taken[name][0] != seen.stamp for name, seen in there.items())
        new = [seen for name, seen in there.items() if name not in self.taken]
        waits = [seen.came for seen in new if self.waiting.get(seen.name) != seen.stamp and not seen.is_mark]
        held = min(waits, default=None)
        ready = [seen for seen in new if self.waiting.get(seen.name) == seen.stamp]
        files = [seen for seen in ready if not seen.is_mark]
        marks = [seen for seen in ready if seen.is_mark and (held is None or seen.came < held)]
        took = {seen.name: (seen.stamp, 0) for seen in (*files, *marks)}
        self.waiting = {seen.name: seen.stamp for seen in new if seen.name not in took}
        self.taken |= took
        self.until = max([self.until, *(mark.until for mark in marks)])
        ended = any(mark.name == END for mark in marks)
        reached = None if ended else now if held is None else min(now, held)
        return sorted(files, key=lambda seen: (seen.came, seen.path)), reached

    def _forget(self, there: dict[str, Seen], now: int) -> None:
        """Forget names that have been gone for long; a name that was gone and is back is a new file."""
        for name, (stamp, gone) in list(self.taken.items()):
            back = gone and name in there and there[name].stamp != stamp
            if back or (gone and name not in there and now - gone >= KEPT_SECONDS):
                del self.taken[name]
            else:
                self.taken[name] = (stamp, 0 if name in there else gone or now)

    def to_bytes(self) -> bytes:
        """Return the state: the first three fields as JSON."""
        return json.dumps([self.taken, self.waiting, self.until], sort_keys=True).encode()


def list_folder(pattern: str) -> list[Seen] | None:
    """List the files of a folder, or those that a glob matches except the marks; None if that failed."""
    folder, glob = split_pattern(pattern)
    if scheme_of(folder) is None and not os.path.isdir(folder):
        return None
    try:
        listed = filesystems().match([join(folder, glob), join(folder, "_*")])
    except OSError:
        return None
    found = {file.path: file for each in listed for file in each.metadata_list}
    return [seen for file in found.values() if (seen := _seen(file)) is not None]


def split_pattern(pattern: str, option: str = "--input") -> tuple[str, str]:
    """Split what is watched into a folder and a glob for the names in it."""
    if not is_glob(pattern):
        return pattern, "*"
    folder, _, glob = pattern.rpartition("/")
    if is_glob(folder):
        raise ValueError(f"{option} must be a folder, or a folder and a glob for its files, got {pattern}")
    return folder or os.curdir, glob


def _seen(file: Any) -> Seen | None:
    """Describe a file or a mark; None for other names, and if it has just gone.

    On a local disk a file came when it was last written, renamed or linked; elsewhere when it was last changed.
    """
    name = file.path.rpartition("/")[2]
    if name.startswith((".", "_")) and name != END and UNTIL.fullmatch(name) is None:
        return None
    if scheme_of(file.path) is not None:
        changed = int(file.last_updated_in_seconds * MICROS)
        return Seen(file.path, file.size_in_bytes, changed, changed)
    try:
        status = os.stat(file.path)
    except OSError:
        return None
    return Seen(file.path, status.st_size, status.st_mtime_ns // 1000, status.st_ctime_ns // 1000)
