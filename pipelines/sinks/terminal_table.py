"""Rows as a table on a terminal: the numbers that a reader needs, rounded by their noise; files have all columns."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from privstream.mechanisms.privacy.units import in_words
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.sinks.row_files import field_types, read_row_file
from privstream.pipelines.terminal import printable
from privstream.transforms.row_types import Time, is_time
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

TERMINAL = "-"
UTC = Clocks()
WIDEST, LEAST_TEXT = 1000, 12
"""Of a table, which is not cut where it is wider than the terminal, and of a column of texts."""

COSTS = ("epsilon_left", "stopped")
"""What rows say of a budget, if they cost any."""

NOTHING = "-"
"""What is written where there is no value."""

NUMBERS = ("people", "estimate")
SMOOTHED, BETWEEN, RISE, RISE_BETWEEN = "smoothed", "between", "rise", "rise_between"
MEAN, MEAN_BETWEEN = "mean", "mean_between"
IN_FILES = ("noisy", "value_lower", "value_upper")
"""What only files tell."""

IF_ROOM = (RISE_BETWEEN, MEAN_BETWEEN, "since", "trend")
"""Columns that only files have where the terminal has no room for them."""

SPARED = (
    *("gap", "distance", "error_bound", "threshold", "status", "rank"),
    *("measurements_left", "epsilon_left"),
)
"""Columns that only files have where the table would be wider than the terminal without them, too, in this order."""

BLOCKS = "▁▂▃▄▅▆▇█"
TREND = "trend"
TREND_WINDOWS = 12
TREND_IN_WORDS = f"Trend: the last {TREND_WINDOWS} windows until that of the row, from 0 to its line's largest number."
RULE = "rule"
"""Rows that have it are not followed, since most windows have none."""

SAME_LINE = ("item", "category", "query", "quantile", "low", "high")
"""Fields that tell apart what is followed over windows."""

SECOND, MINUTE = 1_000_000, 60_000_000


def _size(number: Any) -> float:
    """Return a number by which rows are sorted; words in place of one come last."""
    return float(number) if isinstance(number, int | float) else 0.0


def _has_ends(rows: Sequence[Any]) -> bool:
    """Tell whether rows have intervals."""
    return any(row.lower is not None or row.upper is not None for row in rows)


@dataclass(frozen=True)
class View:
    """Which columns a terminal shows of rows of one type.

    Attributes:
        names: of the columns, in order; `between` and `rise_between` stand for both ends of an interval.
        number: the field that is shown as the number of a row; empty if rows show all of theirs.
        days: whether all windows are of whole days.
        followed: the field whose numbers are shown over windows; empty if none is.
        clocks: by which times are shown.
    """

    names: tuple[str, ...]
    number: str = ""
    days: bool = False
    followed: str = ""
    clocks: Clocks = UTC

    @classmethod
    def of(cls, rows: Sequence[Any], row_type: type, clocks: Clocks = UTC) -> View:
        """Return what is shown: of numbers with several intervals one, and nothing that all rows lack or share."""
        types = field_types(row_type)
        hidden = {*IN_FILES}
        hidden |= {name for name in COSTS if not any(getattr(row, name, None) for row in rows)}
        lengths = {row.window_end.micros - row.window_start.micros for row in rows if "window_end" in types}
        if len(lengths) == 1 or (lengths and clocks.window):
            hidden |= {"window_end"}
        if all(row.time.micros < SECOND for row in rows if "time" in types):
            hidden |= {"time"}  # queries without a time have their place as one
        view = cls._number(rows, types)
        names = [name for name in view.names if name not in hidden]
        if any(getattr(row, RISE, None) is not None for row in rows):
            names += [RISE, RISE_BETWEEN]
        if MEAN in names:
            names.insert(names.index(MEAN) + 1, MEAN_BETWEEN)
        known = view.number or next((name for name in NUMBERS if name in names and RULE not in types), "")
        several = known and len({row.window_start for row in rows if "window_end" in types}) > 1
        if several:
            names.insert(names.index(BETWEEN if BETWEEN in names else known) + 1, TREND)
        moments = {time.micros for row in rows if "window_end" in types for time in (row.window_start, row.window_end)}
        days = bool(moments) and clocks.at_midnight(moments)
        return cls(tuple(names), view.number, days, known if several else "", clocks)

    @classmethod
    def _number(cls, rows: Sequence[Any], types: Collection[str]) -> View:
        """Choose the number of a row and its interval."""
        names = [name for name in types if not name.startswith((SMOOTHED, RISE, f"{MEAN}_"))]
        ends = (
            {"lower", "upper"} <= {*types} and {"people", "error_bound", "since", "gap"} & {*types} and _has_ends(rows)
        )
        if SMOOTHED not in types and not ends:  # intervals of counts alone say no more than ±, and there may be none
            spared = ("lower", "upper") if {"count", "error_bound"} & {*types} else ()
            return cls(tuple(name for name in names if name not in spared))
        known = next(name for name in NUMBERS if name in types)
        number = SMOOTHED if any(getattr(row, SMOOTHED, None) is not None for row in rows) else known
        names = [name for name in names if name not in ("error_bound", "lower", "upper")]
        place = names.index(known)
        return cls((*names[:place], number, BETWEEN, *names[place + 1 :]), number)

    @property
    def known(self) -> str:
        """The field with the number of a row that is not smoothed."""
        return next((name for name in NUMBERS if name in self.names), "estimate")

    def number_of(self, row: Any) -> float | None:
        """Return the number that is shown of a row: where it is not smoothed, its count."""
        value: float | None = getattr(row, self.number)
        return getattr(row, self.known) if value is None and self.number == SMOOTHED else value

    def sorted(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Sort rows of a window by the number that is shown; those with a rank have it by theirs."""
        if self.number != SMOOTHED or self.known == "estimate":
            return rows
        places = {key: place for place, key in enumerate(dict.fromkeys(map(_WINDOW, rows)))}
        return sorted(rows, key=lambda row: (places[_WINDOW(row)], -_size(self.number_of(row))))

    def interval(self, row: Any) -> str:
        """Write the interval of a row."""
        return _ends(row.lower, row.upper)


