"""Views of a monitor: what is made of the published rows of its questions, at no cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import numpy as np
from privstream.mechanisms.postprocess import NORMAL, ratio_bounds
from privstream.mechanisms.views.digits import meaningful
from privstream.mechanisms.views.rules import Condition, Watch, watched
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.question import QuestionInfo
from privstream.pipelines.model.views import ViewModel
from privstream.pipelines.sinks.row_files import sort_rows, with_item_columns
from privstream.pipelines.sinks.row_formats import PLAIN, Layout
from privstream.pipelines.sources.fields import FieldMapping
from privstream.transforms.counts.finished import LargestCounts, corrected_rows, numbers_or_none, released_rows
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.item_columns import join_item
from privstream.transforms.row_types import AlertState, KeyRise, RatioEstimate
from privstream.transforms.timing.steps import Steps, timestamp, windows_in
from typing_extensions import override

VIEWS = "views"
ESTIMATES = (
    ("people", "lower", "upper"),
    ("ratio", "lower", "upper"),
    ("estimate", "lower", "upper"),
)
"""Fields of rows with a number and its interval; the first that a row has is its number."""

RISEN = ("window_start", "-rise", "item")

BOUNDED = ("estimate", "error_bound")
"""Fields of rows that have a number and how far it is off at most."""

HISTORY = 128
"""Windows before those of a sum or a comparison from which smoothed numbers are made where input has no end."""

COMPARED = {"KeyCount", "KeyRise", "KeySum", "RatioEstimate", "QuantileEstimate", "CardinalityEstimate"}
"""Rows whose number an alert may be about: each window has one, unless nothing is known of the item."""

NAMED_BY = ("item", "quantile")
"""Fields of rows that tell numbers of a window apart."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Published rows of a question or of a view, and what is known of them.

    Attributes:
        row_type: of the rows.
        rows: all of them, in the order of `order`.
        order: fields to sort rows by, `-` before a name for falling numbers.
        columns: names of the columns of an item; none where rows have no item.
        steps: the windows.
        questions: names of those whose noise is in the numbers.
        listed: the public list of items that rows are about; None where items are found.
        transform: what has published the rows; None for a view.
        time: makes times of microseconds, as for `read_row_file`.
        dropped: the share that limits drop, as guarantee files have it; None where it is not known.
        layout: how rows are written.
    """

    row_type: Any
    rows: Sequence[Any]
    order: tuple[str, ...]
    columns: tuple[str, ...]
    steps: Steps
    questions: frozenset[str]
    listed: Domain | None = None
    transform: Any = None
    time: Callable[[int], Any] = timestamp
    dropped: Mapping[str, float | None] | None = None
    layout: Layout = PLAIN

    @classmethod
    def of(
        cls,
        name: str,
        info: QuestionInfo,
        fields: FieldMapping,
        transform: Any,
        rows: Sequence[Any],
        time: Callable[[int], Any],
    ) -> Table:
        """Return the table of a question that has been answered by a transform."""
        return cls(
            row_type=info.row_type_of(transform),
            rows=rows,
            order=info.order,
            columns=fields.items,
            steps=transform.steps,
            questions=frozenset([name]),
            listed=getattr(transform, "domain", None),
            transform=transform,
            time=time,
            layout=Layout.of(fields.time_zone, fields.delimiter, fields.decimal),
        )

    def bounds(self, step: int) -> tuple[Any, Any]:
        """Return start and end of a window."""
        start, end = self.steps.bounds_micros(step)
        return self.time(start), self.time(end)

    @property
    def written_type(self) -> type:
        """The type of rows as they are written: with the columns of an item in place of the item."""
        return with_item_columns(self.row_type, self.columns, self.layout)

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that no two rows have in common."""
        return tuple(name for name in self.order if not name.startswith("-"))

    def having(self, rows: Iterable[Any], row_type: Any = None, order: tuple[str, ...] = ()) -> Table:
        """Return the table of a view with these rows, in order."""
        made = replace(self, row_type=row_type or self.row_type, order=order or self.order, transform=None)
        return replace(made, rows=sort_rows(rows, made.order))


