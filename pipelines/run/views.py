"""Views of a monitor: what is made of the published rows of its questions, at no cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.views.counts import Dropped, ShownCounts, corrected_table, largest, ratios
from privstream.mechanisms.views.rules import Watch, states
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor, ViewModel
from privstream.pipelines.model.public_lists import Reading
from privstream.pipelines.run.asked import Answer
from privstream.pipelines.sinks.row_files import PLAIN, Layout, plain_table, sort_table, with_item_columns
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.reading.domain import Domain, join_item
from privstream.transforms.row_types import AlertState, KeyRise, RatioEstimate, number_of
from privstream.transforms.timing.steps import Steps, windows_in

ORDERS = {"ratio": ("window_start", "-ratio", "item"), "against": ("window_start", "-rise", "item")}

COMPARED = {"KeyCount", "KeyRise", "KeySum", "RatioEstimate", "QuantileEstimate", "CardinalityEstimate"}
"""Rows whose number an alert may be about: each window has one, unless nothing is known of the item."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Published rows of a question or of a view, and what is known of them."""

    row_type: Any
    rows: pa.Table  # with times in microseconds
    order: tuple[str, ...]
    columns: tuple[str, ...]  # names of those of an item; none where rows have no item
    steps: Steps
    questions: frozenset[str]  # names of those whose noise is in the numbers
    released: pa.Table = None  # what the rows were made of, if they are those of a question
    listed: Domain | None = None  # the public list of items that rows are about
    transform: Any = None  # of the question
    dropped: Dropped | None = None  # the share that limits drop, where it is known
    layout: Layout = PLAIN

    @property
    def written_type(self) -> type:
        """The type of rows as they are written: with the columns of an item in place of the item."""
        return with_item_columns(self.row_type, self.columns, self.layout)

    def having(self, rows: pa.Table, row_type: Any = None, order: tuple[str, ...] = ()) -> Table:
        """Return the table of a view with these rows, in order."""
        made = replace(self, row_type=row_type or self.row_type, order=order or self.order, transform=None)
        return replace(made, rows=sort_table(rows, made.order), released=None)


