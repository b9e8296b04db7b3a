"""What writes rows: one file of a bounded run; of streaming input a file for each window, dead letters as they come.

From files rows may be sent to a table, a topic or a web address, which may be away for a while.
"""

from __future__ import annotations

import fcntl
import os
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import AsIter
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.command import UsageError
from privstream.pipelines.locations import END
from privstream.pipelines.sinks.row_files import (
    COMPLETE,
    json_objects,
    output_format,
    plain_table,
    read_table,
    shape_of,
    sort_table,
    write_rows,
)
from privstream.pipelines.stores import check_destination, exists, join, scheme_of, whole_file, write_once
from privstream.pipelines.terminal import json_text
from privstream.transforms.batches import from_stream, to_stream
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import EPOCH, DeadLetter
from privstream.transforms.row_types import ENDED
from privstream.transforms.timing.steps import MICROS, MILLISECOND
from typing_extensions import override

MOST_TOGETHER = 1000  # rows in one element: a runner spends more on an element than a file on a row


class WriteRows(beam.PTransform[Any, Any]):
    """Writes all rows of a bounded collection as one file, also when there are none.

    The file gets its name only when it is complete; a run that fails leaves whatever was there before. Results are
    small, so one worker writes them; rows with an item are held in memory, dead letters are not.

    Args:
        order: fields to sort by, `-` before a name for falling numbers; empty keeps the order in which rows come.
    """

    def __init__(
        self,
        path: str,
        row_type: type,
        *,
        order: Sequence[str] = (),
        option: str = "output",
        owner_only: bool = False,
    ) -> None:
        super().__init__()
        self.row_type = row_type
        format = output_format(path, option)
        check_destination(path, option)
        shape_of(row_type)  # rows that cannot be written are refused before the run
        self.arguments: dict[str, Any] = {"path": path, "format": format, "row_type": row_type}
        self.arguments |= {"order": tuple(order), "owner_only": owner_only}

    @override
    def expand(self, rows: Any) -> Any:
        def encoded(rows: Iterable[Any], row_type: Any = self.row_type) -> bytes:
            return to_stream(plain_table(row_type, rows))

        if not rows.windowing.is_default():
            rows = rows | "Into one window" >> beam.WindowInto(GlobalWindows())
        parts = (  # without their schema, which Flink cannot hand to a side input in streaming mode
            rows
            | "Plain" >> beam.Map(tuple).with_output_types(Any)
            | "Together" >> beam.BatchElements(min_batch_size=MOST_TOGETHER, max_batch_size=MOST_TOGETHER)
            | "Encoded" >> beam.Map(encoded).with_output_types(bytes)
        )
        return (
            rows.pipeline
            | "Once" >> beam.Impulse()
            | "Write file" >> beam.Map(write_parts, AsIter(parts), **self.arguments)
        )


def write_parts(
    impulse: bytes,
    parts: Iterable[bytes],
    path: str,
    format: str,
    row_type: Any,
    order: Sequence[str],
    owner_only: bool,
) -> None:
    """Write the file of a pipeline from Arrow streams of rows, and count that it is complete."""
    tables: Iterable[pa.Table] = map(from_stream, parts)
    if order or shape_of(row_type).item is not None:
        found = [*map(from_stream, sorted(parts))]
        table = pa.concat_tables(found, promote_options="default") if found else plain_table(row_type, ())
        tables = [sort_table(table, order) if order else table]
    with whole_file(path, owner_only=owner_only) as stream:
        write_rows(stream, row_type, tables, format)
    counter(COMPLETE).inc()


class WriteReleased(beam.PTransform[Any, Any]):
    """Writes what a run over files releases, of which a view makes rows, as one Parquet file in the order of the keys.

    It comes as pairs of an encoded `StepKey` and an Arrow stream, with times in microseconds.
    """

    def __init__(self, path: str, row_type: type) -> None:
        super().__init__()
        check_destination(path)
        self.arguments = {"path": path, "schema": shape_of(row_type).schema}

    @override
    def expand(self, tables: Any) -> Any:
        once = tables.pipeline | "Once" >> beam.Impulse()
        return once | "Write file" >> beam.Map(write_released, AsIter(tables), **self.arguments)