_WINDOW = attrgetter("window_start.micros")


def print_rows(
    rows: Sequence[Any],
    row_type: type,
    *,
    title: str = "",
    note: str | Callable[[Sequence[str]], str] = "",
    limit: int | None = None,
    console: Console | None = None,
    clocks: Clocks = UTC,
) -> None:
    """Print rows as a table that fits a terminal, if names are not too long; files have all columns.

    A number that is missing is shown as `-`. The length of windows is shown once; a budget that no row costs is
    left out. Where a table is wider than the terminal, what is the same in all rows stands below it, and some columns
    stand in files alone, which is said.

    Args:
        rows: what to print, in order.
        row_type: the NamedTuple that they are.
        title: printed above.
        note: printed below, or what makes it of the names of the columns.
        limit: print so many rows at most, and say how many were left out.
        console: where to print; the standard output if None.
        clocks: by which times are shown.
    """
    console = console or Console()
    view, types = View.of(rows, row_type, clocks), field_types(row_type)
    shown = view.sorted(rows)[:limit]
    drawable = _can_write(console, BLOCKS)
    columns = {
        name: _trends(rows, shown, view) if name == TREND else _column(shown, name, view)
        for name in view.names
        if name != TREND or drawable
    }
    table, wished, room = _table(console, columns, types)
    alike, left_out = "", []
    if wished > console.width and (same := _alike(columns, view)):
        alike = f"In all rows: {', '.join(f'{_words(name)} {columns.pop(name)[0] or NOTHING}' for name in same)}."
        table, wished, room = _table(console, columns, types)
    for name in (*IF_ROOM, *SPARED):
        too_wide = wished - (0 if name in IF_ROOM else room) > console.width
        if too_wide and name != view.number and columns.pop(name, None) is not None:
            left_out += [_words(name)] if name != TREND else []
            table, wished, room = _table(console, columns, types)
    if heading := _title(title, rows, view, types):
        console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    usual = console.width
    console.width = max(usual, wished - room)
    console.print(table, crop=False)
    console.width = usual
    if len(rows) > len(shown):
        console.print(f"and {len(rows) - len(shown):,} more")
    words = [alike, note(tuple(columns)) if callable(note) else note]
    words += [TREND_IN_WORDS] if TREND in columns else []
    words.append(f"Only in files: {', '.join(left_out)}." if left_out else "")
    if told := " ".join(filter(None, words)):
        console.print(Text(printable(told)))


