"""Writes simulated events and their truth."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.simulate.streams import EVENT_SCHEMA
from privstream.pipelines.sinks.row_files import output_format, write_row_file
from privstream.pipelines.sinks.whole_files import check_destination, whole_file

ROW_GROUP_ROWS = 1 << 19

AVRO_SCHEMA = {
    "type": "record",
    "name": "Event",
    "namespace": "privstream",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}

Write = Callable[[pa.RecordBatch], None]
Window = TypeVar("Window", bound="EventWindow")


class EventWindow(Protocol):
    """Simulated events of one window."""

    @property
    def events(self) -> pa.RecordBatch:
        """Columns `user`, `item` and `time`, in the order of time."""
        ...


class ItemHolders(NamedTuple):
    """How many different people had an item in a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    holders: int


class Written(NamedTuple):
    """What a simulation has written."""

    events: int
    windows: int


def item_holders(window: Any) -> Iterator[ItemHolders]:
    """Return how many people had each item of a `SimulatedWindow`, the most frequent item first."""
    start, end = Timestamp(micros=window.start), Timestamp(micros=window.end)
    for item, holders in sorted(window.holders.items(), key=lambda pair: (-pair[1], pair[0])):
        yield ItemHolders("", start, end, item, holders)


def write_simulation(
    path: str,
    windows: Iterable[Window],
    truth: str | None = None,
    progress: Callable[[int], None] | None = None,
    *,
    truth_type: type = ItemHolders,
    truth_of: Callable[[Window], Iterable[Any]] = item_holders,
) -> Written:
    """Write a simulated stream as one file, and its truth as another.

    Args:
        path: the events; ends in .avro, .parquet, .jsonl or .csv.
        windows: each with its `events`; one is in memory at a time.
        truth: the truth about the windows; ends in .avro, .parquet or .jsonl.
        progress: called after each window with the number of windows written.
        truth_type: the NamedTuple that the truth consists of.
        truth_of: returns the rows of truth about one window.

    Raises:
        ValueError: a path cannot be written, before anything is simulated.
    """
    ending = path.rpartition(".")[2].lower()
    if ending not in WRITERS:
        raise ValueError(f"--output must end in {', '.join('.' + known for known in WRITERS)}, got {path}")
    check_destination(path)
    if truth is not None:
        output_format(truth, option="--truth")
        check_destination(truth, "--truth")
    rows: list[Any] = []
    events = done = 0
    with whole_file(path) as stream, WRITERS[ending](stream) as write:
        for window in windows:
            write(window.events)
            events += window.events.num_rows
            done += 1
            if truth is not None:
                rows += truth_of(window)
            if progress:
                progress(done)
    if truth is not None:
        write_row_file(truth, truth_type, rows)
    return Written(events, done)


@contextmanager
def _avro(stream: BinaryIO) -> Iterator[Write]:
    """Write Avro by fastavro, without ever making a `datetime`."""
    writer = fastavro.write.Writer(stream, AVRO_SCHEMA, codec="deflate", compression_level=1)

    def write(batch: pa.RecordBatch) -> None:
        columns = [batch["user"].to_pylist(), batch["item"].to_pylist(), batch["time"].cast(pa.int64()).to_pylist()]
        for user, item, time in zip(*columns, strict=True):
            writer.write({"user": user, "item": item, "time": time})

    yield write
    writer.flush()


@contextmanager
def _parquet(stream: BinaryIO) -> Iterator[Write]:
    """Write Parquet, in row groups that are large whatever the windows are."""
    with pq.ParquetWriter(stream, EVENT_SCHEMA) as writer:
        waiting: list[pa.RecordBatch] = []

        def flush() -> None:
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP_ROWS)
                waiting.clear()

        def write(batch: pa.RecordBatch) -> None:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= ROW_GROUP_ROWS:
                flush()

        yield write
        flush()


@contextmanager
def _jsonl(stream: BinaryIO) -> Iterator[Write]:
    """Write JSON lines; the names that are simulated need no escapes."""

    def write(batch: pa.RecordBatch) -> None:
        parts: list[Any] = ['{"user": "', batch["user"], '", "item": "', batch["item"], '", "time": "']
        parts += [_iso_8601(batch["time"]), '"}\n', ""]
        lines = pc.binary_join_element_wise(*parts)
        stream.write(pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")[0].as_buffer())

    yield write


@contextmanager
def _csv(stream: BinaryIO) -> Iterator[Write]:
    """Write CSV with a header."""
    schema = EVENT_SCHEMA.set(2, pa.field("time", pa.string()))
    with pa_csv.CSVWriter(stream, schema) as writer:

        def write(batch: pa.RecordBatch) -> None:
            columns = [batch["user"], batch["item"], _iso_8601(batch["time"])]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

        yield write


def _iso_8601(times: pa.Array) -> pa.Array:
    """Write times as text."""
    return pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ")


WRITERS = {"avro": _avro, "parquet": _parquet, "jsonl": _jsonl, "csv": _csv}