def write_released(impulse: bytes, tables: Iterable[tuple[bytes, bytes]], path: str, schema: pa.Schema) -> None:
    """Write the file, and count that it is complete."""
    found = [from_stream(data) for _, data in sorted(tables)] or [schema.empty_table()]
    with whole_file(path) as stream:
        pq.write_table(pa.concat_tables(found).cast(schema), stream)
    counter(COMPLETE).inc()


class WriteWindowFiles(beam.PTransform[Any, Any]):
    """Writes the rows of each window as one file, such as `20300101T120000Z_20300101T130000Z.jsonl`.

    Rows that are published after a later window than their own, as their timestamps say, are in the file of that one.
    All rows of a window must have the same timestamp. A file that has its name is complete and stays as it is: a run
    that goes back to a checkpoint publishes no second answer. Windows without rows have no file. When the input has
    ended, an empty file `_END` says so. Gives the paths of files, once they are written and their rows are sent.

    Metrics: `window_latency_ms`, from the end of a window to its file; and counters:
    `window_files_written`, `.._repeated` (there already, with the same bytes), `.._refused` (with others).

    Args:
        row_type: a NamedTuple as `WriteRows` takes, with `window_start` and `window_end`.
        destinations: where the rows of each file are sent, too, once it is there.
    """

    def __init__(
        self,
        folder: str,
        row_type: type,
        format: str,
        order: Sequence[str] = (),
        *,
        destinations: Sequence[Destination] = (),
    ) -> None:
        super().__init__()
        self.folder, self.row_type, self.format, self.destinations = folder, row_type, format, destinations
        named = {name.removeprefix("-") for name in order}  # with all others equal rows give equal bytes
        self.order = (*order, *(name for name in shape_of(row_type).fields if name not in named))
        check_folder(folder)

    @override
    def expand(self, rows: Any) -> Any:
        one_moment = FixedWindows(Duration(micros=MILLISECOND))
        written = (
            rows
            | "By window" >> beam.Map(_by_window)
            | "Moment" >> beam.WindowInto(one_moment, trigger=DefaultTrigger(), accumulation_mode=DISCARDING)
            | "Gather" >> beam.GroupByKey()
            | "Write file" >> beam.Map(_write_window, self.folder, self.row_type, self.format, self.order)
        )
        if self.destinations:  # what is in the files is final: a run that comes again sends the same rows
            written = written | "Send" >> beam.Map(send_file, self.destinations)
        keyed = tuple[bytes, bytes]
        nothing = written | "Leave out" >> beam.FlatMap(lambda path: ()).with_output_types(keyed)
        one = written.pipeline | "Once" >> beam.Impulse() | beam.Map(lambda _: (b"", b"")).with_output_types(keyed)
        _ = (
            (nothing | "Whenever" >> WHENEVER(trigger=AfterWatermark()), one)
            | "Both" >> beam.Flatten()
            | "Until the end" >> beam.GroupByKey()
            | "Write end" >> beam.Map(_write_end, self.folder)
        )
        return written


DISCARDING = AccumulationMode.DISCARDING
WHENEVER = partial(beam.WindowInto, GlobalWindows(), accumulation_mode=DISCARDING)  # in which nothing is late


def _by_window(row: Any, at: Any = beam.DoFn.TimestampParam) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """Key a row by the window after which it is published."""
    start, end = row.window_start.micros, row.window_end.micros
    later = 0 if at.micros < end else at.micros // MILLISECOND * MILLISECOND + MILLISECOND - end
    return (start + later, end + later), tuple(row)


