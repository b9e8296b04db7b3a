"""Views of a monitor: what is made of the published rows of its questions, at no cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import numpy as np
from privstream.mechanisms.postprocess import ratio_bounds
from privstream.mechanisms.views.digits import NORMAL, meaningful
from privstream.mechanisms.views.rules import Watch, watched
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.public_lists import Reading
from privstream.pipelines.model.views import ViewModel
from privstream.pipelines.sinks.row_files import sort_rows, with_item_columns
from privstream.pipelines.sinks.row_formats import PLAIN, Layout
from privstream.transforms.counts.finished import LargestCounts, corrected_rows, numbers_or_none, released_rows
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.reading.domain import Domain, join_item
from privstream.transforms.row_types import AlertState, KeyRise, RatioEstimate
from privstream.transforms.timing.steps import Steps, timestamp, windows_in

NUMBERS = ("people", "ratio", "value")
"""What may be the number of a row, the first one that there is; `lower` and `upper` are its interval."""

ORDERS = {"ratio": ("window_start", "-ratio", "item"), "against": ("window_start", "-rise", "item")}
HISTORY = 128
"""Windows before those of a sum or a comparison from which smoothed numbers are made where input has no end."""

COMPARED = {"KeyCount", "KeyRise", "KeySum", "RatioEstimate", "QuantileEstimate", "CardinalityEstimate"}
"""Rows whose number an alert may be about: each window has one, unless nothing is known of the item."""

Dropped = Mapping[str, float | None]
"""The share that limits drop, as guarantee files have it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Published rows of a question or of a view, and what is known of them.

    Attributes:
        columns: names of the columns of an item; none where rows have no item.
        questions: names of those whose noise is in the numbers.
        listed: the public list of items that rows are about; None where items are found.
        time: makes times of microseconds, as for `read_row_file`.
        dropped: the share that limits drop; None where it is not known.
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
    dropped: Dropped | None = None
    layout: Layout = PLAIN

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