@dataclass(frozen=True, kw_only=True)
class View(ABC):
    """A view as the file describes it.

    Attributes:
        name: what its rows are called.
        model: what the file says of it.
        largest: number of rows of a window at most, those with the largest numbers; None for all.
    """

    name: str
    model: ViewModel
    largest: int | None = None

    @property
    @abstractmethod
    def sources(self) -> Sequence[tuple[str, str]]:
        """Keys that name questions and other views, and the names."""

    @property
    def nothing(self) -> str:
        """What a view without rows means, in words."""
        return "no rows"

    def note(self, tables: Mapping[str, Table]) -> str:
        """Return what must be said of the rows beside them, in words; empty where there is nothing."""
        return ""

    @abstractmethod
    def answer(self, tables: Mapping[str, Table]) -> Table:
        """Return the rows, from the tables of its sources.

        Raises:
            WrongKeyError: their rows cannot give it.
        """

    def error(self, key: str, message: str) -> WrongKeyError:
        """Return an error about a key."""
        return WrongKeyError((VIEWS, self.name, key), message)

    def back(self, tables: Mapping[str, Table]) -> int:
        """Return of how many windows before its own a row is made."""
        return 0

    def follow(self, tables: Mapping[str, Table], step: int, before: Any) -> tuple[Table, Any]:
        """Return the rows of one window as they are known at its end, and what the next window needs to know.

        Args:
            tables: of its sources, with rows of this window and as many before it as `back` says.
            step: the window.
            before: what the window before has returned; None in the first one.
        """
        found = self.answered(tables)
        end = found.steps.bounds(step)[1]
        return replace(found, rows=[row for row in found.rows if row.window_end == end]), None

    def answered(self, tables: Mapping[str, Table]) -> Table:
        """Return the rows, with the largest alone if these are asked for."""
        found = self.answer(tables)
        try:
            _ = found.written_type
        except ValueError as error:
            raise WrongKeyError((VIEWS, self.name), str(error)) from None
        return found if self.largest is None else self._with_largest(found, self.largest)

    def _with_largest(self, table: Table, number: int) -> Table:
        """Return the rows with the largest numbers of each window."""
        fields = table.row_type._fields
        ranked = ["rise"] if table.order[1:2] == ("-rise",) else [one[0] for one in ESTIMATES if one[0] in fields]
        if "item" not in fields or not ranked:
            raise self.error("largest", "must be of rows with an item and a count")
        known = [name for name in ranked if any(getattr(row, name) is not None for row in table.rows)] or ranked
        choose = LargestCounts(number, (known[0],)).among
        windows = defaultdict(list)
        for row in table.rows:
            windows[row.window_start.micros].append(row)
        return table.having([row for rows in windows.values() for row in choose(rows)])


@dataclass(frozen=True, kw_only=True)
class OfOne(View):
    """A view of one question, or of one other view.

    Attributes:
        of: its name.
    """

    of: str

    @property
    @override
    def sources(self) -> Sequence[tuple[str, str]]:
        return [("of", self.of)]


@dataclass(frozen=True, kw_only=True)
class Largest(OfOne):
    """The rows of a table with the largest numbers of each window."""

    @override
    def answer(self, tables: Mapping[str, Table]) -> Table:
        return tables[self.of].having(tables[self.of].rows)


@dataclass(frozen=True, kw_only=True)
class OfCounts(OfOne):
    """A view that is made of the counts of all windows of an item."""

    @property
    @abstractmethod
    def span(self) -> tuple[str, str | float, str]:
        """The key that says over or against how many windows, its duration, and the argument of the transform."""

    @override
    def answer(self, tables: Mapping[str, Table]) -> Table:
        return tables[self.of].having(self.viewed(tables[self.of]))

    @override
    def back(self, tables: Mapping[str, Table]) -> int:
        return self._windows(tables[self.of]) + HISTORY

    def viewed(self, table: Table) -> list[Any]:
        """Return what the transform of a question makes of its rows."""
        key, _, argument = self.span
        windows = self._windows(table)
        try:
            rows: list[Any] = table.transform.view(**{argument: windows})(released_rows(table.rows, table.dropped))
        except ValueError as error:
            raise self.error("of" if str(error).startswith("must be counts") else key, str(error)) from None
        return corrected_rows(rows, table.dropped)

    def _windows(self, table: Table) -> int:
        """Return over or against how many windows it is."""
        key, span, _ = self.span
        if not isinstance(table.transform, CountsParameters):
            raise self.error("of", "must be a question `counts`")
        try:
            return _windows(span, table.steps)
        except ValueError as error:
            raise self.error(key, str(error).removeprefix("over ")) from None