def _alike(columns: Mapping[str, Sequence[Text]], view: View) -> list[str]:
    """Return the columns that say the same in all of several rows, but for the numbers that a reader looks for."""
    kept = (view.number, *NUMBERS, BETWEEN, TREND, "window_start", "item", "category")
    return [
        name
        for name, column in columns.items()
        if name not in kept and len(column) > 1 and len({cell.plain for cell in column}) == 1
    ]


def _words(name: str) -> str:
    """Write the name of a column as text."""
    return name.replace("_", " ")


def _title(title: str, rows: Sequence[Any], view: View, types: Collection[str]) -> str:
    """Return what stands above a table."""
    parts = [title] if title else []
    if "window_end" in types and "window_end" not in view.names:
        length = in_words(rows[0].window_end.micros - rows[0].window_start.micros)
        parts.append(f"windows of {view.clocks.window or length}")
    if any(is_time(getattr(row, name, None)) for row in rows[:1] for name in view.names):
        parts.append(f"times in {view.clocks.zone}")
    return ", ".join(parts)


def _column(rows: Sequence[Any], name: str, view: View) -> list[Text]:
    """Write one column."""
    if name == BETWEEN:
        texts = [view.interval(row) for row in rows]
    elif name == MEAN_BETWEEN:
        texts = [
            NOTHING if row.mean is None else _ends(row.mean - row.mean_margin, row.mean + row.mean_margin)
            for row in rows
        ]
    elif name == MEAN:
        texts = [_rounded_mean(row) for row in rows]
    elif name == RISE_BETWEEN:
        texts = [_ends(row.rise_lower, row.rise_upper) for row in rows]
    elif name == RISE:
        texts = ["-" if row.rise is None else _rounded(row.rise, (row.rise_upper - row.rise_lower) / 4) for row in rows]
    elif name == view.number:
        spreads = [_half(row) for row in rows]
        texts = [_written(view.number_of(row), spread) for row, spread in zip(rows, spreads, strict=True)]
    else:
        values = [getattr(row, name) for row in rows]
        if any(map(is_time, values)):
            moments = iter(_moments([value for value in values if value is not None], view))
            texts = [NOTHING if value is None else next(moments) for value in values]
        else:
            texts = [_written(value, None) for value in values]
    return [Text(printable(text).replace("\n", "\\n")) for text in texts]


def _rounded_mean(row: Any) -> str:
    """Write a mean, without the digits that noise hides."""
    return NOTHING if row.mean is None else _rounded(row.mean, row.mean_margin / 2)


def _trends(rows: Sequence[Any], shown: Sequence[Any], view: View) -> list[Text]:
    """Draw the numbers of the last windows beside each row that is shown, as blocks of different heights."""
    windows = sorted({row.window_start.micros for row in rows})
    places = {window: place for place, window in enumerate(windows)}
    lines: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        value = view.number_of(row) if view.followed == view.number else getattr(row, view.followed)
        if isinstance(value, int | float):
            lines.setdefault(_line(row), {})[row.window_start.micros] = value
    texts = []
    for row in shown:
        own, place = lines.get(_line(row), {}), places[row.window_start.micros]
        until = windows[max(0, place + 1 - TREND_WINDOWS) : place + 1]
        texts.append(sparkline([own.get(window) for window in until], max(own.values(), default=0.0)))
    return [Text(text) for text in texts]


def _line(row: Any) -> tuple[Any, ...]:
    """Return what a row is about, but for its window."""
    return tuple(getattr(row, name) for name in SAME_LINE if hasattr(row, name))


