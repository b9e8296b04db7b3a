"""What is shown of rows, on terminals, pages and pictures: the newest window, its largest items, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.limits.contributions import MOST_DROPPED
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.show import words
from privstream.transforms.row_types import NUMBERS, LimitShare, number_of
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

INTERVAL, WINDOW = "95% interval", "window"
NOT_KEYS = ("status", "source", "state")
"""Columns of texts that do not tell what a row is about; numbers that do are `POINTS`."""

POINTS = ("quantile", "low", "high", "query")
IN_FILES = ("window_start", "window_end", "noisy", "mean_margin", "error_bound")
"""Columns that only files have."""

MINUTE = 60_000_000
BLOCKS = "▁▂▃▄▅▆▇█"


class Shown:
    """Rows that are shown: the largest ones of the newest window; of rows about no items, and of `every` window, the
    newest ones.

    Attributes:
        keys, number: columns with what a row is about, and with its number; None where it has none.
        windows: when windows begin, in microseconds since 1970; none where rows have no window.
        last: when the last one ends.
        several: whether rows of several windows are shown.
        of_items: whether rows are about items, whose largest come first.
        rows: those that are shown, of `all` there are in these windows.
        columns: the texts of all columns: what a row is about, its number with its interval, and the rest.
        numeric: the columns that are numbers.
    """

    def __init__(
        self, table: pa.Table, record: Mapping[str, Any], most: int, *, number: str | None = None, every: bool = False
    ) -> None:
        names, rows = table.column_names, table
        timed = "window_start" in names and table.num_rows > 0
        self.table, self.record, self.clocks = table, record, Clocks.of(record.get("parameters", {}))
        self.keys, self.number = keys_of(table), number or shown_number(table)
        self.several = timed and (every or "rule" in self.keys or not self.keys)
        self.of_items = bool({*self.keys} - {"rule", *POINTS}) and not self.several
        self.windows, self.last = tuple[int, ...](), 0
        if timed:
            starts = table["window_start"].cast(pa.int64())
            self.windows = tuple(sorted(pc.unique(starts).to_pylist()))
            self.last = pc.max(table["window_end"].cast(pa.int64())).as_py()
            if every:
                rows = table.sort_by([("window_start", "descending")])
            elif not self.several:
                rows = table.filter(pc.equal(starts, self.windows[-1]))
        if self.of_items and self.number is not None and "rank" not in names and "query" not in self.keys:
            rows = rows.sort_by([(self.number, "descending")])
        self.all = rows.num_rows
        self.rows = rows.slice(max(0, self.all - most)) if self.several and not every else rows.slice(0, most)
        self.columns, self.numeric = dict[str, list[str]](), set[str]()
        self._fill()

    @property
    def unit(self) -> str:
        """The heading of the numbers."""
        return self.heading_of(self.number or "people")

    def heading_of(self, name: str) -> str:
        """Return the heading of a column."""
        if name in ("people", "estimate"):
            return words.unit_of(self.record)
        if name == self.number == "value" and "state" not in self.table.column_names:
            return words.value_unit(self.record) or name
        return name if name in self.keys else name.replace("_", " ")

    @property
    def title(self) -> str:
        """What the rows are."""
        unit = words.value_unit(self.record) if "value" in self.table.column_names and self.number != "value" else ""
        about = words.title_of(self.record, self.keys, self.unit if self.number == "value" else "")
        return f"{about}, values in {unit}" if unit else about

    @property
    def heading(self) -> str:
        """What the rows are, and of which windows."""
        return ": ".join(filter(None, [self.title, self.when]))

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The texts of all rows."""
        return list(zip(*self.columns.values(), strict=True))

    @property
    def newest(self) -> str:
        """When the newest window begins, in words; empty without windows."""
        return moments(self.windows[-1:], self.clocks, others=[*self.windows, self.last])[0] if self.windows else ""

    @property
    def when(self) -> str:
        """Which window is shown, or the last one of several, by which clocks; empty without windows."""
        if not self.windows:
            return ""
        if len(self.windows) == 1:
            (end,) = moments([self.last], self.clocks, others=self.windows, ends=True)
            only = "" if self.record["guarantee"].get("horizon") == 1 else ", the only window with rows"
            return f"{span(self.newest, end)}{only} ({self.clocks.zone})"
        number = words.windows_in_words(len(self.windows), self.record.get("parameters", {}).get("window"))
        seen = "" if self.record["guarantee"].get("horizon") == len(self.windows) else " with rows"
        return f"{'' if self.several else f'{self.newest}, '}the last of {number}{seen} ({self.clocks.zone})"

    @property
    def count(self) -> str:
        """How many rows are shown, and of how many."""
        of = f" of {self.all:,}" if self.all > self.rows.num_rows else ""
        return f"{self.rows.num_rows:,}{of} {'item' if self.of_items else 'row'}{'s' * (self.all != 1)}"

    def _fill(self) -> None:
        names = self.rows.column_names
        hidden = {f"{name}{end}" for name in names for end in ("_lower", "_upper")} | {"lower", "upper", *IN_FILES}
        hidden |= {"query"} - {*self.keys} | ({"since"} if "status" in names else set())
        if self.several:
            self.columns[WINDOW] = self._texts("window_start")
        order = [*["rank"] * ("rank" in names), *self.keys, *filter(None, [self.number]), *names]
        for name in dict.fromkeys(order):
            if name in hidden or (name != self.number and _is_empty(self.rows[name])):
                continue
            heading, kind, ends = self.heading_of(name), self.rows[name].type, self._ends(name)
            self.columns[heading] = self._texts(name, *ends)
            if name not in self.keys and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                self.numeric.add(heading)
            if any(end is not None for each in ends for end in each):
                between = INTERVAL if name == self.number else f"{heading} interval"
                self.columns[between] = list(map(interval, *ends))
                self.numeric.add(between)

    def trends(self, most: int) -> tuple[str, list[str]]:
        """Draw numbers of the last windows, `most` at most, by row; the name of the column first, or an empty one."""
        if self.number is None or len(self.windows) < 2 or self.several:
            return "", []
        last = self.windows[-most:]
        found = self.table.filter(pc.greater_equal(self.table["window_start"].cast(pa.int64()), last[0]))
        about = zip(self._about(found), found["window_start"].cast(pa.int64()).to_pylist(), strict=True)
        numbers = dict(zip(about, found[self.number].to_pylist(), strict=True))
        texts = [sparkline([numbers.get((key, window)) for window in last]) for key in self._about(self.rows)]
        name = words.windows_in_words(len(last), self.record.get("parameters", {}).get("window"))
        return name.partition(" of ")[0] if len(last) == len(self.windows) else f"last {len(last)}", texts

    def _about(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """Return what rows are about."""
        return list(zip(*(rows[name].to_pylist() for name in self.keys), strict=True))

    def _ends(self, name: str) -> list[list[Any]]:
        """Return the ends of the interval of a column; none if it has none."""
        if name == "mean":
            margin = self.rows["mean_margin"]  # no value is below 0
            least = pc.max_element_wise(pc.subtract(self.rows[name], margin), 0.0, skip_nulls=False)
            return [least.to_pylist(), pc.add(self.rows[name], margin).to_pylist()]
        ends = ends_of(name, self.rows.column_names)
        return [self.rows[end].to_pylist() for end in ends]

    def _texts(self, name: str, lower: Sequence[Any] = (), upper: Sequence[Any] = ()) -> list[str]:
        """Return the values of a column as texts."""
        column = self.rows[name]
        if pa.types.is_timestamp(column.type):
            return moments(column.cast(pa.int64()).to_pylist(), self.clocks, others=[*self.windows, self.last])
        values = column.to_pylist()
        if name == "value" and lower:  # noise may put a sum below 0
            values = [each and max(0, each) for each in values]
        return list(map(_text, values, map(_spread, lower, upper) if lower else [None] * len(values)))


def moments(
    micros: Sequence[int | None], clocks: Clocks, *, others: Sequence[int] = (), ends: bool = False
) -> list[str]:
    """Write times by the clocks of a run: as days where all are, with the year where they have several.

    Where they are `ends` of days, each is the last day before. Where clocks show a time twice, because they are put
    back, the abbreviation of their zone tells both apart.
    """
    known = [each for each in micros if each is not None]
    every = [*known, *others]
    years = {clocks.local(each).year for each in every}
    days = clocks.at_midnight(every)
    form = "" if days else " %H:%M:%S" if any(each % MINUTE for each in every) else " %H:%M"
    form = f"%B{' %Y' if len(years) > 1 else ''}{form}"
    local = {each: clocks.local(each - (ends and days)) for each in known}
    texts = {each: f"{moment.day} {moment:{form}}" for each, moment in local.items()}
    if len({*texts.values()}) < len(texts):
        texts = {each: f"{text} {local[each]:%Z}" for each, text in texts.items()}
    return ["-" if each is None else texts[each] for each in micros]


def span(begin: str, end: str) -> str:
    """Return two moments as one text, which names a day once.

    >>> span("1 January 12:00", "1 January 14:00"), span("1 January", "1 January"), span("1 May", "1 June")
    ('1 January 12:00 to 14:00', '1 January', '1 May to 1 June')
    """
    day = begin.rpartition(" ")[0] if ":" in begin else ""
    return begin if begin == end else f"{begin} to {end.removeprefix(day).lstrip()}"


def sparkline(numbers: Sequence[float | None]) -> str:
    """Return a block for each number, from 0 to the largest of them; a space where there is none.

    >>> sparkline([0, 50, None, 100])
    '▁▅ █'
    """
    most, last = max((number or 0.0 for number in numbers), default=0.0) or 1.0, len(BLOCKS) - 1
    places = (None if number is None else int(len(BLOCKS) * number / most) for number in numbers)
    return "".join(" " if place is None else BLOCKS[max(0, min(place, last))] for place in places)


def keys_of(table: pa.Table) -> tuple[str, ...]:
    """Return the columns that say what a row is about."""
    texts = {name for name in table.column_names if pa.types.is_string(table[name].type)} - {*NOT_KEYS}
    keys = [name for name in table.column_names if name in texts or name in POINTS]
    return tuple(name for name in keys if name != "query" or pc.unique(table[name]).to_pylist() != ["histogram"])


def shown_number(table: pa.Table) -> str | None:
    """Return the column with the number of a row, if it has one; where rows have rises, these."""
    names = table.column_names
    return "rise" if "rise" in names and not _is_empty(table["rise"]) else number_of(names) or None


def ends_of(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns with the ends of the interval of a column; none if it has none."""
    own, plain = (f"{name}_lower", f"{name}_upper"), ("lower", "upper")
    return own if own[0] in names else plain if name in NUMBERS and plain[0] in names else ()


def name_of(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return what a row is about, but for its window."""
    texts = {name: str(row[name]) for name in keys}
    if "high" in texts:
        texts |= {"low": f"{row['low']:,} to {row['high']:,}", "high": ""}
    if "quantile" in texts:
        texts["quantile"] = "median" if row["quantile"] == 0.5 else f"{100 * row['quantile']:g}%"
    return ", ".join(filter(None, texts.values()))


def _is_empty(column: pa.ChunkedArray) -> bool:
    """Tell whether a column says nothing in any row."""
    return all(value is None or value is False or value == "" for value in pc.unique(column).to_pylist())


def _text(value: Any, spread: float | None) -> str:
    """Write a value of a row."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rounded(value, spread)
    return "-" if value is None else {True: "yes", False: "no"}.get(value, str(value))


def _spread(lower: float | None, upper: float | None) -> float | None:
    """Return about the standard deviation that an interval stands for; a lower bound has no digits after the point."""
    if lower is None:
        return None
    return 1.0 if upper is None else (upper - lower) / 4


WIDEST = 0.5
"""An interval of a share that says nothing."""

NOBODY = "No limit is suggested: too few people are seen, or a few have most of all contributions. Raise --epsilon."
MEANS = (
    "retained: share of all contributions (items in windows) within the limit; {beyond} people may have more than the "
    "last one. noise: standard deviation of a count. in one, in each: people that an item needs in one window, or in "
    "each, to be found with an even chance."
)
FOUND = (
    "For epsilon {epsilon:g} and delta {delta:g}, of the limits that drop at most {most:.0%}{seen}, the one that "
    "retains most in relation to noise:"
)
UNSURE = (
    "What it drops of all contributions is not known: a few people may have far more. The run says it; where that is "
    "much, take the next limit, or repeat this with a larger --epsilon."
)


def limits_below(rows: Sequence[LimitShare], monitor: Any) -> Iterator[Any]:
    """Yield what `privstream suggest` shows on a terminal: its rows, and the option on a line of its own."""
    names = ("limit", "people", "retained", "noise", "in one", "in each")
    table = Table(*(Column(name, justify="right") for name in names), box=SIMPLE_HEAD)
    option, sure = "", False
    for row in rows[:-1]:  # the last one has no limit
        lower, upper = row.kept_lower or 0.0, row.kept_upper or 0.0
        people = f"{row.people:,} ({row.people_lower:,} to {row.people_upper:,})"
        known = upper - lower <= WIDEST
        share = f"{row.kept:.0%} ({lower:.0%} to {upper:.0%})" if known else "not known"
        option, sure = (row.suggested, known) if row.suggested else (option, sure)
        found = f"{row.found_in_one:,}", f"{row.found_in_all:,}"
        table.add_row(f"{row.limit:,.15g}", people, share, f"{row.stddev:,.3g}", *found)
    if table.row_count:
        yield table
        yield Text(MEANS.format(beyond=f"{rows[-1].people_lower:,} to {rows[-1].people_upper:,}"))
    if not option:
        yield Text(NOBODY)
        return
    (question,), delta = monitor.questions.values(), monitor.privacy.spent_delta
    seen = "" if sure else " of what the people seen in the table have"
    yield Text(FOUND.format(epsilon=float(question.for_epsilon), delta=delta, most=MOST_DROPPED, seen=seen))
    yield Text(option if sure else f"{option}\n{UNSURE}")


def rounded(value: float, spread: float | None) -> str:
    """Write a number without the digits that noise hides; where noise is not known, with four digits."""
    if isinstance(value, int) or abs(value) >= 1000 or value == round(value):
        digits = 0
    elif spread is None:
        return f"{value:.4g}"
    else:
        digits = 0 if spread >= 1 else min(6, 1 - math.floor(math.log10(max(spread, 1e-6))))
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def interval(lower: float | None, upper: float | None) -> str:
    """Write an interval, or a lower bound where limits drop much of the number."""
    if lower is None:
        return "-" if upper is None else f"{rounded(upper, None)} or less"
    if upper is None:
        return f"{lower:,.0f} or more"
    spread = _spread(lower, upper)
    return f"{rounded(lower, spread)} to {rounded(upper, spread)}"
