"""Views of published numbers: smoothed, compared with earlier windows, added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.postprocess import ratio_bounds
from privstream.mechanisms.views.corrected import AS_IS, CORRECTED, corrected
from privstream.mechanisms.views.digits import FINEST, NORMAL, meaningful
from privstream.mechanisms.views.smoothing import Rises, Smoothed, rises, series, smooth, smooth_row
from privstream.transforms.counters import counter
from privstream.transforms.row_types import KeyRise
from privstream.transforms.timing.steps import Steps

SHOWN = ("people", "lower", "upper")
"""Fields of rows with the number that is shown, and its interval."""

RISE = ("rise", "rise_lower", "rise_upper")
NOISY = ("noisy", "value")
"""Fields with what was released, unbiased: of people and of values."""


@dataclass(frozen=True)
class LargestCounts:
    """Chooses the rows of a window with the largest counts; of equal ones, those whose items come first.

    Privacy: post-processing.

    Attributes:
        top: number of rows.
        by: the fields that are compared, in this order; rows in which the first is not known are left out.
    """

    top: int
    by: tuple[str, ...] = ("people",)

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the largest of all rows of a window, which are published."""
        chosen = self.among(rows)
        counter("counts_published").inc(len(chosen))
        return chosen

    def among(self, rows: Iterable[Any]) -> list[Any]:
        """Return the largest of some rows of one window: no others can be among the largest of all."""
        known = [row for row in rows if getattr(row, self.by[0]) is not None]
        return nsmallest(self.top, known, key=self._place)

    def _place(self, row: Any) -> tuple[Any, ...]:
        return *(-getattr(row, name) for name in self.by), row.item


@dataclass(frozen=True)
class ShownCounts:
    """Chooses which rows of a finished run are shown, by the numbers that they show.

    Privacy: post-processing.

    Attributes:
        at_least: rows with a smaller number are dropped; None keeps all.
        top: number of rows per window, those with the largest numbers or rises; None keeps all.
        rising: whether only what surely rose is shown.
    """

    at_least: int | None
    top: int | None
    rising: bool

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """Return those rows, in the same order."""
        found = [row for row in rows if not self.rising or (row.rise_lower is not None and row.rise_lower > 0)]
        if self.at_least is not None:
            found = [row for row in found if row.people >= self.at_least]
        if self.top is None:
            return found
        windows: defaultdict[Any, list[Any]] = defaultdict(list)
        for row in found:
            windows[row.window_start].append(row)
        largest = LargestCounts(self.top, ("rise" if self.rising else "people",))
        chosen = {id(row) for of_one in windows.values() for row in largest.among(of_one)}
        return [row for row in found if id(row) in chosen]