class View:
    """A view of a monitor: a function of published tables.

    Attributes:
        of: the question or view that it is made of, unless it is a ratio.
        sources: keys that name questions and other views, and the names.
    """

    def __init__(self, name: str, model: ViewModel) -> None:
        self.name, self.model, self.kind, self.of = name, model, model.kind, model.of or ""
        self.sources = [("of", self.of)] if model.ratio is None else [("ratio", each) for each in model.ratio]

    def note(self, tables: Mapping[str, Table]) -> str:
        """Return what must be said of the rows beside them, in words; empty where there is nothing."""
        if not tables[self.name].rows:
            return "no rows: nothing surely rose" if self.kind == "against" else "no rows"
        if self.model.condition is None or any(_number(row)[0] is not None for row in self._watched(tables[self.of])):
            return ""
        return f"no data in any window: {self.of} has published no number to compare, so that nothing can alert"

    def error(self, key: str, message: str) -> WrongKeyError:
        """Return an error about a key."""
        return WrongKeyError(("views", self.name, key), message)

    def back(self, tables: Mapping[str, Table]) -> int:
        """Return of how many windows before its own a row is made."""
        return self._windows(tables[self.of]) + HISTORY if self.kind in ("over", "against") else 0

    def answered(self, tables: Mapping[str, Table]) -> Table:
        """Return the rows, from the tables of its sources."""
        above, below = tables[self.sources[0][1]], tables[self.sources[-1][1]]
        if self.kind == "ratio":
            found = self._ratios(above, below)
        elif self.kind in ("over", "against"):
            found = self._of_counts(above)
        elif self.kind == "largest":
            found = above.having(above.rows)
        else:
            found, _ = self._states(above, _windows_of(above), Watch())
        try:
            _ = found.written_type
        except ValueError as error:
            raise WrongKeyError(("views", self.name), str(error)) from None
        return found if self.model.largest is None else self._largest(found, self.model.largest)

    def follow(self, tables: Mapping[str, Table], step: int, before: Any) -> tuple[Table, Any]:
        """Return the rows of one window as they are known at its end, and what the next window needs to know.

        `tables` have rows of this window and as many before it as `back` says; `before` is of the window before.
        """
        if self.model.condition is not None:
            table = tables[self.of]
            return self._states(table, [table.bounds(step)], before or Watch())
        found = self.answered(tables)
        end = found.steps.bounds(step)[1]
        return replace(found, rows=[row for row in found.rows if row.window_end == end]), None

    def _largest(self, table: Table, number: int) -> Table:
        fields = table.row_type._fields
        ranked = "rise" if table.order == ORDERS["against"] else next((one for one in NUMBERS if one in fields), None)
        if "item" not in fields or ranked is None:
            raise self.error("largest", "must be of rows with an item and a count")
        windows = defaultdict(list)
        for row in table.rows:
            windows[row.window_start.micros].append(row)
        choose = LargestCounts(number, (ranked,)).among
        return table.having([row for rows in windows.values() for row in choose(rows)])

    def _of_counts(self, table: Table) -> Table:
        """Return sums of counts over windows, or what rose: what the transform of a question makes of its rows."""
        kind, windows = self.kind, self._windows(table)
        try:
            view = table.transform.view(**{"windows" if kind == "over" else "rising": windows})
            rows = corrected_rows(view(released_rows(table.rows, table.dropped)), table.dropped)
        except ValueError as error:
            raise self.error("of" if str(error).startswith("must be counts") else kind, str(error)) from None
        return table.having(rows) if kind == "over" else table.having(rows, KeyRise, ORDERS[kind])

    def _windows(self, table: Table) -> int:
        """Return over or against how many windows it is."""
        if not isinstance(table.transform, CountsParameters):
            raise self.error("of", "must be a question `counts`")
        try:
            found = windows_in(getattr(self.model, self.kind), table.steps)
        except ValueError as error:
            raise self.error(self.kind, str(error).removeprefix("over ")) from None
        return 1 if isinstance(found, str) else found

    def _ratios(self, above: Table, below: Table) -> Table:
        """Return the counts of each item in one table divided by those in another one."""
        for (_, name), table in zip(self.sources, (above, below), strict=True):
            if not {"item", "noisy"} <= {*table.row_type._fields}:
                raise self.error("ratio", f"must be of counts, which {name} is not")
        if above.columns != below.columns:
            raise self.error("ratio", "must be of tables with the same item columns")
        if len({(one.steps.size, one.steps.origin, one.steps.length) for one in (above, below)}) > 1:
            raise self.error("ratio", "must be of tables with the same windows")
        if above.questions & below.questions:
            raise self.error("ratio", "must be of different questions: what one of them has published shares its noise")
        known = [{(row.window_start.micros, row.item): row for row in one.rows} for one in (above, below)]
        pairs = [(row, known[1][key]) for key, row in known[0].items() if key in known[1]]
        pairs = [pair for pair in pairs if all(row.upper is not None for row in pair)]  # no lower bounds
        bounds = ratio_bounds(*(part for rows in zip(*pairs, strict=True) for part in _shown(rows))) if pairs else ()
        numbers = map(numbers_or_none, meaningful(*bounds) if pairs else ())
        rows = [
            RatioEstimate(row.window_start, row.window_end, row.item, *of_row)
            for (row, _), *of_row in zip(pairs, *numbers, strict=True)
        ]
        made = above.having(rows, RatioEstimate, ORDERS["ratio"])
        return replace(made, questions=above.questions | below.questions)

    def _states(self, table: Table, windows: Iterable[tuple[Any, Any]], watch: Watch) -> tuple[Table, Watch]:
        """Return whether a number is beyond a threshold, window by window, and how the alert stands after them.

        Where there is no data, an alert neither begins nor ends: after it, the state is what it was, and the windows in
        a row that an alert needs begin anew.
        """
        rows = {row.window_start.micros: row for row in self._watched(table)}
        condition, found = self.model.condition, []
        assert condition is not None  # it is a view of an alert
        for start, end in windows:
            value, lower, upper = _number(rows.get(start.micros))
            beyond = condition.sign > 0 and value is not None and value > condition.threshold
            known = value if upper is not None or beyond else None  # a lower bound ends no alert
            watch = watched(watch, known, condition, start.micros)
            numbers = value, lower, upper, condition.threshold
            found.append(AlertState(start, end, str(self._about), *numbers, watch.state, table.time(watch.since)))
        made = table.having(found, AlertState, ("window_start", "item"))
        return made if "item" in table.row_type._fields else replace(made, columns=()), watch

    @property
    def _about(self) -> str | float:
        """The item or the quantile that an alert is about; empty where rows of a window have but one number."""
        item, quantile = self.model.item or (), self.model.quantile
        if quantile is not None:
            return quantile
        return join_item(item) if len(item) > 1 else "".join(item)

    def _watched(self, table: Table) -> list[Any]:
        fields, about = table.row_type._fields, self._about
        if table.row_type.__name__ not in COMPARED:
            raise self.error("of", "must be counts, ratios, quantiles, or the size of a set")
        named = next((name for name in ("item", "quantile") if name in fields), None)
        if (named is None) != (about == "") or (named == "quantile") != isinstance(about, float):
            must = "must be given" if named else "must not be given"
            raise self.error(named or "item", f"{must} for {self.of}")
        if named == "item" and len(self.model.item or ()) != len(table.columns):
            raise self.error("item", f"must be of the columns {', '.join(table.columns)}")
        if named == "item" and table.listed is not None and about not in table.listed.texts.to_pylist():
            raise self.error("item", f"must be on the list of items of {self.of}, others have no number")
        if named == "quantile" and about not in (asked := table.transform.mechanism.quantiles):
            raise self.error("quantile", f"must be one of {', '.join(map('{:g}'.format, asked))}, those of {self.of}")
        return [row for row in table.rows if named is None or getattr(row, named) == about]