def sparkline(numbers: Sequence[float | None], most: float) -> str:
    """Return a block for each number, from 0 to the largest of them; a space where there is none.

    >>> sparkline([0, 50, None, 100], 100)
    '▁▅ █'
    """
    step = most / len(BLOCKS) if most > 0 else 1.0
    return "".join(
        " " if number is None else BLOCKS[min(len(BLOCKS) - 1, max(0, int(number / step)))] for number in numbers
    )


def _can_write(console: Console, text: str) -> bool:
    """Tell whether a terminal has these letters."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _ends(lower: float | None, upper: float | None) -> str:
    """Write an interval, rounded by about the standard deviation that it stands for."""
    if lower is None:
        return "-"
    if upper is None:  # limits drop much of the number
        return f"{lower:,.0f} or more"
    spread = (upper - lower) / 4
    return f"{_rounded(lower, spread)} and {_rounded(upper, spread)}"


def _half(row: Any) -> float | None:
    """Return about a standard deviation of the number of a row, by its interval."""
    return None if row.lower is None or row.upper is None else float(row.upper - row.lower) / 4


def _written(value: Any, spread: float | None) -> str:
    """Write a value of a row."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _rounded(value, spread)
    return "-" if value is None else str(value)


def _rounded(value: float, spread: float | None) -> str:
    """Write a number without the digits that are noise; where noise is not known, with four digits."""
    if isinstance(value, int) or abs(value) >= 1000 or value == round(value):
        digits = 0
    elif spread is None:
        return f"{value:.4g}"
    else:
        digits = 0 if spread >= 1 else min(6, 1 - math.floor(math.log10(max(spread, 1e-6))))
    return f"{value:,.{digits}f}".replace("-0", "0") if round(value, digits) == 0 else f"{value:,.{digits}f}"


def _moments(values: Sequence[Any], view: View) -> list[str]:
    """Write times by the clocks of the run: as days where windows are whole ones, else to the minute if they are.

    Where clocks show a time twice, because they are put back, the abbreviation of their zone tells both apart.
    """
    moments = [view.clocks.local(value.micros) for value in values]
    if not view.days and any(value.micros % MINUTE for value in values):
        texts = [moment.replace(tzinfo=None).isoformat(" ") for moment in moments]
    else:
        texts = [f"{moment:{'%Y-%m-%d' if view.days else '%Y-%m-%d %H:%M'}}" for moment in moments]
    if len({*texts}) < len({value.micros for value in values}):
        texts = [f"{text} {moment:%Z}" for text, moment in zip(texts, moments, strict=True)]
    return texts


def _table(console: Console, columns: dict[str, list[Text]], types: Any) -> tuple[Table, int, int]:
    """Return a table, how wide it would be, and by how much texts can be folded."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    room = 0
    for name, column in columns.items():
        between = name in (BETWEEN, RISE_BETWEEN, MEAN_BETWEEN)
        number = between or (name != TREND and types[name] in (int, float))
        whole = number or name == TREND or types[name] is Time  # a number that is broken is another number
        longest = max((cell.cell_len for cell in column), default=0)
        room += 0 if whole else max(0, longest - LEAST_TEXT)
        heading = name.replace("_", "\n" if number else " ")
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    wished = Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    return table, wished, room


@contextmanager
def file_or_terminal(
    path: str,
    row_type: type,
    title: str = "",
    shown: Callable[[Any], Any] | None = None,
    note: str | Callable[[Sequence[str]], str] = "",
    below: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
    *,
    table: bool = True,
    clocks: Clocks = UTC,
) -> Iterator[str]:
    """Give the path to write to; if it is `-`, a temporary file whose rows are printed when the run has succeeded.

    `shown` makes of each row what is printed in its place; `note` stands below the rows, or what it makes of the
    names of their columns, and what `below` makes of all
    of them at the end; without `table` nothing else is printed. Times are shown by `clocks`.

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
        with until_closed():
            if table:
                printed = rows if shown is None else list(map(shown, rows))
                print_rows(printed, row_type, title=title, note=note, clocks=clocks)
            for each in () if below is None else below(rows):
                Console().print(each)


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