def _write_window(
    element: tuple[tuple[int, int], Iterable[tuple[Any, ...]]],
    folder: str,
    row_type: Any,
    format: str,
    order: tuple[str, ...],
) -> str:
    (start, end), plain = element
    path, data = join(folder, file_name(start, end, format)), BytesIO()
    write_rows(data, row_type, [sort_table(plain_table(row_type, plain), order)], format)
    outcome = write_once(path, data.getvalue())
    counter(f"window_files_{outcome}").inc()
    if outcome == "written":
        Metrics.gauge("privstream", "window_latency_ms").set((Timestamp.now().micros - end) // MILLISECOND)
    return path


def _write_end(element: Any, folder: str) -> None:
    write_once(join(folder, END), b"")
    counter(COMPLETE).inc()


def file_name(start: int, end: int, format: str) -> str:
    """Return the name of a window's file; times in microseconds since 1970."""
    return f"{moment(start)}_{moment(end)}.{format}"


def moment(micros: int) -> str:
    """Write a time for a file's name, to the second or, where needed, finer."""
    text = f"{EPOCH + timedelta(microseconds=micros):%Y%m%dT%H%M%S.%f}"
    return f"{text.rstrip('0').rstrip('.') if micros % MICROS else text[:-7]}Z"


def end_of(path: str) -> int:
    """Return the end of the window after which the rows of a file were published, in microseconds since 1970."""
    text = path.rpartition("/")[2].split("_")[1].rpartition("Z")[0]
    form = "%Y%m%dT%H%M%S.%f" if "." in text else "%Y%m%dT%H%M%S"
    return (datetime.strptime(text, form).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def check_folder(folder: str, option: str = "output") -> None:
    """Check before a run that files can be written into a folder."""
    if folder and scheme_of(folder) is None:
        if not os.path.isdir(folder):
            raise ValueError(f"{option} must be a folder that exists when the input is watched, got {folder}")
        if os.path.exists(os.path.join(folder, END)):
            raise ValueError(f"{option} must be a folder of a run that has not ended, but {folder} has a file {END}")
    check_destination(folder and join(folder, "file"), option)


LET_GO_SECONDS = 30  # so long a run that was ended, as by an upgrade, may take to let its folder go


@contextmanager
def alone_in(folders: Iterable[str]) -> Iterator[None]:
    """Let no other run on this machine write into the same folders meanwhile; some servers of files lock none.

    *Privacy*: two runs of one run id have the same noise. At once they could take other events for late or other
    contributions for those within limits, and windows of both would be published.

    Raises:
        UsageError: another run writes there, and goes on to.
    """
    with ExitStack() as stack:
        for folder in folders:
            if scheme_of(folder) is None:
                file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, file)
                deadline = time.monotonic() + LET_GO_SECONDS
                while not _locked(file):
                    if time.monotonic() > deadline:
                        raise UsageError(
                            f"{folder} must be a folder into which no other run writes, but one on this machine does: "
                            "end it first, for two at once would publish other answers with the same noise"
                        )
                    time.sleep(0.2)
        yield


def _locked(file: int) -> bool:
    """Tell whether an open folder is locked now, or cannot be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


class WriteDeadLetterFiles(beam.PTransform[Any, Any]):
    """Writes dead letters into a folder: a file a minute after its first letter, or as soon as it has 5,000.

    The minute is one of the worker's clock. A file's name is the time at which it was written, and a digest of what is
    in it, so that nothing is ever replaced. A run that goes back to a checkpoint may set the same record aside twice.

    *Privacy*: dead letters are records of people. On this machine's file system the files are for their owner alone.
    Guard the folder like the input.
    """

    def __init__(self, folder: str, *, seconds: float = 60, most: int = 5000) -> None:
        super().__init__()
        self.folder, self.seconds, self.most = folder, seconds, most
        check_folder(folder, "dead_letter")

    @override
    def expand(self, letters: Any) -> Any:
        def line(letter: DeadLetter) -> tuple[bytes, bytes]:
            return b"", json_text(letter._asdict()).encode() + b"\n"

        return (
            letters
            | "Line" >> beam.Map(line).with_output_types(tuple[bytes, bytes])
            | "Whenever" >> WHENEVER(trigger=AfterWatermark())
            | "Together" >> beam.GroupIntoBatches(self.most, self.seconds)
            | "Write files" >> beam.Map(_write_letters, self.folder)
        )


def _write_letters(letters: tuple[bytes, Iterable[bytes]], folder: str) -> None:
    data = b"".join(sorted(letters[1]))
    digest, now = blake2b(data, digest_size=8).hexdigest(), int(time.time()) * MICROS
    write_once(join(folder, f"{moment(now)}_{digest}.jsonl"), data, owner_only=True)


RUN = "run_id"
SENT = "rows_sent"  # counter of rows sent, again those that are sent again
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
PATIENCE_SECONDS = 600.0  # a destination may be away; then the run fails, and goes on where it is started again
ANSWER_SECONDS = 10.0
TRY_AGAIN = (408, 425, 429)  # answers after which a request may be made again, besides those from 500


class UnreachableError(Exception):
    """A destination does not take rows: the message says which one and why, never with a password or a row."""


class Destination(ABC):
    """A table or a topic for the rows of one run.

    A row is known by its key: the run id, and the fields that distinguish it from the other rows of the run. Rows are
    sent from files that are written once, so that those which are sent again are the same.
    """

    def __init__(self, run_id: str, row_type: type, key: Sequence[str]) -> None:
        self.run_id, self.row_type, self.patience = run_id, row_type, PATIENCE_SECONDS
        shape = shape_of(row_type)
        self.key = tuple(column for name in key for column in (shape.parts if name == shape.item else ()) or (name,))

    @abstractmethod
    def check(self, *, first: bool) -> None:
        """Check before a run that rows can be sent; `first` if this run has never sent any."""

    @abstractmethod
    def send(self, rows: pa.Table) -> None:
        """Send rows, all of them or none where that can be had.

        Raises:
            UnreachableError: not for so long; rows that are sent again afterwards are there once.
        """

    @abstractmethod
    def name(self) -> str:
        """Say where rows go, without secrets."""

    def attempts(self) -> Iterator[None]:
        """Yield before each attempt to reach it, after longer and longer pauses, while there is patience."""
        pause, deadline = FIRST_PAUSE, time.monotonic() + self.patience
        while True:
            yield
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def keyed(self, rows: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows of a file as JSON says them, with their keys, each a JSON object; equal keys are equal texts.

        Rows that nothing distinguishes are numbered.
        """
        seen: Counter[str] = Counter()
        for values in json_objects(rows):
            named = {RUN: self.run_id} | {name: values[name] for name in self.key}
            seen[plain := json_text(named)] += 1
            yield plain if seen[plain] == 1 else json_text(named | {"number": seen[plain]}), values


def send_file(path: str, to: Sequence[Destination]) -> str:
    """Send the rows of a file to one destination after the other, and return its path when they are there."""
    rows = read_table(path, to[0].row_type)
    for each in to:
        each.send(rows)
    counter(SENT).inc(rows.num_rows)
    return path


def has_alerts(row_type: Any) -> bool:
    """Tell whether rows of a type are alerts."""
    return "since" in row_type._fields and bool({"rule", "state"} & {*row_type._fields})


class Webhook(Destination):
    """Posts the public row with which an alert begins, as JSON, and no later row of the same alert.

    An alert is known by its run, its rule or item, and since when it lasts. A file beside the rows marks what has been
    posted; where a run ends between the answer and the mark, the header `Idempotency-Key` tells the receiver.

    Args:
        url: of `http://` or `https://`; it may be a secret, so only its host is ever told.
    """

    def __init__(self, url: str, run_id: str, row_type: type, key: Sequence[str], folder: str, question: str) -> None:
        super().__init__(run_id, row_type, key)
        self.url, self.folder, self.named = url, folder, {RUN: run_id, "name": question}

    @override
    def check(self, *, first: bool) -> None:
        # Nothing is posted that is no alert.
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError("--notify must be of the form https://example.com/path")

    @override
    def name(self) -> str:
        return f"{urlsplit(self.url).hostname} (alerts alone)"

    @override
    def send(self, rows: pa.Table) -> None:
        for values in json_objects(rows):
            if values.get("state", ALERT) != ALERT or values.get("status") == ENDED:
                continue
            about = {name: values[name] for name in self.key if name != "window_start"}
            key = json_text(self.named | {"since": values["since"]} | about)
            digest = blake2b(key.encode(), digest_size=16).hexdigest()
            mark = join(self.folder, f"_notified_{digest}")
            if not exists(mark):
                self._post(digest, json_text(self.named | values).encode())
                write_once(mark, b"")

    def _post(self, digest: str, body: bytes) -> None:
        headers, reason = {"Content-Type": "application/json", "Idempotency-Key": digest}, ""
        for _ in self.attempts():
            try:
                request = urllib.request.Request(self.url, body, headers, method="POST")
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):
                    return
            except urllib.error.HTTPError as error:
                reason = f"it answers {error.code}"
                if error.code < 500 and error.code not in TRY_AGAIN:
                    break
            except OSError as error:
                reason = str(getattr(error, "reason", "") or type(error).__name__)
        raise UnreachableError(f"an alert could not be posted to {urlsplit(self.url).hostname}: {reason}")