@dataclass(frozen=True, kw_only=True)
class Sums(OfCounts):
    """Counts, and perhaps sums of values, over each window and those before it.

    Attributes:
        over: how long, as a duration; an item without counts in so many windows has sums of those that it has.
    """

    over: str | float

    @property
    @override
    def span(self) -> tuple[str, str | float, str]:
        return "over", self.over, "windows"


@dataclass(frozen=True, kw_only=True)
class Risers(OfCounts):
    """Items of which more people have them than so long before, the largest rise first.

    Attributes:
        against: how long before, as a duration.
    """

    against: str | float

    @property
    @override
    def nothing(self) -> str:
        return "no rows: nothing surely rose"

    @property
    @override
    def span(self) -> tuple[str, str | float, str]:
        return "against", self.against, "rising"

    @override
    def answer(self, tables: Mapping[str, Table]) -> Table:
        return tables[self.of].having(self.viewed(tables[self.of]), KeyRise, RISEN)


@dataclass(frozen=True, kw_only=True)
class Ratios(View):
    """The counts of each item in one table divided by those in another one.

    Attributes:
        ratio: names of both.
    """

    ratio: tuple[str, str]

    @property
    @override
    def sources(self) -> Sequence[tuple[str, str]]:
        return [("ratio", name) for name in self.ratio]

    @override
    def answer(self, tables: Mapping[str, Table]) -> Table:
        above, below = (tables[name] for name in self.ratio)
        for name, table in zip(self.ratio, (above, below), strict=True):
            if not {"item", "noisy"} <= {*table.row_type._fields}:
                raise self.error("ratio", f"must be of counts, which {name} is not")
        if above.columns != below.columns:
            raise self.error("ratio", "must be of tables with the same item columns")
        if _windows_like(above) != _windows_like(below):
            raise self.error("ratio", "must be of tables with the same windows")
        if above.questions & below.questions:
            raise self.error("ratio", "must be of different questions: what one of them has published shares its noise")
        divisors = {_key(row): row for row in below.rows}
        pairs = [(row, divisors[key]) for row in above.rows if (key := _key(row)) in divisors]
        pairs = [pair for pair in pairs if all(row.upper is not None for row in pair)]  # no lower bounds
        found = ratio_bounds(*(part for rows in zip(*pairs, strict=True) for part in _shown(rows))) if pairs else ()
        numbers = map(numbers_or_none, meaningful(*found) if pairs else ())
        rows = [
            RatioEstimate(row.window_start, row.window_end, row.item, *of_row)
            for (row, _), *of_row in zip(pairs, *numbers, strict=True)
        ]
        made = above.having(rows, RatioEstimate, ("window_start", "-ratio", "item"))
        return replace(made, questions=above.questions | below.questions)


def item_of(parts: Sequence[str]) -> str:
    """Return the text of an item: of one column as it is."""
    return parts[0] if len(parts) == 1 else join_item(parts)