def _shown(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shown numbers of rows, and the deviations that normal noise with their intervals would have."""
    number, lower, upper = np.array([_number(row) for row in rows], np.float64).T
    return number, np.maximum(upper - number, number - lower) / NORMAL


def _number(row: Any) -> tuple[float | None, float | None, float | None]:
    """Return the number of a row and the ends of its interval; None without a row, and where nothing is known."""
    name = next((one for one in NUMBERS if hasattr(row, one)), None)
    if name is None or row.lower is None:
        return None, None, None
    return getattr(row, name), row.lower, row.upper


def _windows_of(table: Table) -> list[tuple[Any, Any]]:
    """Return starts and ends of the windows of a table: of its run, where that has an end, and else those with rows."""
    steps = table.steps
    seen = {steps.ending(row.window_end) for row in table.rows}
    first = steps.first if steps.first is not None else min(seen, default=0)
    last = steps.end - 1 if steps.end is not None else max(seen, default=first - 1)
    return [table.bounds(step) for step in range(first, last + 1)]


def tables_of(
    monitor: Monitor,
    transforms: Mapping[str, Any],
    rows: Mapping[str, Sequence[Any]],
    time: Callable[[int], Any] = timestamp,
    dropped: Mapping[str, Dropped | None] = MappingProxyType({}),
) -> dict[str, Table]:
    """Return the tables of the questions that have windows, by name."""
    found = {}
    for name, question in monitor.questions.items():
        if not question.info.has_windows:
            continue
        fields, transform = monitor.data.fields(question), transforms[name]
        found[name] = Table(
            row_type=question.info.row_type_of(transform),
            rows=rows.get(name, ()),
            order=question.info.order,
            columns=fields.items,
            steps=transform.steps,
            questions=frozenset([name]),
            listed=getattr(transform, "domain", None),
            transform=transform,
            time=time,
            dropped=dropped.get(name),
            layout=Layout.of(fields.time_zone, fields.delimiter, fields.decimal),
        )
    return found


def views_of(monitor: Monitor) -> tuple[View, ...]:
    """Return the views of a monitor, each behind those that it is made of.

    Raises:
        WrongKeyError: views are made of each other in a circle, or of a question without windows.
    """
    item, views = Reading.of(monitor.data).spelling.item, {}
    for name, model in monitor.views.items():
        spelled = {} if model.item is None else {"item": tuple(map(item, model.item))}
        views[name] = View(name, model.model_copy(update=spelled))
    for view in views.values():
        for key, source in view.sources:
            if source in monitor.questions and not monitor.questions[source].info.has_windows:
                raise view.error(key, f"must be about windows, and {source} has none")
    sources = {name: {source for _, source in view.sources} for name, view in views.items()}
    try:
        return tuple(views[name] for name in TopologicalSorter(sources).static_order() if name in views)
    except CycleError as error:
        circle = error.args[1]
        raise WrongKeyError(("views", circle[0]), f"must not be made of itself: {' of '.join(circle[::-1])}") from None


def answer_views(views: Sequence[View], tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables of views, by name, in their order.

    Privacy: post-processing; it costs nothing.
    """
    found = dict(tables)
    for view in views:
        found[view.name] = view.answered(found)
    return {view.name: found[view.name] for view in views}