def ranks(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text, int64: equal ones for equal texts, in their order."""
    found = texts.combine_chunks().dictionary_encode()
    places = np.empty(len(found.dictionary), np.int64)
    places[pc.sort_indices(found.dictionary).to_numpy()] = np.arange(len(places))
    return np.asarray(places[found.indices.to_numpy()])


@dataclass(frozen=True)
class SmoothFinished:
    """Fills in what rows say of several windows: smoothed numbers with their intervals, rises, sums.

    Privacy: post-processing of what is published.

    Attributes:
        length: of a window, in microseconds.
        stddev: standard deviation of the noise of a count.
        rising: number of windows to look back for what rose; 0 for none.
        windows: of which counts are to be the sum, as far as an item has so many; 1 for counts as they are.
        sums: what knows the errors of such sums.
        steps: the windows: limits begin anew with a period, so that its windows are not compared with those before it.
        ended: whether all rows of the run are there, so that how items move is learned from all of them.
    """

    length: int
    stddev: float
    rising: int = 0
    windows: int = 1
    sums: KeyedCounts | None = None
    steps: Steps | None = None
    ended: bool = False

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows with these fields, in the same order."""
        if not rows:
            return []
        row_type: Any = KeyRise if self.rising else type(rows[0])
        columns = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
        changed = self.changed(
            ranks(pa.chunked_array([pa.array(columns["item"])])),
            np.array([start.micros for start in columns["window_start"]]),
            np.array([columns[name] for name in NOISY if name in columns], np.int64),
        )
        columns |= {name: listed(column) for name, column in changed.items()}
        return list(map(row_type, *(columns[name] for name in row_type._fields)))

    def in_columns(self, rows: pa.Table) -> pa.Table:
        """Return the rows with these fields as `__call__` does, as a table with times in microseconds, int64."""
        if not rows.num_rows:
            return rows
        published = np.stack([rows[name].to_numpy() for name in NOISY if name in rows.column_names])
        changed = self.changed(ranks(rows["item"]), rows["window_start"].to_numpy(), published)
        for name, column in changed.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(column, from_pandas=True))
        return rows

    def changed(self, keys: np.ndarray, starts: np.ndarray, published: np.ndarray) -> dict[str, np.ndarray]:
        """Return columns in place of those of rows, nan for none."""
        windows = np.round((starts - starts.min()) / self.length).astype(np.int64)  # of a calendar they differ a little
        matrix, place = series(keys, windows, published[0])
        if self.windows > 1:
            others = [series(keys, windows, each)[0] for each in published[1:]]
            return self._summed(np.stack([matrix, *others]), place)
        return self._smoothed(smooth(matrix, self.stddev, self.ended), matrix, place, starts)

    def last(self, history: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
        """Return the same columns of the newest window of items.

        Args:
            history: float64 (numbers, windows, items): what was published in the last windows, nan where there is none.
            starts: of the newest one, for each item.
        """
        if self.windows > 1:
            return self._summed(history, -1)
        return self._smoothed(smooth(history[0], self.stddev), history[0], -1, starts)

    def _smoothed(
        self, smoothed: Smoothed, matrix: np.ndarray, place: Any, starts: np.ndarray
    ) -> dict[str, np.ndarray]:
        found = shown_columns(*(part[place] for part in smoothed))
        if self.rising:
            risen = self._within_periods(rises(smoothed, matrix, self.stddev, self.rising).take(place), starts)
            found |= dict(zip(RISE, meaningful(*risen), strict=True))
        return found

    def _within_periods(self, risen: Rises, starts: np.ndarray) -> np.ndarray:
        """Return rises, nan for those of the first windows of a period."""
        found = np.array(risen)
        if self.steps is not None and self.steps.renewal is not None:
            steps = self.steps.starting(starts)
            found[:, self.steps.renewals(steps) != self.steps.renewals(steps - self.rising)] = np.nan
        return found

    def _summed(self, history: np.ndarray, place: Any) -> dict[str, np.ndarray]:
        """Return the columns of some places of sums over the last windows, as far as an item has so many."""
        assert self.sums is not None
        known = ~np.isnan(history[:1])
        sums = np.cumsum(np.nan_to_num(np.concatenate([known, history])).astype(np.int64), axis=1)
        sums[:, self.windows :] -= sums[:, : -self.windows].copy()
        number, *totals = (each[place] for each in sums)
        keys = np.arange(len(number), dtype=np.uint64)
        found = self.sums.summed(0, keys, np.stack(totals), np.maximum(number, 1))
        return unsmoothed_columns(found, self.sums.max_value)


def shown_columns(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> dict[str, np.ndarray]:
    """Return the columns of rows with numbers of people and their intervals, at least 0."""
    shown = meaningful(*(np.maximum(each, 0.0) for each in (numbers, lower, upper)))
    return dict(zip(SHOWN, shown, strict=True))


def unsmoothed_columns(found: KeyedRows, max_value: int | None) -> dict[str, np.ndarray]:
    """Return the columns of rows whose counts are not smoothed, and those of values, if there are any.

    The interval of a mean is that of the ratio of a sum and a count, by the noise of both.
    """
    counts, margin, sum_margin = found.of_each("counts", "count_margin", "sum_margin")
    columns = {**shown_columns(counts, counts - margin, counts + margin), "noisy": counts}
    if found.sums is None or max_value is None:
        return columns
    value, lower, upper = meaningful(found.sums, found.sums - sum_margin, found.sums + sum_margin, finest=0)
    ends = {"value_lower": np.maximum(lower, 0.0), "value_upper": np.maximum(upper, 0.0)}
    ratios = np.array(ratio_bounds(found.sums, sum_margin / NORMAL, counts, margin / NORMAL))
    ratios[0] = ratios[0].clip(0, max_value)
    mean, least, most = meaningful(*np.where(found.sums > 0, ratios, np.nan))
    margin = np.maximum(mean - least, most - mean).round(-FINEST)
    return columns | {"value": value.astype(np.int64)} | ends | {"mean": mean, "mean_margin": margin}


def listed(column: np.ndarray) -> list[Any]:
    """Return a column as rows have it: None for nan."""
    return numbers_or_none(column) if column.dtype == np.float64 else column.tolist()


def numbers_or_none(column: np.ndarray) -> list[float | None]:
    """Return numbers as rows have them: None for nan."""
    numbers: list[float | None] = np.asarray(column, np.float64).tolist()
    for place in np.flatnonzero(np.isnan(column)).tolist():
        numbers[place] = None
    return numbers


def released_rows(rows: Sequence[Any], dropped: Mapping[str, float | None] | None) -> list[Any]:
    """Return the rows that `corrected_rows` was given, as far as what was released is in them."""
    share = 0.0 if dropped is None or dropped["upper"] is None else dropped["share"] or 0.0
    if not AS_IS < share <= CORRECTED or not rows or "value" not in rows[0]._fields:
        return list(rows)
    return [row._replace(value=round(row.value * (1 - share))) for row in rows]


def corrected_rows(rows: Sequence[Any], dropped: Mapping[str, float | None] | None) -> list[Any]:
    """Return rows with the number that they show, and what rose of it, as those of all people; see `corrected`.

    Privacy: post-processing.

    Args:
        rows: of one type, with an interval.
        dropped: the share that limits drop, as guarantee files have it; None where it is not known.
    """
    if dropped is None or not rows:
        return list(rows)
    share, least, most = (dropped[name] for name in ("share", "lower", "upper"))
    assert share is not None and least is not None
    if most is not None and most <= AS_IS:
        return list(rows)
    fields = rows[0]._fields
    changed: dict[str, Any] = {}
    for names in (SHOWN, ("value", "value_lower", "value_upper")):
        if {*names} <= {*fields}:
            number, lower, upper = ([getattr(row, name) for row in rows] for name in names)
            ends = corrected(number, lower, upper, share, least, most)
            found = meaningful(*ends, finest=0 if names[0] == "value" else FINEST)
            changed |= dict(zip(names, map(numbers_or_none, found), strict=True))
    if "value" in changed:
        changed["value"] = list(map(int, changed["value"]))
    if "rise" in fields and AS_IS < share <= CORRECTED:
        risen = np.array([[getattr(row, name) for row in rows] for name in RISE], np.float64) / (1 - share)
        changed |= dict(zip(RISE, map(numbers_or_none, meaningful(*risen)), strict=True))
    each_row = zip(*changed.values(), strict=True)
    return [row._replace(**dict(zip(changed, each, strict=True))) for row, each in zip(rows, each_row, strict=True)]


DAY = 86_400 * 1_000_000
WEEK = 7 * DAY


@dataclass(frozen=True)
class SmoothWindows:
    """Smooths the shown number of rows of successive windows, and its interval, for each value of `by`.

    Privacy: post-processing of what is published.

    Attributes:
        shown: field with the number that is shown; `noisy` has that of the window alone.
        by: fields that tell numbers of a window apart.
        logarithmic: whether numbers are smoothed as logarithms.
        length: of a window, in microseconds: hours repeat themselves by days, and days by weeks.
        ends: of the range of all numbers.
    """

    shown: str
    by: tuple[str, ...] = ()
    logarithmic: bool = False
    length: int = 0
    ends: tuple[float, float] = (-np.inf, np.inf)

    @property
    def period(self) -> int:
        """Windows after which numbers may repeat themselves; 0 for none."""
        whole = WEEK if self.length == DAY else DAY
        return whole // self.length if self.length and whole % self.length == 0 else 0

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows, in the same order; those without an interval stay as they are."""
        found, places = list(rows), defaultdict[Any, list[int]](list)
        for place in sorted(range(len(found)), key=lambda place: found[place].window_start.micros):
            row = found[place]
            if row.lower is not None and row.upper is not None:
                places[*(getattr(row, name) for name in self.by),].append(place)
        for of_one in places.values():
            numbers = [(row.noisy, row.lower, row.upper) for row in map(found.__getitem__, of_one)]
            columns = np.array(numbers, np.float64).T
            number, lower, upper = np.log(columns) if self.logarithmic else columns
            made = np.array(smooth_row(number, lower, upper, self.period))
            made = np.exp(made) if self.logarithmic else np.maximum(made, np.minimum(columns.min(), 0.0))
            made = meaningful(*made).clip(*self.ends)
            for place, number, lower, upper in zip(of_one, *made.tolist(), strict=True):
                found[place] = found[place]._replace(**{self.shown: number, "lower": lower, "upper": upper})
        return found
