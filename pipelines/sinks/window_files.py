"""Files of input without an end: one of rows for each window, and dead letters as they come."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from io import BytesIO
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.pipelines.command import UsageError
from privstream.pipelines.locations import END, WINDOW_FORMATS
from privstream.pipelines.sinks.destination import Destination, send_file
from privstream.pipelines.sinks.row_files import (
    COMPLETE,
    check_destination,
    plain_table,
    sort_table,
    write_once,
    write_rows,
)
from privstream.pipelines.sinks.row_formats import EPOCH
from privstream.pipelines.terminal import json_text
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.timing.steps import MICROS, MILLISECOND
from typing_extensions import override


class WriteWindowFiles(beam.PTransform[Any, Any]):
    """Writes the rows of each window as one file, such as `20300101T120000Z_20300101T130000Z.jsonl`.

    Rows that are published after a later window than their own, as their timestamps say, are in the file of that one.

    All rows of a window must have the same timestamp, as those that one timer publishes have. A file gets its name when
    it is complete. If there is one of that name already, it stays as it is: a run that goes back to a checkpoint
    publishes no second answer. Windows without rows have no file. When the input has ended, an empty file `_END` says
    that nothing will follow. Gives the paths of files, once they are written and their rows are sent.

    Metrics: `window_latency_ms`, from the end of a window to its file; and counters:
    `window_files_written`, `.._repeated` (there already, with the same bytes), `.._refused` (with others).

    Args:
        row_type: a NamedTuple as `WriteRows` takes, with `window_start` and `window_end`.
        destination: where the rows of each file are sent, too, once it is there; None for nowhere.
    """

    def __init__(
        self,
        folder: str,
        row_type: type,
        format: str,
        order: Sequence[str] = (),
        *,
        destination: Destination | None = None,
        option: str = "--output",
    ) -> None:
        super().__init__()
        self.folder, self.row_type, self.format, self.order = folder, row_type, format, tuple(order)
        self.destination = destination
        check_folder(folder, option)
        if format not in WINDOW_FORMATS:
            raise ValueError(f"--output_format must be one of {', '.join(WINDOW_FORMATS)}, got {format!r}")

    @override
    def expand(self, rows: Any) -> Any:
        written = (
            rows
            | "By window" >> beam.Map(_by_window)
            | "Moment"
            >> beam.WindowInto(
                FixedWindows(Duration(micros=MILLISECOND)),
                trigger=DefaultTrigger(),
                accumulation_mode=AccumulationMode.DISCARDING,
            )
            | "Gather" >> beam.GroupByKey()
            | "Write file" >> beam.Map(_write_window, self.folder, self.row_type, self.format, self.order)
        )
        if self.destination is not None:  # what is in the files is final: a run that comes again sends the same rows
            written = written | "Send" >> beam.Map(send_file, self.destination)
        say_end(written, self.folder)
        return written

    @override
    def display_data(self) -> dict[str, Any]:
        return {"folder": self.folder, "format": self.format}


WHENEVER = partial(beam.WindowInto, GlobalWindows(), accumulation_mode=AccumulationMode.DISCARDING)
"""What goes on in one window, in which nothing is late."""


def say_end(written: Any, folder: str) -> Any:
    """Write an empty file `_END` into a folder when what is written has ended."""
    keyed, trigger = tuple[bytes, bytes], AfterWatermark()
    nothing = written | "Leave out" >> beam.FlatMap(lambda path: ()).with_output_types(keyed)
    one = written.pipeline | "Once" >> beam.Impulse() | "One" >> beam.Map(lambda _: (b"", b"")).with_output_types(keyed)
    return (
        (nothing | "Whenever" >> WHENEVER(trigger=trigger), one)
        | "Both" >> beam.Flatten()
        | "Until the end" >> beam.GroupByKey()
        | "Write end" >> beam.Map(_write_end, folder)
    )


def _write_window(
    element: tuple[tuple[int, int], Iterable[tuple[Any, ...]]],
    folder: str,
    row_type: Any,
    format: str,
    order: tuple[str, ...],
) -> str:
    """Write one file."""
    (start, end), plain = element
    path, data = FileSystems.join(folder, file_name(start, end, format)), BytesIO()
    named = {name.removeprefix("-") for name in order}
    order += tuple(name for name in row_type._fields if name not in named)  # equal rows give equal bytes
    write_rows(data, row_type, [sort_table(plain_table(row_type, plain), order)], format)
    outcome = write_once(path, data.getvalue())
    Metrics.counter("privstream", f"window_files_{outcome}").inc()
    if outcome == "written":
        Metrics.gauge("privstream", "window_latency_ms").set((Timestamp.now().micros - end) // MILLISECOND)
    return path


def file_name(start: int, end: int, format: str) -> str:
    """Return the name of a window's file; times in microseconds since 1970."""
    return f"{moment(start)}_{moment(end)}.{format}"