class View:
    """A view of a monitor: a function of published tables."""

    def __init__(self, name: str, model: ViewModel) -> None:
        self.name, self.model, self.kind, self.of = name, model, model.kind, model.of or ""
        # keys that name questions and other views, and the names
        self.sources = [("of", self.of)] if model.ratio is None else [("ratio", each) for each in model.ratio]

    def error(self, key: str, message: str) -> WrongKeyError:
        """Return an error about a key."""
        return WrongKeyError(("views", self.name, key), message)

    def back(self, tables: Mapping[str, Table]) -> int:
        """Return of how many windows before its own a row is made."""
        return self._of_counts(tables[self.of]).lookback - 1 if self.kind in ("over", "against") else 0

    def answered(self, tables: Mapping[str, Table]) -> Table:
        """Return the rows, from the tables of its sources."""
        above, below = tables[self.sources[0][1]], tables[self.sources[-1][1]]
        if self.kind == "ratio":
            found = self._ratios(above, below)
        elif self.kind in ("over", "against"):
            view = self._of_counts(above)
            numbers = corrected_table(view.numbers(above.released, ended=above.transform.ended), above.dropped)
            row_type, order = (above.row_type, above.order) if self.kind == "over" else (KeyRise, ORDERS["against"])
            found = above.having(view.chosen(numbers), row_type, order)
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
            return self._states(table, [table.steps.bounds_micros(step)], Watch(*before or ()))
        found = self.answered(tables)
        start, _ = found.steps.bounds_micros(step)
        return replace(found, rows=found.rows.filter(pc.equal(found.rows["window_start"], start))), None

    def _largest(self, table: Table, number: int) -> Table:
        fields = table.row_type._fields
        ranked = "rise" if table.order == ORDERS["against"] else number_of(fields)
        if "item" not in fields or not ranked:
            raise self.error("largest", "must be of rows with an item and a count")
        return table.having(largest(table.rows, number, ranked))

    def _of_counts(self, table: Table) -> ShownCounts:
        """Return the view of a question with sums of counts over windows, or what rose."""
        kind = self.kind
        if not isinstance(table.transform, CountsParameters):
            raise self.error("of", "must be a question `counts`")
        try:
            windows = windows_in(getattr(self.model, kind), table.steps)
        except ValueError as error:
            raise self.error(kind, str(error).removeprefix("over ")) from None
        given = {"over" if kind == "over" else "rising": 1 if isinstance(windows, str) else windows}
        try:
            return table.transform.counts_view(**given)
        except ValueError as error:
            raise self.error("of" if str(error).startswith("must be counts") else kind, str(error)) from None

    def _ratios(self, above: Table, below: Table) -> Table:
        for (_, name), table in zip(self.sources, (above, below), strict=True):
            if not {"item", "noisy"} <= {*table.row_type._fields}:
                raise self.error("ratio", f"must be of counts, which {name} is not")
        if above.columns != below.columns:
            raise self.error("ratio", "must be of tables with the same item columns")
        if len({(one.steps.size, one.steps.origin, one.steps.length) for one in (above, below)}) > 1:
            raise self.error("ratio", "must be of tables with the same windows")
        if above.questions & below.questions:
            raise self.error("ratio", "must be of different questions: what one of them has published shares its noise")
        made = above.having(ratios(above.rows, below.rows), RatioEstimate, ORDERS["ratio"])
        return replace(made, questions=above.questions | below.questions)

    def _states(self, table: Table, windows: Iterable[tuple[int, int]], watch: Watch) -> tuple[Table, Watch]:
        condition, item = self.model.condition, self.model.item or ()
        assert condition is not None  # it is a view of an alert
        about = self.model.quantile or (join_item(item) if len(item) > 1 else "".join(item))
        named = next((name for name in ("item", "quantile") if name in table.row_type._fields), None)
        self._check_compared(table, named, about)
        rows = table.rows if named is None else table.rows.filter(pc.equal(table.rows[named], about))
        columns = (rows[name].to_pylist() for name in ("window_start", number_of(rows.column_names), "lower", "upper"))
        numbers = {
            start: (None, None, None) if lower is None else (value, lower, upper)
            for start, value, lower, upper in zip(*columns, strict=True)
        }
        found, watch = states(numbers, windows, condition, watch, str(about))
        made = table.having(found, AlertState, ("window_start", "item"))
        return made if named == "item" else replace(made, columns=()), watch

    def _check_compared(self, table: Table, named: str | None, about: str | float) -> None:
        """Refuse an alert about what rows have no number of; `named` is the field that tells their numbers apart."""
        if table.row_type.__name__ not in COMPARED:
            raise self.error("of", "must be counts, ratios, quantiles, or the size of a set")
        if (named is None) != (about == "") or (named == "quantile") != isinstance(about, float):
            must = "must be given" if named else "must not be given"
            raise self.error(named or "item", f"{must} for {self.of}")
        if named == "item" and len(self.model.item or ()) != len(table.columns):
            raise self.error("item", f"must be of the columns {', '.join(table.columns)}")
        if named == "item" and table.listed is not None and about not in table.listed.texts.to_pylist():
            raise self.error("item", f"must be on the list of items of {self.of}, others have no number")
        if named == "quantile" and about not in (asked := table.transform.mechanism.quantiles):
            raise self.error("quantile", f"must be one of {', '.join(map('{:g}'.format, asked))}, those of {self.of}")


def _windows_of(table: Table) -> list[tuple[int, int]]:
    """Return starts and ends of the windows of a table: of its run, where that has an end, and else those with rows."""
    steps = table.steps
    seen = [steps.starting(start) for start in pc.unique(table.rows["window_start"]).to_pylist()]
    last = steps.end - 1 if steps.end is not None else max(seen, default=steps.first - 1)
    return [steps.bounds_micros(step) for step in range(steps.first, last + 1)]


def tables_of(
    monitor: Monitor, transforms: Mapping[str, Any], answers: Mapping[str, Answer] = MappingProxyType({})
) -> dict[str, Table]:
    """Return the tables of the questions that have windows, by name; without rows where these are not given."""
    found = {}
    for name, question in monitor.questions.items():
        if not question.info.has_windows:
            continue
        fields, transform = monitor.data.fields(question), transforms[name]
        row_type = question.info.row_type_of(transform)
        nothing = plain_table(row_type, ())
        answer = answers.get(name) or Answer(nothing, nothing)
        found[name] = Table(
            row_type=row_type,
            rows=answer.shown,
            released=answer.released,
            order=question.info.order,
            columns=fields.form.item,
            steps=transform.steps,
            questions=frozenset([name]),
            listed=getattr(transform, "domain", None),
            transform=transform,
            dropped=answer.dropped,
            layout=Layout.of(fields.time_zone, fields.delimiter, fields.decimal),
        )
    return found


def views_of(monitor: Monitor) -> tuple[View, ...]:
    """Return the views of a monitor, each behind those that it is made of; refuse circles."""
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
