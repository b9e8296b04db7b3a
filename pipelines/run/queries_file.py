"""Linear queries as JSON lines, in a file or in files that come without an end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.locations import ARRIVAL, CLOCKS, MARKS
from privstream.pipelines.model.continual import WATCHED
from privstream.pipelines.model.data import Data
from privstream.pipelines.model.public_lists import AS_UTF_8, Reading
from privstream.pipelines.sinks.row_files import whole_file
from privstream.pipelines.sources.event_files import Damage, InputFileError, open_file
from privstream.pipelines.sources.found_files import EventFile, check_unchanged, check_watched, split_pattern
from privstream.pipelines.sources.text_lines import REASON, parse_line, read_lines
from privstream.pipelines.sources.watch_events import FOLDER, PollFolder, TakeFile, check_as_found, poll_parts
from privstream.pipelines.stores import facts_of
from privstream.transforms import DeadLetter, LinearQuery
from privstream.transforms.reading.fields import DEAD_LETTERS
from privstream.transforms.reading.times import TimeForm, read_micros
from privstream.transforms.timing.steps import MICROS
from typing_extensions import override

FIELDS = ("name", "items", "time")
QUERIES = "queries"


class QueriesRead(NamedTuple):
    """The queries of a file, called as what all readers give, and the lines that are none."""

    events: PCollection[Any]
    dead_letters: PCollection[Any]


class ReadQueries(beam.PTransform[Any, Any]):
    """Reads `LinearQuery` rows from a file of JSON lines.

    A query has a `name`, `items`, and perhaps a `time` (ISO 8601, UTC if it names no zone). A query
    without a time gets its line number in microseconds since 1970: such queries are asked in the order of their lines.

    Args:
        path: the file, on any of Beam's filesystems.
        reading: how its text is read.

    Raises:
        ValueError: at once, if there is no such file.
    """

    def __init__(self, path: str, reading: Reading = AS_UTF_8) -> None:
        super().__init__()
        self.reading = reading
        try:
            open_file(path).close()
            found = facts_of(path)
            self.file = EventFile(path, found.size, "jsonl", marks=found.marks)
        except InputFileError as error:
            raise ValueError(f"--queries must be a readable file: {error}") from None

    @override
    def expand(self, pbegin: Any) -> QueriesRead:
        read = beam.ParDo(ReadLines(self.reading)).with_output_types(LinearQuery, **{DEAD_LETTERS: DeadLetter})
        outputs = (
            pbegin
            | "File" >> beam.Create([self.file]).with_output_types(EventFile)
            | "Read lines" >> read.with_outputs(DEAD_LETTERS, main=QUERIES)
        )
        return QueriesRead(outputs[QUERIES], outputs[DEAD_LETTERS])


class ReadLines(beam.DoFn):
    """Reads one file; lines that are no queries become dead letters."""

    def __init__(self, reading: Reading = AS_UTF_8) -> None:
        self.reading = reading
        self.malformed = Metrics.counter("privstream", "queries_malformed")

    @override
    def process(self, element: EventFile) -> Iterator[Any]:
        check_unchanged(element)
        yield from self.read(element.path, 0)
        check_unchanged(element)

    def read(self, path: str, start: int | None) -> Iterator[Any]:
        """Read all lines; a query without a time is asked so many microseconds after `start` as is its line's number.

        Without a `start`, each must have a time.
        """
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                yield self._refuse(DeadLetter(lines.reason, path, lines.position, lines.record))
                continue
            for row, text in enumerate(lines.texts):
                try:
                    query = parse_query(text, None if start is None else start + lines.numbers[row])
                    yield query._replace(items=tuple(map(self.reading.spelling.item, query.items)))
                except (TypeError, ValueError) as error:
                    yield self._refuse(DeadLetter(str(error), path, lines.position(row), lines.record(row)))

    def _refuse(self, letter: DeadLetter) -> Any:
        """Count a line and send it away."""
        self.malformed.inc()
        return TaggedOutput(DEAD_LETTERS, letter)


def parse_query(text: bytes, asked: int | None) -> LinearQuery:
    """Return the query on a line, or raise with the rule that it breaks.

    Args:
        text: the line.
        asked: microseconds since 1970 at which it is asked if it has no time; None if it must have one.
    """
    found = parse_line(text)
    if found is None:
        raise ValueError(REASON)
    unknown = sorted(set(found) - set(FIELDS))
    if unknown:
        raise ValueError(f"fields must be {', '.join(FIELDS)}, got {', '.join(map(repr, unknown))}")
    if not isinstance(found.get("items", []), list):
        raise TypeError("items must be a list")
    if "time" not in found and asked is None:
        raise ValueError("time must be given with --watermark marks")
    micros = read_micros("time", found["time"], TimeForm()) if "time" in found else asked
    return LinearQuery(found.get("name", ""), Timestamp(micros=micros), tuple(found.get("items", ())))


def write_queries(path: str, queries: Iterable[LinearQuery]) -> None:
    """Write queries in their order, without a time."""
    with whole_file(path) as stream:
        for query in queries:
            given = {"name": query.name, "items": list(query.items)}
            stream.write(json.dumps(given, ensure_ascii=False).encode() + b"\n")


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
        reading: how their text is read.

    Raises:
        ValueError, TypeError: at once, naming the option.
    """

    def __init__(self, pattern: str, seconds: float, watermark: str = ARRIVAL, reading: Reading = AS_UTF_8) -> None:
        super().__init__()
        self.reading = reading
        self.seconds = checks.positive("watch", seconds)
        self.watermark = checks.one_of("watermark", watermark, CLOCKS)
        check_watched(pattern, "--queries")
        self.pattern = pattern

    @override
    def expand(self, pbegin: Any) -> QueriesRead:
        folder = PollFolder(self.pattern, "jsonl", self.seconds, self.watermark, BEHIND)
        read = beam.ParDo(ReadQueriesFile(self.watermark == MARKS, self.reading))
        outputs = poll_parts(pbegin, [FOLDER], folder, EventFile) | "Read lines" >> read.with_output_types(
            LinearQuery, **{DEAD_LETTERS: DeadLetter}
        ).with_outputs(DEAD_LETTERS, main=QUERIES)
        return QueriesRead(outputs[QUERIES], outputs[DEAD_LETTERS])

    @override
    def display_data(self) -> dict[str, Any]:
        return {"pattern": self.pattern, "seconds": self.seconds, "watermark": self.watermark}


class ReadQueriesFile(TakeFile):
    """Reads one file; if `timed`, each query must have a time."""

    def __init__(self, timed: bool, reading: Reading) -> None:
        super().__init__()
        self.timed = timed
        self.lines = ReadLines(reading)

    @override
    def take(self, file: EventFile) -> Iterable[Any]:
        check_as_found(file.path, file.size)
        return list(self.lines.read(file.path, None if self.timed else file.came))


def readers(queries: str, data: Data, reading: Reading) -> dict[str, Any]:
    """Return what reads the queries.

    Raises:
        ValueError, TypeError: naming the option.
    """
    if data.watch is None:
        return {WATCHED: ReadQueries(queries, reading)}
    folder = split_pattern(queries, "queries")[0]
    if os.path.realpath(os.path.dirname(data.input)) == os.path.realpath(folder):
        raise ValueError(f"queries must be another folder than that of input, got {folder}")
    return {WATCHED: WatchQueries(queries, data.watch, data.watermark or ARRIVAL, reading)}
