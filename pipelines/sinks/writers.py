"""Writes the rows of a bounded run: one file that appears whole or not at all, or a table on the terminal."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import AsIter
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.durations import in_words
from privstream.pipelines.sinks.row_files import field_types, iso_8601, output_format, read_row_file, write_row_file
from privstream.pipelines.sinks.whole_files import check_destination
from privstream.pipelines.terminal import printable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

TERMINAL = "-"
SPREAD = {"count": "count_stddev", "gap": "gap_stddev"}
"""Numbers and their standard deviations, which share a column."""

WIDEST, LEAST_TEXT = 1000, 12
"""Of a table, which is not cut where it is wider than the terminal, and of a column of texts."""

COSTS = ("epsilon_spent", "epsilon_left", "stopped")
"""What rows say of a budget, if they cost any."""

SMOOTHED = "smoothed"
MAY_BE_MISSING = (SMOOTHED, "rise")
"""How columns begin that are left out where no row has them."""

LIMITS = ("lower", "upper")
REPORTED, BACKFILLED = "reported_at", "backfilled"
"""When a row was published, which is shown where it was not after its own window; the other says no more."""

COMPLETE = "outputs_complete"
"""Counter of outputs to which nothing more will come: a run of which it is not known gives no counters at all."""


class WriteRows(beam.PTransform[Any, Any]):
    """Writes all rows of a bounded collection as one file, also when there are none.

    The file gets its name only when it is complete; a run that fails leaves whatever was there before. Results are
    small, so one worker writes them; sorted rows are kept in its memory, rows without an order are not.

    Args:
        path: the file, which ends in .avro, .parquet or .jsonl; its folder must exist.
        row_type: a NamedTuple with fields of type str, int, float, bool or Beam Timestamp.
        order: fields to sort by, `-` before a name for falling numbers; empty keeps the order in which rows come.
        option: the option to name in errors.
        private: whether the file is for its owner alone.
        finish: what is done to all rows before they are sorted and written; None for nothing.

    Raises:
        ValueError, TypeError: at once, if the file cannot be written there or the rows cannot be written so.
    """

    def __init__(
        self,
        path: str,
        row_type: type,
        *,
        order: Sequence[str] = (),
        option: str = "--output",
        private: bool = False,
        finish: Callable[[Sequence[Any]], list[Any]] | None = None,
    ) -> None:
        super().__init__()
        self.finish = finish
        self.path, self.row_type, self.order, self.private = path, row_type, tuple(order), private
        self.format = output_format(path, option)
        fields = field_types(row_type)
        unknown = [name for name in self.order if name.removeprefix("-") not in fields]
        if unknown:
            raise ValueError(f"order must name fields of {row_type.__name__}, got {', '.join(unknown)}")
        check_destination(path, option)

    def expand(self, rows: Any) -> Any:
        """Hand all rows to one worker."""
        if not rows.is_bounded:
            raise ValueError("WriteRows must get a bounded collection")
        # Without their schema: in streaming mode Flink cannot hand rows with one to a side input.
        plain = rows | "Plain" >> beam.Map(tuple).with_output_types(Any)
        together = plain | "Into one window" >> beam.WindowInto(GlobalWindows())
        return (
            rows.pipeline
            | "Once" >> beam.Impulse()
            | "Write file"
            >> beam.Map(
                _write, self.path, self.row_type, self.order, AsIter(together), private=self.private, finish=self.finish
            )
        )

    def display_data(self) -> dict[str, Any]:
        """Show where rows go."""
        return {"path": self.path, "format": self.format}


def _write(
    impulse: bytes,
    path: str,
    row_type: type,
    order: tuple[str, ...],
    rows: Iterable[Any],
    *,
    private: bool,
    finish: Callable[[Sequence[Any]], list[Any]] | None,
) -> None:
    """Write the file."""
    rows = (row_type(*row) for row in rows)
    if finish is not None:
        rows = finish(list(rows))
    write_row_file(path, row_type, sort_rows(rows, order) if order else rows, private=private)
    Metrics.counter("privstream", COMPLETE).inc()


def sort_rows(rows: Iterable[Any], order: Sequence[str]) -> list[Any]:
    """Sort rows by fields, `-` before a name for falling numbers; rows without a number follow those with one."""
    found = list(rows)
    for name in reversed(order):  # each keeps the order of those after it
        found.sort(key=partial(_place, attrgetter(name.removeprefix("-")), name.startswith("-")))
    return found


def _place(value_of: Callable[[Any], Any], falls: bool, row: Any) -> tuple[bool, Any]:
    """Return what sorts rows by a value, times by their microseconds: comparing these is fast."""
    value = value_of(row)
    if value is None:
        return True, 0
    number = value.micros if isinstance(value, Timestamp) else value
    return False, -number if falls else number


@contextmanager
def file_or_terminal(
    path: str,
    row_type: type,
    title: str = "",
    shown: Callable[[Any], Any] | None = None,
    note: str = "",
    below: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
) -> Iterator[str]:
    """Give the path to write to; if it is `-`, a temporary file whose rows are printed when the run has succeeded.

    `shown` makes of each row what is printed in its place; `note` stands below the rows, and what `below` makes of all
    of them at the end.

    Example:
        >>> with file_or_terminal("-", HeavyHitter) as path:  # doctest: +SKIP
        ...     run(output=path)
    """
    if path != TERMINAL:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        file = os.path.join(folder, "rows.avro")
        yield file
        rows = read_row_file(file, row_type)
        print_rows(rows if shown is None else list(map(shown, rows)), row_type, title=title, note=note)
        for each in () if below is None else below(rows):
            Console().print(each)


def print_rows(
    rows: Sequence[Any],
    row_type: type,
    *,
    title: str = "",
    note: str = "",
    limit: int | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table; numbers and their standard deviations share a column; what all rows share is left out.

    A number that is missing is shown as `-`. The length of windows is shown once; a budget that no row costs is
    left out.

    Args:
        rows: what to print, in order.
        row_type: the NamedTuple that they are.
        title: printed above.
        note: printed below.
        limit: print so many rows at most, and say how many were left out.
        console: where to print; the standard output if None.
    """
    types = field_types(row_type)
    names = [name for name in types if name not in SPREAD.values()]
    if not any(getattr(row, COSTS[0], True) for row in rows):
        names = [name for name in names if name not in COSTS]
    names = [n for n in names if not n.startswith(MAY_BE_MISSING) or any(getattr(r, n) is not None for r in rows)]
    if SMOOTHED in types and SMOOTHED not in names and "error_bound" not in names:
        names = [name for name in names if name not in LIMITS]  # intervals of counts say no more than ±
    if BACKFILLED in names:
        hidden = {BACKFILLED} if any(row.backfilled for row in rows) else {BACKFILLED, REPORTED}
        names = [name for name in names if name not in hidden]
    if "window_end" in names:
        lengths = {row.window_end.micros - row.window_start.micros for row in rows}
        if len(lengths) == 1:
            names.remove("window_end")
            title = f"{title}, windows of {in_words(lengths.pop())}".removeprefix(", ")
    if "stream" in names and not any(row.stream for row in rows):
        names.remove("stream")  # a run without streams has one, without a name
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    shown = rows if limit is None else rows[:limit]
    cells = [[_cell(row, name) for name in names] for row in shown]
    room = 0  # that texts can give up, by being folded
    for name, column in zip(names, zip(*cells, strict=True) if cells else [()] * len(names), strict=True):
        number = types[name] in (int, float)
        whole = number or types[name] is Timestamp  # a number that is broken is another number
        longest = max((cell.cell_len for cell in column), default=0)
        room += 0 if whole else max(0, longest - LEAST_TEXT)
        justify: Literal["right", "left"] = "right" if number else "left"
        heading = name.replace("_", "\n" if number else " ")
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=whole)
    for row in cells:
        table.add_row(*row)
    console = console or Console()
    if title:
        console.print(Text(printable(title), style="bold"), soft_wrap=True)
    usual, wished = console.width, Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    console.width = max(usual, wished - room)
    console.print(table, crop=False)
    console.width = usual
    if len(rows) > len(shown):
        console.print(f"and {len(rows) - len(shown):,} more")
    if note:
        console.print(Text(printable(note)))


def _cell(row: Any, name: str) -> Text:
    """Write one value."""
    value = getattr(row, name)
    if isinstance(value, Timestamp):
        text = iso_8601(value.micros)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"
        if stddev := getattr(row, SPREAD.get(name, ""), None):
            text = f"{text} ± {stddev:,.0f}" if stddev >= 1 else f"{text} ± {stddev:.2g}"
    else:
        text = "-" if value is None else str(value)
    return Text(printable(text).replace("\n", "\\n"))
