"""Published rows as a table on a terminal: the newest window, the largest items; files have all rows and columns."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.show import words
from privstream.pipelines.sinks.row_files import arrow_table, read_row_file
from privstream.pipelines.stores import opened
from privstream.pipelines.terminal import printable
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

TERMINAL = "-"
MOST_ROWS = 20
LEAST_TEXT, LONGEST_TEXT, WIDEST = 20, 80, 10_000
"""Cells of a column of texts at least, of a text at most, and of a table that is measured."""

NUMBERS = ("people", "value", "estimate")
"""What may be the number of a row, the first one that there is."""

INTERVAL = "95% interval"
NOT_KEYS = ("status", "source", "state")
"""Columns of texts that do not tell what a row is about; numbers that do are `POINTS`."""

POINTS = ("quantile", "low", "high", "query")
IN_FILES = ("window_start", "window_end", "noisy", "mean_margin", "error_bound")
SPARED = ("since", "gap", "distance", "threshold", "status", "rank", "stopped", "measurements_left", "epsilon_left")
"""Columns that only files have, and those that have no room in a narrow terminal, the first ones first."""

MINUTE = 60_000_000
BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS, LEAST_BLOCKS = 24, 8


@contextmanager
def file_or_terminal(path: str) -> Iterator[str]:
    """Give the path to write to; for `-` one in a temporary folder, whose rows are printed in its place."""
    if path != TERMINAL:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        yield os.path.join(folder, "rows.parquet")


def read_table(path: str, row_type: type) -> pa.Table:
    """Return the rows of a file, times as timestamps in UTC."""
    if path.lower().endswith(".parquet"):
        with opened(path) as stream:
            return pq.read_table(stream)
    return arrow_table(row_type, read_row_file(path, row_type))


def print_rows(
    table: pa.Table,
    record: Mapping[str, Any],
    *,
    name: str = "",
    path: str | None = None,
    limit: int = MOST_ROWS,
    nothing: str = "nothing is published",
    console: Console | None = None,
) -> None:
    """Print a table that fits a terminal, if names are not too long, and say where all rows are.

    Args:
        table: what was published.
        record: its guarantee file.
        name: of the question among several.
        path: of all rows; None if they are not kept.
        limit: rows that are printed at most.
        nothing: why there may be no rows.
        console: where to print; the standard output if None.
    """
    console = console or Console()
    view = View.of(table, record, limit)
    heading = f"{name}: {view.heading}" if name else view.heading
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    if not table.num_rows:
        console.print(Text(f"{nothing[:1].upper()}{nothing[1:]}."))
        return
    width = console.width
    drawn, least = view.table(console)
    console.width = max(width, least)
    console.print(drawn, crop=False)
    console.width = width
    shown, of = f"{view.rows.num_rows:,}", f" of {view.all:,}" if view.all > view.rows.num_rows else ""
    where = printable(path) if path else "--output FILE"
    what = view.noun if view.all > 1 else view.noun.removesuffix("s")
    console.print(Text(f"{shown}{of} {what}. All rows: {where}"), soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown of rows.

    Attributes:
        rows: those that are shown.
        all: how many of them the window has, or the run where several windows are shown.
        keys: columns that tell what a row is about.
        number: the column with the number of a row; None if it has none.
        unit: the heading of that.
        windows: starts of all windows, in order.
        last: end of the last one; days are told apart from hours by it.
        several: whether rows of several windows are shown.
        noun: what a row is, in the plural.
        table_of: all rows.
        record: their guarantee file.
        clocks: by which times are shown.
    """

    rows: pa.Table
    all: int
    keys: tuple[str, ...]
    number: str | None
    unit: str
    windows: tuple[int, ...]
    last: int
    several: bool
    noun: str
    table_of: pa.Table
    record: Mapping[str, Any]
    clocks: Clocks

    @classmethod
    def of(cls, table: pa.Table, record: Mapping[str, Any], limit: int) -> View:
        """Choose the newest window and its largest rows; where rows are about no items, those of the last windows."""
        names = table.column_names
        clocks = Clocks.of(record.get("parameters", {}))
        keys = tuple(name for name in names if _is_key(table, name))
        number = next((name for name in NUMBERS if name in names), None)
        windows, last = tuple[int, ...](), 0
        several, items = "rule" in keys or not keys, bool({*keys} - {"rule", *POINTS})
        rows = table
        if "window_start" in names and table.num_rows:
            starts = table["window_start"].cast(pa.int64())
            windows = tuple(sorted(pc.unique(starts).to_pylist()))
            last = pc.max(table["window_end"].cast(pa.int64())).as_py()
            rows = table if several else table.filter(pc.equal(starts, windows[-1]))
            if number is not None and items and not several and not {"rank", "query"} & {*names}:
                by = "rise" if "rise" in names and not _is_empty(rows["rise"]) else number
                rows = rows.take(pc.sort_indices(rows[by], sort_keys=[("", "descending")]))
        found = rows.num_rows
        shown = rows.slice(max(0, found - limit)) if several and windows else rows.slice(0, limit)
        return cls(
            rows=shown,
            all=found,
            keys=keys,
            number=number,
            unit="value" if "quantile" in keys else words.unit_of(record),
            windows=windows,
            last=last,
            several=several and bool(windows),
            noun="items" if items and not several else "rows",
            table_of=table,
            record=record,
            clocks=clocks,
        )

    @property
    def edges(self) -> tuple[int, ...]:
        """Starts of windows and the end of the last one, which tell whether times are days."""
        return (*self.windows, self.last) if self.windows else ()

    @property
    def heading(self) -> str:
        """What stands above: what numbers are, of which window, by which clocks."""
        what = words.title_of(self.record, self.keys)
        length = self.record.get("parameters", {}).get("window")
        if not self.windows or length is None:
            return what
        number = words.windows_in_words(len(self.windows), length)
        seen = "" if self.record["guarantee"].get("horizon") == len(self.windows) else " with rows"
        which = f"the last of {number}{seen}" if len(self.windows) > 1 else f"one {words.window_in_words(length)}"
        if self.several:
            return f"{what}, {self.clocks.zone}: {which}"
        (newest,) = moments([self.windows[-1]], self.clocks, others=self.edges)
        return f"{what}, {self.clocks.zone}: {newest}, {which}"

    def table(self, console: Console) -> tuple[Table, int]:
        """Return the table, and how narrow it can be; a sparkline gets shorter, and columns go, to make room."""
        columns, hidden = self.columns(), list[str]()
        blocks = min(MOST_BLOCKS, len(self.windows)) if self._has_trend(console) else 0
        names = [each for key in self.keys for each in columns.get(key, ())]
        foldable = max(0, max((Text(each).cell_len for each in names), default=0) - LEAST_TEXT)
        while True:
            trend = self._trends(blocks) if blocks else None
            drawn = self._drawn({name: one for name, one in columns.items() if name not in hidden}, trend)
            wished = Measurement.get(console, console.options.update(max_width=WIDEST), drawn).maximum
            least = wished - min(foldable, LONGEST_TEXT - LEAST_TEXT)
            spare = next((name for name in SPARED if name.replace("_", " ") in columns and name not in hidden), None)
            if blocks > LEAST_BLOCKS and wished > console.width:
                blocks -= min(4, blocks - LEAST_BLOCKS)
            elif least <= console.width or not (spare or blocks):
                return drawn, least
            elif spare is None:
                blocks = 0
            else:
                hidden += [spare, spare.replace("_", " ")]

    def columns(self) -> dict[str, list[str]]:
        """Return the texts of all columns: what a row is about, its number with its interval, and the rest."""
        names = self.rows.column_names
        parts = {f"{name}{end}" for name in names for end in ("_lower", "_upper")} | {"lower", "upper"}
        rest = [
            name
            for name in names
            if name not in (*self.keys, self.number, *parts, *IN_FILES) and not _is_empty(self.rows[name])
        ]
        columns: dict[str, list[str]] = {}
        if self.several:
            columns["window"] = self._moments("window_start")
        first = ["rank"] if "rank" in rest else []
        own = [] if self.number is None else [self.number]
        for name in dict.fromkeys((*first, *self.keys, *own, *rest)):
            alone = name in self.keys[:-1] and len(pc.unique(self.rows[name])) == 1
            if alone or (name in self.keys and _is_empty(self.rows[name])):
                continue
            lower, upper = ("lower", "upper") if name == self.number else (f"{name}_lower", f"{name}_upper")
            ends = self._ends(name, lower, upper)
            heading = self.unit if name == self.number else name.replace("_", " ")
            columns[heading] = self._texts(name, *ends)
            if any(end is not None for each in ends for end in each):
                columns[INTERVAL if name == self.number else f"{heading} interval"] = list(map(words.interval, *ends))
        return columns

    def _ends(self, name: str, *ends: str) -> list[list[Any]]:
        """Return the ends of the interval of a column, which these columns have; none if it has none."""
        if all(end in self.rows.column_names for end in ends):
            return [self.rows[end].to_pylist() for end in ends]
        if name != "mean":
            return []
        margin = self.rows["mean_margin"]
        return [pc.subtract(self.rows[name], margin).to_pylist(), pc.add(self.rows[name], margin).to_pylist()]

    def _texts(self, name: str, lower: Sequence[Any] = (), upper: Sequence[Any] = ()) -> list[str]:
        """Return the values of a column as texts."""
        column = self.rows[name]
        if pa.types.is_timestamp(column.type):
            return self._moments(name)
        values = column.to_pylist()
        spreads = list(map(_spread, lower, upper)) if lower else [None] * len(values)
        texts = list(map(_text, values, spreads))
        if "quantile" in self.keys and name == self.number:
            given = self.record.get("parameters", {})
            known = zip(texts, lower, upper, strict=True)
            return ["unknown" if words.says_nothing(low, high, given) else text for text, low, high in known]
        return texts

    def _moments(self, name: str) -> list[str]:
        """Return the times of a column as texts."""
        return moments(self.rows[name].cast(pa.int64()).to_pylist(), self.clocks, others=self.edges)

    def _has_trend(self, console: Console) -> bool:
        """Tell whether numbers have several windows, and the terminal has blocks."""
        try:
            BLOCKS.encode(console.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return self.number is not None and len(self.windows) > 1 and not self.several

    def _trends(self, blocks: int) -> tuple[str, list[str]]:
        """Draw the numbers of so many last windows beside each row; the name of the column first."""
        assert self.number is not None
        last = self.windows[-blocks:]
        found = self.table_of.filter(pc.greater_equal(self.table_of["window_start"].cast(pa.int64()), last[0]))
        if self.keys:
            first = self.keys[-1]
            found = found.filter(pc.is_in(found[first], value_set=self.rows[first].combine_chunks()))
        lines: dict[tuple[Any, ...], dict[int, float]] = {}
        starts = found["window_start"].cast(pa.int64()).to_pylist()
        about = list(zip(*(found[name].to_pylist() for name in self.keys), strict=True)) or [()] * len(starts)
        for key, start, value in zip(about, starts, found[self.number].to_pylist(), strict=True):
            if value is not None:
                lines.setdefault(key, {})[start] = value
        shown = list(zip(*(self.rows[name].to_pylist() for name in self.keys), strict=True))
        texts = []
        for key in shown or [()] * self.rows.num_rows:
            own = lines.get(key, {})
            texts.append(sparkline([own.get(window) for window in last], max(own.values(), default=0.0)))
        window = self.record.get("parameters", {}).get("window")
        whole = blocks == len(self.windows)
        name = f"{blocks} windows" if window is None else words.windows_in_words(blocks, window).partition(" of ")[0]
        return name if whole else f"last {blocks}", texts

    def _drawn(self, columns: Mapping[str, Sequence[str]], trend: tuple[str, Sequence[str]] | None) -> Table:
        """Return the table of these columns."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        shown = dict(columns) | ({} if trend is None else {trend[0]: trend[1]})
        for name, column in shown.items():
            is_text = name in self.keys
            right = not is_text and any(one[:1].isdigit() or one[:1] in "-" for one in column) and name != "window"
            right = right and not (name in self.rows.column_names and pa.types.is_timestamp(self.rows[name].type))
            widest = max(map(len, column), default=0)
            table.add_column(
                Text(printable(name)),
                justify="right" if right else "left",
                overflow="fold",
                no_wrap=not is_text,
                min_width=min(LEAST_TEXT, widest) if is_text else None,
            )
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*map(_cell, cells))
        return table


def moments(micros: Sequence[int | None], clocks: Clocks, *, others: Sequence[int] = ()) -> list[str]:
    """Write times by the clocks of a run: as days where all are, with the year where they have several.

    Where clocks show a time twice, because they are put back, the abbreviation of their zone tells both apart.
    """
    known = [each for each in micros if each is not None]
    every = [*known, *others]
    years = {clocks.local(each).year for each in every}
    form = "" if clocks.at_midnight(every) else " %H:%M:%S" if any(each % MINUTE for each in every) else " %H:%M"
    form = f"%B{' %Y' if len(years) > 1 else ''}{form}"
    local = {each: clocks.local(each) for each in known}
    texts = {each: f"{moment.day} {moment:{form}}" for each, moment in local.items()}
    if len({*texts.values()}) < len(texts):
        texts = {each: f"{text} {local[each]:%Z}" for each, text in texts.items()}
    return ["-" if each is None else texts[each] for each in micros]


def sparkline(numbers: Sequence[float | None], most: float) -> str:
    """Return a block for each number, from 0 to the largest of them; a space where there is none.

    >>> sparkline([0, 50, None, 100], 100)
    '▁▅ █'
    """
    step = most / len(BLOCKS) if most > 0 else 1.0
    return "".join(
        " " if number is None else BLOCKS[min(len(BLOCKS) - 1, max(0, int(number / step)))] for number in numbers
    )


def _is_key(table: pa.Table, name: str) -> bool:
    """Tell whether a column says what a row is about."""
    return name in POINTS or (pa.types.is_string(table[name].type) and name not in NOT_KEYS)


def _is_empty(column: pa.ChunkedArray) -> bool:
    """Tell whether a column says nothing in any row."""
    return all(value is None or value is False or value == "" for value in pc.unique(column).to_pylist())


def _text(value: Any, spread: float | None) -> str:
    """Write a value of a row."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return words.rounded(value, spread)
    return "-" if value is None else {True: "yes", False: "no"}.get(value, str(value))


def _spread(lower: float | None, upper: float | None) -> float | None:
    """Return about the standard deviation that an interval stands for; a lower bound has no digits after the point."""
    if lower is None:
        return None
    return 1.0 if upper is None else (upper - lower) / 4


def _cell(text: str) -> Text:
    """Return a text in which nothing steers a terminal, cut where it would fill lines."""
    cell = Text(printable(text).replace("\n", "\\n"))
    cell.truncate(LONGEST_TEXT, overflow="ellipsis")
    return cell


@contextmanager
def until_closed() -> Iterator[None]:
    """Print until nobody reads it any more, as `head` does; what is said of the run follows in any case."""
    try:
        yield
    except SystemExit as ended:  # rich ends the process
        if ended.code != 1:
            raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
