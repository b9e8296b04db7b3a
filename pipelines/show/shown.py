"""What is shown of published rows, on a terminal as on pages: the newest window, its largest items, and their words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.limits.contributions import MOST_DROPPED
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.show import words
from privstream.transforms.row_types import LimitShare
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

NUMBERS = ("people", "value", "estimate", "ratio")
"""What may be the number of a row, the first one that there is."""

INTERVAL, WINDOW = "95% interval", "window"
NOT_KEYS = ("status", "source", "state")
"""Columns of texts that do not tell what a row is about; numbers that do are `POINTS`."""

POINTS = ("quantile", "low", "high", "query")
IN_FILES = ("window_start", "window_end", "noisy", "mean_margin", "error_bound")
"""Columns that only files have."""

MINUTE = 60_000_000
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Rows that are shown.

    Attributes:
        all: how many of them the window has, or the run where several windows are shown.
        last: end of the last one; days are told apart from hours by it.
    """

    table: pa.Table
    rows: pa.Table
    all: int
    keys: tuple[str, ...]
    number: str | None
    windows: tuple[int, ...]
    last: int
    several: bool
    record: Mapping[str, Any]

    @classmethod
    def of(cls, table: pa.Table, record: Mapping[str, Any], most: int, *, every: bool = False) -> Shown:
        """Choose the newest window and its largest rows; of rows about no items, and of `every` window, the newest."""
        names = table.column_names
        keys = keys_of(table)
        number = next((name for name in NUMBERS if name in names), None)
        rows, windows, last = table, tuple[int, ...](), 0
        several = every or "rule" in keys or not keys
        if "window_start" in names and table.num_rows:
            starts = table["window_start"].cast(pa.int64())
            windows = tuple(sorted(pc.unique(starts).to_pylist()))
            last = pc.max(table["window_end"].cast(pa.int64())).as_py()
            if several:
                rows = table.take(pc.sort_indices(starts, sort_keys=[("", "descending")])) if every else table
            else:
                rows = table.filter(pc.equal(starts, windows[-1]))
                items = {*keys} - {*POINTS} and not {"rank", "query"} & {*names}
                by = "rise" if "rise" in names and not _is_empty(rows["rise"]) else number
                rows = rows.take(pc.sort_indices(rows[by], sort_keys=[("", "descending")])) if items and by else rows
        found = rows.num_rows
        last_ones = several and bool(windows) and not every
        return cls(
            table=table,
            rows=rows.slice(max(0, found - most)) if last_ones else rows.slice(0, most),
            all=found,
            keys=keys,
            number=number,
            windows=windows,
            last=last,
            several=several and bool(windows),
            record=record,
        )

    @cached_property
    def clocks(self) -> Clocks:
        """The clocks by which times are shown."""
        return Clocks.of(self.record.get("parameters", {}))

    @property
    def unit(self) -> str:
        """The heading of the numbers."""
        return "value" if "quantile" in self.keys else "ratio" if self.number == "ratio" else words.unit_of(self.record)

    @property
    def noun(self) -> str:
        """What a row is, in the plural."""
        return "items" if {*self.keys} - {"rule", *POINTS} and not self.several else "rows"

    @property
    def newest(self) -> str:
        """When the newest window begins, in words; empty without windows."""
        return moments(self.windows[-1:], self.clocks, others=[*self.windows, self.last])[0] if self.windows else ""

    @property
    def heading(self) -> str:
        """What stands above: what numbers are, of which window, by which clocks."""
        what = words.title_of(self.record, self.keys)
        length = self.record.get("parameters", {}).get("window")
        if not self.windows or length is None:
            return what
        unit = words.value_unit(self.record) if "value" in self.table.column_names else ""
        what += f", values in {unit}" if unit else ""
        if len(self.windows) == 1:
            (end,) = moments([self.last], self.clocks, others=self.windows, ends=True)
            span = self.newest if end == self.newest else f"{self.newest} to {end}"
            return f"{what}, {self.clocks.zone}: {span}, one window"
        number = words.windows_in_words(len(self.windows), length)
        seen = "" if self.record["guarantee"].get("horizon") == len(self.windows) else " with rows"
        return f"{what}, {self.clocks.zone}: {'' if self.several else f'{self.newest}, '}the last of {number}{seen}"

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """The texts of all columns: what a row is about, its number with its interval, and the rest."""
        names = self.rows.column_names
        hidden = {f"{name}{end}" for name in names for end in ("_lower", "_upper")} | {"lower", "upper", *IN_FILES}
        order = [*["rank"] * ("rank" in names), *self.keys, *[self.number] * (self.number is not None), *names]
        columns = {WINDOW: self._texts("window_start")} if self.several else {}
        for name in dict.fromkeys(order):
            alone = name in self.keys[:-1] and len(pc.unique(self.rows[name])) == 1
            if name in hidden or alone or (name != self.number and _is_empty(self.rows[name])):
                continue
            heading = self.unit if name == self.number else name.replace("_", " ")
            ends = self._ends(name)
            columns[heading] = self._texts(name, *ends)
            if any(end is not None for each in ends for end in each):
                columns[INTERVAL if name == self.number else f"{heading} interval"] = list(map(interval, *ends))
        return columns

    def trends(self, most: int) -> tuple[str, list[str]]:
        """Draw the numbers of so many last windows beside each row; the name of the column first, empty without one."""
        if self.number is None or len(self.windows) < 2 or self.several or not most:
            return "", []
        last = self.windows[-most:]
        found = self.table.filter(pc.greater_equal(self.table["window_start"].cast(pa.int64()), last[0]))
        lines: dict[tuple[Any, ...], dict[int, float]] = {}
        starts = found["window_start"].cast(pa.int64()).to_pylist()
        for key, start, value in zip(self._about(found), starts, found[self.number].to_pylist(), strict=True):
            if value is not None:
                lines.setdefault(key, {})[start] = value
        texts = []
        for key in self._about(self.rows):
            own = lines.get(key, {})
            texts.append(sparkline([own.get(window) for window in last], max(own.values(), default=0.0)))
        length, whole = self.record.get("parameters", {}).get("window"), len(last) == len(self.windows)
        name = f"{len(last)} windows" if length is None else words.windows_in_words(len(last), length)
        return name.partition(" of ")[0] if whole else f"last {len(last)}", texts

    def _about(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """Return what rows are about."""
        return list(zip(*(rows[name].to_pylist() for name in self.keys), strict=True))

    def _ends(self, name: str) -> list[list[Any]]:
        """Return the ends of the interval of a column; none if it has none."""
        ends = ("lower", "upper") if name == self.number else (f"{name}_lower", f"{name}_upper")
        if all(end in self.rows.column_names for end in ends):
            return [self.rows[end].to_pylist() for end in ends]
        if name != "mean":
            return []
        margin = self.rows["mean_margin"]  # no value is below 0
        least = pc.max_element_wise(pc.subtract(self.rows[name], margin), 0.0, skip_nulls=False)
        return [least.to_pylist(), pc.add(self.rows[name], margin).to_pylist()]

    def _texts(self, name: str, lower: Sequence[Any] = (), upper: Sequence[Any] = ()) -> list[str]:
        """Return the values of a column as texts."""
        column = self.rows[name]
        if pa.types.is_timestamp(column.type):
            return moments(column.cast(pa.int64()).to_pylist(), self.clocks, others=[*self.windows, self.last])
        values = column.to_pylist()
        if name == "value" and lower:  # noise may put a sum below 0
            values = [each and max(0, each) for each in values]
        spreads = list(map(_spread, lower, upper)) if lower else [None] * len(values)
        return list(map(_text, values, spreads))


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


def sparkline(numbers: Sequence[float | None], most: float) -> str:
    """Return a block for each number, from 0 to the largest of them; a space where there is none.

    >>> sparkline([0, 50, None, 100], 100)
    '▁▅ █'
    """
    step = most / len(BLOCKS) if most > 0 else 1.0
    return "".join(
        " " if number is None else BLOCKS[min(len(BLOCKS) - 1, max(0, int(number / step)))] for number in numbers
    )


def keys_of(table: pa.Table) -> tuple[str, ...]:
    """Return the columns that say what a row is about."""
    texts = {name for name in table.column_names if pa.types.is_string(table[name].type)} - {*NOT_KEYS}
    return tuple(name for name in table.column_names if name in texts or name in POINTS)


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


PLAIN, FEW, WIDEST = 8, 100, 0.5
"""Scales of the noise that are plain to see; people for which an epsilon is named; an interval that says nothing."""

NOBODY = (
    "No limit is suggested: too few people can be seen, or a few have most. It takes some {least:,.0f} people with "
    "alike numbers; with --epsilon {epsilon} it would take 100."
)
MEANS = (
    "kept: share of all contributions (items in windows); {beyond} may have more than is in this table. noise: "
    "standard deviation of a count. in one, in all: people that an item needs in one window, or in each, to be found "
    "with an even chance."
)
FOUND = (
    "For epsilon {epsilon:g} and delta {delta:g}, the limit that keeps most in relation to noise, of those that, "
    "as far as can be seen, drop at most {most:.0%}:"
)


def limits_below(rows: Sequence[LimitShare], promise: Any, monitor: Any) -> Iterator[Any]:
    """Yield what `privstream suggest` shows on a terminal: its rows, and the option on a line of its own."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("limit", "people", "kept", "noise", "in one", "in all"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.limit is not None:
            assert row.kept is not None and row.kept_lower is not None and row.kept_upper is not None
            share = f"{row.kept:.0%} ({row.kept_lower:.0%} to {row.kept_upper:.0%})"
            table.add_row(
                f"{row.limit:,.15g}",
                f"{row.people:,} ({row.people_lower:,} to {row.people_upper:,})",
                share if row.kept_upper - row.kept_lower <= WIDEST else "not known",
                f"{row.stddev:,.3g}",
                f"{row.found_in_one:,}",
                f"{row.found_in_all:,}",
            )
    if table.row_count:
        yield table
        yield Text(MEANS.format(beyond=f"{rows[-1].people_lower:,} to {rows[-1].people_upper:,} people"))
    if option := next((row.suggested for row in rows if row.suggested), ""):
        (question,), delta = monitor.questions.values(), monitor.privacy.spent_delta
        yield Text(FOUND.format(epsilon=float(question.for_epsilon), delta=delta, most=MOST_DROPPED))
        yield Text(option)
    else:
        least = PLAIN * promise.number("accuracy", "noise_scale")
        needed = promise.number("parameters", "epsilon") * least / FEW
        yield Text(NOBODY.format(least=least, epsilon=f"{needed:.2g}"))


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
    spread = (upper - lower) / 4
    return f"{rounded(lower, spread)} to {rounded(upper, spread)}"