def _shown(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shown numbers of rows, and the deviations that normal noise with their intervals would have."""
    number, lower, upper = np.array([_number(row) for row in rows], np.float64).T
    return number, np.maximum(upper - number, number - lower) / NORMAL


def _key(row: Any) -> tuple[int, str]:
    """Return window and item of a row."""
    return row.window_start.micros, row.item


@dataclass(frozen=True, kw_only=True)
class Alerts(OfOne):
    """Whether a number is beyond a threshold, window by window.

    Attributes:
        item: what it is the number of; empty where rows of a window have but one.
        sign: 1 where an alert begins above the threshold, -1 below it.
        threshold: beyond which an alert begins.
        ends_at: at which, or on the other side of it, an alert ends.
        windows: number of windows in a row in which the number must be beyond the threshold.
    """

    item: str | float
    columns: int
    sign: int
    threshold: float
    ends_at: float
    windows: int = 1

    @override
    def note(self, tables: Mapping[str, Table]) -> str:
        rows = self._watched(tables[self.of]).values()
        if not any(_number(row)[0] is not None for row in rows):
            return f"no data in any window: {self.of} has published no number to compare, so that nothing can alert"
        return ""

    @override
    def answer(self, tables: Mapping[str, Table]) -> Table:
        table, rows = tables[self.of], self._watched(tables[self.of])
        found, watch = [], Watch()
        for start, end in _windows_of(table):
            watch, state = self._after(watch, rows, table, start, end)
            found.append(state)
        return self._table(table, found)

    @override
    def follow(self, tables: Mapping[str, Table], step: int, before: Any) -> tuple[Table, Any]:
        table, rows = tables[self.of], self._watched(tables[self.of])
        watch, state = self._after(before or Watch(), rows, table, *table.bounds(step))
        return self._table(table, [state]), watch

    def _watched(self, table: Table) -> dict[int, Any]:
        """Return the rows of what is watched, by start of the window.

        Raises:
            WrongKeyError: rows have no number, or the key that names one of those of a window is wrong.
        """
        fields = table.row_type._fields
        if table.row_type.__name__ not in COMPARED:
            raise self.error("of", "must be counts, ratios, quantiles, or the size of a set")
        named = next((name for name in NAMED_BY if name in fields), None)
        key = named or "item"
        if (named is None) != (self.item == "") or (named == "quantile") != isinstance(self.item, float):
            raise self.error(key, f"must be given for {self.of}" if named else f"must not be given for {self.of}")
        if named == "item" and self.columns != len(table.columns):
            raise self.error("item", f"must be of the columns {', '.join(table.columns)}")
        if named == "item" and table.listed is not None and self.item not in table.listed.texts.to_pylist():
            raise self.error("item", f"must be on the list of items of {self.of}, others have no number")
        if named == "quantile" and self.item not in (asked := table.transform.mechanism.quantiles):
            raise self.error("quantile", f"must be one of {', '.join(map('{:g}'.format, asked))}, those of {self.of}")
        rows = [row for row in table.rows if named is None or getattr(row, named) == self.item]
        return {row.window_start.micros: row for row in rows}

    def _table(self, table: Table, found: Sequence[AlertState]) -> Table:
        """Return states as a table."""
        made = table.having(found, AlertState, ("window_start", "item"))
        return made if "item" in table.row_type._fields else replace(made, columns=())

    def _after(
        self, watch: Watch, rows: Mapping[int, Any], table: Table, start: Any, end: Any
    ) -> tuple[Watch, AlertState]:
        """Return how the alert stands after a window, and its state in it.

        Where there is no data, an alert neither begins nor ends: after it, the state is what it was, and the windows in
        a row that an alert needs begin anew.
        """
        row = rows.get(start.micros)
        value, lower, upper = (None, None, None) if row is None else _number(row)
        beyond = self.sign > 0 and value is not None and value > self.threshold
        known = value if upper is not None or beyond else None  # a lower bound ends no alert
        now = watched(watch, known, Condition(self.sign, self.threshold, self.ends_at, self.windows), start.micros)
        given = value, lower, upper, self.threshold, now.state, table.time(now.since)
        return now, AlertState(start, end, str(self.item), *given)


def _number(row: Any) -> tuple[float | None, float | None, float | None]:
    """Return the number of a row and the ends of its interval."""
    for names in ESTIMATES:
        if set(names) <= set(row._fields) and getattr(row, names[0]) is not None:
            number, lower, upper = (getattr(row, name) for name in names)
            return (None, None, None) if lower is None else (number, lower, upper)
    if not set(BOUNDED) <= set(row._fields):
        return None, None, None
    number, bound = (float(getattr(row, name)) for name in BOUNDED)
    return (number, max(0.0, number - bound), number + bound) if bound >= 0 else (None, None, None)  # it has stopped


def _windows_of(table: Table) -> list[tuple[Any, Any]]:
    """Return starts and ends of the windows of a table: of its run, where that has an end, and else those with rows."""
    steps = table.steps
    seen = {steps.ending(row.window_end) for row in table.rows}
    first = steps.first if steps.first is not None else min(seen, default=0)
    last = steps.end - 1 if steps.end is not None else max(seen, default=first - 1)
    return [table.bounds(step) for step in range(first, last + 1)]


def _windows(span: str | float, steps: Steps) -> int:
    """Return how many windows a duration has.

    Raises:
        ValueError: it is none, or no multiple of a window.
    """
    found = windows_in(span, steps)
    return 1 if isinstance(found, str) else found


def _windows_like(table: Table) -> tuple[int, int, str]:
    """Return what is the same for tables with the same windows."""
    return table.steps.size, table.steps.origin, table.steps.length


def tables_of(
    monitor: Monitor,
    transforms: Mapping[str, Any],
    rows: Mapping[str, Sequence[Any]],
    time: Callable[[int], Any] = timestamp,
    dropped: Mapping[str, Mapping[str, float | None] | None] = MappingProxyType({}),
) -> dict[str, Table]:
    """Return the tables of the questions that have windows, by name.

    Args:
        monitor: with the questions.
        transforms: that answer them, by name.
        rows: that they have published, by name; none for those that are left out.
        time: makes times of microseconds, as for `read_row_file`.
        dropped: the share that limits drop of each, by name, where it is known.
    """
    found = {}
    for name, each in monitor.questions.items():
        if each.info.has_windows:
            table = Table.of(name, each.info, monitor.data.fields(each), transforms[name], rows.get(name, ()), time)
            found[name] = replace(table, dropped=dropped.get(name))
    return found


def views_of(monitor: Monitor) -> tuple[View, ...]:
    """Return the views of a monitor, each behind those that it is made of.

    Raises:
        WrongKeyError: views are made of each other in a circle, or of a question without windows.
    """
    views = {name: _view(name, model) for name, model in monitor.views.items()}
    for view in views.values():
        for key, source in view.sources:
            if source in monitor.questions and not monitor.questions[source].info.has_windows:
                raise view.error(key, f"must be about windows, and {source} has none")
    sources = {name: {source for _, source in view.sources} for name, view in views.items()}
    try:
        return tuple(views[name] for name in TopologicalSorter(sources).static_order() if name in views)
    except CycleError as error:
        circle = error.args[1]
        raise WrongKeyError((VIEWS, circle[0]), f"must not be made of itself: {' of '.join(circle[::-1])}") from None


def _view(name: str, model: ViewModel) -> View:
    """Return one view."""
    common: dict[str, Any] = {"name": name, "model": model, "largest": model.largest}
    if model.ratio is not None:
        return Ratios(**common, ratio=model.ratio)
    common["of"] = model.of
    if model.over is not None:
        return Sums(**common, over=model.over)
    if model.against is not None:
        return Risers(**common, against=model.against)
    if model.kind == "largest":
        return Largest(**common)
    sign, threshold = (-1, model.below or 0.0) if model.above is None else (1, model.above)
    ends_at = model.clear_below if sign > 0 else model.clear_above
    item = model.item or ()
    return Alerts(
        **common,
        item=item_of(item) if model.quantile is None and item else "" if model.quantile is None else model.quantile,
        columns=len(item),
        sign=sign,
        threshold=threshold,
        ends_at=threshold if ends_at is None else float(ends_at),
        windows=model.for_,
    )


def answer_views(views: Sequence[View], tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables of views, by name, in their order.

    Privacy: post-processing; it costs nothing.

    Args:
        views: as `views_of` returns them.
        tables: of all questions, by name, with all rows that a finished run has published; without rows, this checks
            whether questions can give their views.

    Raises:
        WrongKeyError: rows of a question cannot give a view; the message names line and key.
    """
    found = dict(tables)
    for view in views:
        found[view.name] = view.answered(found)
    return {view.name: found[view.name] for view in views}
