"""What every `privstream simulate` does: write events window by window, and the truth about them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from privstream.mechanisms.privacy.units import SECOND, in_words
from privstream.pipelines.command import Command, Option, RunError, UsageError, add_option, parsed
from privstream.pipelines.model.types import seconds
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, TrueWindow
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import check_destination, output_format, whole_file, write_row_file
from privstream.pipelines.terminal import say
from privstream.transforms.timing.steps import timestamp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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


class Written(NamedTuple):
    """What a simulation has written."""

    events: int
    windows: int


def item_holders(window: Any) -> Iterator[ItemHolders]:
    """Return how many people had each item of a `SimulatedWindow`, the most frequent item first."""
    start, end = timestamp(window.start), timestamp(window.end)
    for item, holders in sorted(window.holders.items(), key=lambda pair: (-pair[1], pair[0])):
        yield ItemHolders(start, end, item, holders)


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


FURTHER_FILES = ("truth", "domain", "queries", "rules")


def add_simulation(
    parser: argparse.ArgumentParser, *, truth: str, users: str = "number of people", windows: bool = True
) -> None:
    """Add the options of a simulation, of a number of `windows` if there may be many; texts say what these are."""
    parser.add_argument("--users", type=int, required=True, metavar="N", help=users)
    parser.add_argument("--seed", type=int, required=True, metavar="S", help="the same seed gives the same events")
    parser.add_argument("--output", required=True, metavar="PATH", help="events: .avro .parquet .jsonl or .csv")
    parser.add_argument("--truth", metavar="PATH", help=f"{truth}: .avro .parquet or .jsonl")
    parser.add_argument(
        "--window",
        type=parsed(seconds),
        default=3600.0,
        metavar="DURATION",
        help="length of a window in seconds, or such as 90s, 30m, 1h, 1day (default: 1h)",
    )
    if windows:
        parser.add_argument("--windows", type=int, required=True, metavar="M", help="number of windows")


def rows_of_truth(window: Any) -> Iterable[Any]:
    """Return the truth about a window that has it."""
    rows: Iterable[Any] = window.truth
    return rows


def write_files(
    arguments: argparse.Namespace,
    simulate: Callable[..., Iterator[Window]],
    *,
    truth_type: type,
    truth_of: Callable[[Window], Iterable[Any]] = rows_of_truth,
    **further: Any,
) -> None:
    """Simulate and write events and truth, with a progress bar.

    Args:
        arguments: with the options of `add_simulation`.
        simulate: returns the windows, given `users`, `seed`, `window_seconds` and what is in `further`.
        truth_type: the NamedTuple that the truth consists of.
        truth_of: returns the rows of truth about one window.
        further: arguments of `simulate`, with `windows` if their number is known before.

    Raises:
        UsageError: an argument breaks its rule.
        RunError: a file could not be written.
    """
    try:
        _check_files(arguments)
        simulated = simulate(users=arguments.users, seed=arguments.seed, window_seconds=arguments.window, **further)
        with _progress() as progress:
            task = progress.add_task("simulating", total=further.get("windows"))
            written = write_simulation(
                arguments.output,
                simulated,
                arguments.truth,
                lambda done: progress.update(task, completed=done),
                truth_type=truth_type,
                truth_of=truth_of,
            )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise RunError(f"cannot write {arguments.output}: {error.strerror or error}") from error
    text = (
        f"{written.events:,} events of {arguments.users:,} people in {written.windows:,} windows of "
        f"{in_words(round(arguments.window * SECOND))}: {arguments.output}"
    )
    say(text if arguments.truth is None else f"{text}\ntruth: {arguments.truth}")


def simulation(
    description: str,
    simulate: Callable[..., Iterator[TrueWindow]],
    truth_type: type,
    truth: str,
    *options: Option,
    users: str = "number of people",
    more: Callable[[argparse.Namespace], None] | None = None,
) -> Command:
    """Return a command that writes a simulation.

    Args:
        description: what it writes, in sentences.
        simulate: returns the windows, given `users`, `windows`, `seed`, `window_seconds`, and the options.
        truth_type: of the rows of their truth.
        truth: what that is, in a few words.
        *options: of the command; those that are paths of further files are not for `simulate`.
        users: what `--users` is the number of.
        more: writes these files.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_simulation(parser, truth=truth, users=users)
        for option in options:
            add_option(parser, option)

    def run(arguments: argparse.Namespace, others: list[str]) -> None:
        given = {option.name: getattr(arguments, option.name) for option in options if option.type != "Path"}
        write_files(arguments, simulate, truth_type=truth_type, windows=arguments.windows, **given)
        if more is not None:
            more(arguments)

    return Command(description=description, add_arguments=add_arguments, run=run)


def write_lines(path: str | None, lines: Iterable[str]) -> None:
    """Write a list to a file, if there is one.

    Raises:
        RunError: the file could not be written.
    """
    if path is None:
        return
    try:
        with whole_file(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse to write two things into one file, and further files that cannot be written."""
    taken: dict[str, str] = {}
    for name in ("output", *FURTHER_FILES):
        path = getattr(arguments, name, None)
        if path is not None and taken.setdefault(os.path.realpath(path), f"--{name}") != f"--{name}":
            raise ValueError(f"--{name} must not be written over {taken[os.path.realpath(path)]}, got {path}")
    for name in FURTHER_FILES[1:]:
        if (path := getattr(arguments, name, None)) is not None:
            check_destination(path, f"--{name}")


def _progress() -> Progress:
    """Return a progress bar on the terminal, which vanishes when all is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
