"""Reads event files as they come into a folder, without an end."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from privstream.mechanisms import checks
from privstream.pipelines.locations import ARRIVAL, CLOCKS, MARKS
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.folder_polls import FolderPolls, check_watched, list_folder, marked
from privstream.pipelines.sources.found_files import EventFile, FilePart, check_file, format_of, parts_of
from privstream.pipelines.sources.normalise import dead_letter
from privstream.pipelines.sources.polled_source import Answer, PolledSource, poll_parts
from privstream.pipelines.sources.readers import EventsRead, ReadPart, read_by
from privstream.pipelines.sources.steady_clock import clock_of
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter

FOLDER = b"folder"
ATTEMPTS = 3
PAUSE_SECONDS = 0.5
UNREADABLE = (InputFileError, ValueError, TypeError, OSError, BeamIOError, pa.ArrowException)
"""What a file can do to its reader; anything else is a fault of the reader and ends the run."""


class WatchEvents(beam.PTransform[Any, Any]):
    """Reads files that come into a folder, each once, as `ReadEvents` does.

    Files are taken in the order in which they came, each when two polls have found it unchanged, and should get their
    name when they are complete. What has been taken is kept with the state of the pipeline: two numbers for each file
    that is there. So old files should be removed now and then, but only when the run could no longer have to go back
    to them. A name must not be used again while a file of that name is there.

    The watermark comes from `watermark`:

    - `arrival`: it is the time of day (as `SteadyClock` has it), held back by files that came and have not been taken.
      An event is in time if its file comes before its window is decided, so the allowed lateness of a transform must
      cover the way of an event into a complete file. A folder to which nothing comes holds nothing back.
    - `marks`: whoever writes the files says how far they are complete, by an empty file `_UNTIL_20300101T120000Z`: no
      event before that time will come. This is for the past, or for a clock that is not the time of day.

    A file `_END` ends the stream when all files before it have been taken. A file that cannot be read, is gone or has
    grown when its turn comes, or whose fields differ in a way that matters is one dead letter; the run goes on.
    Counters as `ReadEvents`, and `files_taken`, `files_unreadable`, `files_changed` (polls that found a file changed
    after it was taken; it is not read again), `listings_failed`.

    *Privacy*: the times at which files come, and their names, must not depend on single persons. The watermark never
    follows the times of events, so no one person's event decides when a window closes, or whether others are late.

    Args:
        pattern: a folder on any of Beam's filesystems, or a folder and a glob for the names in it.
        fields: which fields contain what.
        format: avro, parquet, jsonl, csv or xlsx; by the ending of each path if None.
        seconds: pause between two polls, > 0.
        watermark: arrival or marks.

    Raises:
        InputFileError, ValueError, TypeError: at once, if there is no such folder, or none of its files can be used.
    """

    def __init__(
        self,
        pattern: str,
        fields: AnyFields | None = None,
        format: str | None = None,
        *,
        seconds: float = 1.0,
        watermark: str = ARRIVAL,
    ) -> None:
        super().__init__()
        self.seconds = checks.positive("watch", seconds)
        self.watermark = checks.one_of("watermark", watermark, CLOCKS)
        check_watched(pattern)
        self.pattern = pattern
        self.format = format
        self.files = self._there()
        self.fields = fields or FieldMapping()
        self._check_one()

    def expand(self, pbegin: Any) -> EventsRead:
        """Poll the folder, and read the parts of files side by side."""
        folder = PollFolder(self.pattern, self.format, self.seconds, self.watermark)
        found = poll_parts(pbegin, [FOLDER], folder, EventFile)
        typed = beam.ParDo(_CutFile()).with_output_types(FilePart, **{DEAD_LETTERS: DeadLetter})
        cut = found | "Cut into parts" >> typed.with_outputs(DEAD_LETTERS, main="parts")
        spread = cut.parts | "Spread file parts" >> beam.Reshuffle()
        read = read_by(_ReadWatchedPart(self.fields), spread, "Read parts")
        return read._replace(dead_letters=(cut[DEAD_LETTERS], read.dead_letters) | "Unread" >> beam.Flatten())

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"pattern": self.pattern, "seconds": self.seconds, "watermark": self.watermark}

    def _there(self) -> list[EventFile]:
        """Return the files of events that are there at launch."""
        listing = list_folder(self.pattern)
        if listing is None:
            raise InputFileError(f"--input must be readable: cannot list {self.pattern}")
        paths = [seen for seen in listing if not seen.name.startswith("_") and seen.size]
        return sorted(EventFile(seen.path, seen.size, self.format or "") for seen in paths)

    def _check_one(self) -> None:
        """Raise if there are files and none of them can be used: then the options are wrong, and not a file."""
        refused: list[Exception] = []
        for file in self.files:
            try:
                return check_file(file._replace(format=file.format or format_of(file.path)), self.fields)
            except UNREADABLE as error:
                refused.append(error)
        if refused:
            raise refused[0]


class PollFolder(PolledSource):
    """Gives an `EventFile` for each file that has come.

    A watermark that follows arrival stays `behind` by so many microseconds.
    """

    def __init__(self, pattern: str, format: str | None, seconds: float, watermark: str, behind: int = 0) -> None:
        super().__init__(seconds)
        self.pattern = pattern
        self.format = format
        self.watermark = watermark
        self.behind = behind
        self.taken = Metrics.counter("privstream", "files_taken")
        self.changed = Metrics.counter("privstream", "files_changed")
        self.failed = Metrics.counter("privstream", "listings_failed")

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """List the folder once; when the folder cannot be listed, nothing is known and time stands still."""
        polls = FolderPolls.from_bytes(position)
        clock = clock_of(self.pattern)
        now = clock.now()
        listing = list_folder(self.pattern)
        if listing is None:
            self.failed.inc()
            return Answer((), polls.to_bytes(), watermark)
        found, reached = polls.poll(listing, now)
        for seen in found:
            clock.at_least(seen.came)
        self.taken.inc(len(found))
        self.changed.inc(polls.changed)
        by_marks = self.watermark == MARKS
        came = [marked(listing, seen.came) if by_marks else seen.came for seen in found]
        files = [EventFile(seen.path, seen.size, self.format or "", seen.came) for seen in found]
        if reached is not None:
            reached = polls.until if by_marks else reached - self.behind
        return Answer(list(zip(files, came, strict=True)), polls.to_bytes(), reached)


class TakeFile(beam.DoFn):
    """Gives what is in a file, all of it, or says why not."""

    def __init__(self) -> None:
        self.unreadable = Metrics.counter("privstream", "files_unreadable")

    @abstractmethod
    def take(self, file: EventFile) -> Iterable[Any]:
        """Give what is in a file that has not changed."""

    def process(self, element: EventFile) -> Iterator[Any]:
        """Try until it works, a few times."""
        for attempt in range(ATTEMPTS):
            try:
                found = list(self.take(element))
            except UNREADABLE as error:
                if attempt + 1 < ATTEMPTS:
                    time.sleep(PAUSE_SECONDS)
                    continue
                self.unreadable.inc()
                yield TaggedOutput(DEAD_LETTERS, dead_letter(worded(error, element.path), element.path))
                return
            yield from found
            return


class _CutFile(TakeFile):
    """Cuts a file into parts."""

    def take(self, file: EventFile) -> Iterable[FilePart]:
        """Cut it."""
        format = file.format or format_of(file.path)
        check_as_found(file.path, file.size)
        return parts_of(file._replace(format=format)) if file.size else ()


class _ReadWatchedPart(ReadPart):
    """Reads one part; what cannot be read any further becomes a dead letter."""

    unchanged = False  # it looks for itself

    def __init__(self, fields: AnyFields) -> None:
        super().__init__(fields)
        self.unreadable = Metrics.counter("privstream", "files_unreadable")

    def process(self, element: FilePart) -> Iterator[Any]:
        """Read a part."""
        try:
            check_as_found(element.path, element.size)
            yield from super().process(element)
        except UNREADABLE as error:
            self.unreadable.inc()
            position = f"from {element.start} to {element.end}"
            yield TaggedOutput(DEAD_LETTERS, dead_letter(worded(error, element.path), element.path, position))


def check_as_found(path: str, size: int) -> None:
    """Raise if a file is gone, or has other bytes than when it was found."""
    try:
        found = FileSystems.get_filesystem(path).size(path)
    except BeamIOError:
        raise InputFileError("file must stay until it has been read") from None
    if found != size:
        raise InputFileError(f"file must not change after it has come: it had {size} bytes")


def worded(error: Exception, path: str) -> str:
    """Word an error without quoting what is in the file: in our own words, or by its kind."""
    own = isinstance(error, InputFileError) or type(error) in (ValueError, TypeError)
    return str(error) if own and "\n" not in str(error) else f"{path} must be readable ({type(error).__name__})"