def moment(micros: int) -> str:
    """Write a time for a file's name, to the second or, where needed, finer."""
    text = f"{EPOCH + timedelta(microseconds=micros):%Y%m%dT%H%M%S.%f}"
    return f"{text.rstrip('0').rstrip('.') if micros % 1_000_000 else text[:-7]}Z"


def end_of(path: str) -> int:
    """Return the end of the window after which the rows of a file were published, in microseconds since 1970."""
    text = path.rpartition("/")[2].split("_")[1].rpartition("Z")[0]
    form = "%Y%m%dT%H%M%S.%f" if "." in text else "%Y%m%dT%H%M%S"
    return (datetime.strptime(text, form).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def check_folder(folder: str, option: str = "--output") -> None:
    """Check before a run that files can be written into a folder."""
    if not folder:
        raise ValueError(f"{option} must not be empty")
    if FileSystems.get_scheme(folder) is None and not os.path.isdir(folder):
        raise ValueError(f"{option} must be a folder that exists when the input is watched, got {folder}")
    if FileSystems.get_scheme(folder) is None and os.path.exists(os.path.join(folder, END)):
        raise ValueError(f"{option} must be a folder of a run that has not ended, but {folder} has a file {END}")
    check_destination(FileSystems.join(folder, "file"), option)


LET_GO_SECONDS = 30
"""So long a run that was ended, as by an upgrade, may take to let its folder go."""


@contextmanager
def alone_in(folders: Iterable[str]) -> Iterator[None]:
    """Let no other run on this machine write into the same folders meanwhile.

    *Privacy*: two runs of one run id have the same noise. At once they could take other events for late or other
    contributions for those within limits, and windows of both would be published.

    Raises:
        UsageError: another run writes there, and goes on to.
    """
    with ExitStack() as stack:
        for folder in folders:
            if FileSystems.get_scheme(folder) is None:
                file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, file)
                _take(file, folder)
        yield


def _take(file: int, folder: str) -> None:
    """Lock an open folder; some servers of files lock none."""
    deadline = time.monotonic() + LET_GO_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{folder} must be a folder into which no other run writes, but one on this machine does: end it "
                    "first, for two at once would publish other answers with the same noise"
                ) from None
            time.sleep(0.2)
        except OSError:
            return None


def _by_window(row: Any, at: Any = beam.DoFn.TimestampParam) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """Key a row by the window after which it is published."""
    start, end = row.window_start.micros, row.window_end.micros
    later = 0 if at.micros < end else at.micros // MILLISECOND * MILLISECOND + MILLISECOND - end
    return (start + later, end + later), tuple(row)


def _write_end(element: Any, folder: str) -> str:
    """Say that nothing will follow."""
    path = FileSystems.join(folder, END)
    write_once(path, b"")
    Metrics.counter("privstream", COMPLETE).inc()
    return path


SECONDS, MOST_LETTERS = 60, 5_000
DIGEST_BYTES = 8


class WriteDeadLetterFiles(beam.PTransform[Any, Any]):
    """Writes dead letters into a folder: a file a minute after its first letter, or as soon as it has 5,000.

    The minute is one of the worker's clock. A file's name is the time at which it was written, and a digest of what is
    in it, so that nothing is ever replaced. A run that goes back to a checkpoint may set the same record aside twice.

    *Privacy*: dead letters are records of people. On this machine's file system the files are for their owner alone.
    Guard the folder like the input.
    """

    def __init__(self, folder: str, *, seconds: float = SECONDS, most: int = MOST_LETTERS) -> None:
        super().__init__()
        self.folder, self.seconds, self.most = folder, seconds, most
        check_folder(folder, "--dead_letter")

    @override
    def expand(self, letters: Any) -> Any:
        return (
            letters
            | "Line" >> beam.Map(_line).with_output_types(tuple[bytes, bytes])
            | "Whenever" >> WHENEVER(trigger=AfterWatermark())
            | "Together" >> beam.GroupIntoBatches(self.most, self.seconds)
            | "Write files" >> beam.Map(_write_letters, self.folder)
        )


def _line(letter: DeadLetter) -> tuple[bytes, bytes]:
    """Write a letter as a line, under the one key of all."""
    return b"", json_text(letter._asdict()).encode() + b"\n"


def _write_letters(letters: tuple[bytes, Iterable[bytes]], folder: str) -> str:
    """Write a file of letters."""
    data = b"".join(sorted(letters[1]))
    digest, now = blake2b(data, digest_size=DIGEST_BYTES).hexdigest(), int(time.time()) * MICROS
    path = FileSystems.join(folder, f"{moment(now)}_{digest}.jsonl")
    write_once(path, data, owner_only=True)
    return path
