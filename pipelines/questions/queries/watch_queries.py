"""Reads queries as they come into a folder, without an end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from privstream.mechanisms import checks
from privstream.pipelines.questions.queries.queries_file import QUERIES, QueriesRead, ReadLines
from privstream.pipelines.sources.folder_polls import ARRIVAL, CLOCKS, MARKS, MICROS, check_watched
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.sources.polled_source import poll_parts
from privstream.pipelines.sources.watch_events import FOLDER, PollFolder, TakeFile, check_as_found
from privstream.transforms import DeadLetter, LinearQuery
from privstream.transforms.events.dead_letters import DEAD_LETTERS

BEHIND = 2 * MICROS
"""What the time of day is ahead of the watermark: as coarse as the times of files may be."""


class WatchQueries(beam.PTransform[Any, Any]):
    """Reads files of queries, JSON lines as `ReadQueries` takes, that come into a folder, each once.

    A query without a time is asked when its file came, and as many microseconds later as its line's number: that is
    the same in a run that goes back to a checkpoint and reads the file again, as long as the file is left as it is. A
    query whose own time is before its file came is late; one whose time is later waits for it. With the watermark
    `marks` each query has a time, not before the last mark that came before its file.

    A file that cannot be read to its end is one dead letter and asks nothing. Files are taken, and the watermark moves,
    as `WatchEvents` says, but `arrival` stays two seconds behind the time of day.

    Args:
        pattern: a folder on any of Beam's filesystems, or a folder and a glob for the names in it.
        seconds: pause between two polls, > 0.
        watermark: arrival or marks.

    Raises:
        ValueError, TypeError: at once, naming the option.
    """

    def __init__(self, pattern: str, seconds: float, watermark: str = ARRIVAL) -> None:
        super().__init__()
        self.seconds = checks.positive("watch", seconds)
        self.watermark = checks.one_of("watermark", watermark, CLOCKS)
        check_watched(pattern, "--queries")
        self.pattern = pattern

    def expand(self, pbegin: Any) -> QueriesRead:
        """Poll the folder, and read them where they are found."""
        folder = PollFolder(self.pattern, "jsonl", self.seconds, self.watermark, BEHIND)
        read = beam.ParDo(ReadQueriesFile(timed=self.watermark == MARKS))
        outputs = poll_parts(pbegin, [FOLDER], folder, EventFile) | "Read lines" >> read.with_output_types(
            LinearQuery, **{DEAD_LETTERS: DeadLetter}
        ).with_outputs(DEAD_LETTERS, main=QUERIES)
        return QueriesRead(outputs[QUERIES], outputs[DEAD_LETTERS])

    def display_data(self) -> dict[str, Any]:
        """Show where queries come from."""
        return {"pattern": self.pattern, "seconds": self.seconds, "watermark": self.watermark}


class ReadQueriesFile(TakeFile):
    """Reads one file; if `timed`, each query must have a time."""

    def __init__(self, timed: bool) -> None:
        super().__init__()
        self.timed = timed
        self.lines = ReadLines()

    def take(self, file: EventFile) -> Iterable[Any]:
        """Read all lines."""
        check_as_found(file.path, file.size)
        return self.lines.read(file.path, None if self.timed else file.came)
