"""Numbers of people as they are shown: of single windows smoothed, or added up over several, and what rose.

Tables have a row for each window and item: `window_start` and `window_end` in microseconds since 1970, `item`, what was
released as `noisy` and perhaps `value`, and the columns of what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.views.digits import FINEST, NORMAL, meaningful
from privstream.mechanisms.views.rank import largest
from privstream.mechanisms.views.ratios import ratio_bounds
from privstream.mechanisms.views.smoothing import LOOKBACK, rises, smooth
from privstream.mechanisms.views.tables import Windows, numbered, with_columns
from privstream.mechanisms.views.trending import surely_above

SHOWN = ("people", "lower", "upper")
"""Columns with the number that is shown, and its interval."""

RISE = ("rise", "rise_lower", "rise_upper")
RELEASED = ("noisy", "value")
"""Columns with what was released, unbiased: of people and of values."""


@dataclass(frozen=True, kw_only=True)
class ShownCounts:
    """What is shown of released counts: a view.

    Privacy: post-processing of what is published.
    """

    windows: Windows  # that rows are about
    stddev: float | None = None  # of the noise of a count, to smooth single windows; None for numbers as released
    over: int = 1  # windows that counts are the sum of, or as many as an item has
    margins: Callable[[Integers], Integers] | None = None  # how far sums over numbers of windows are off, (answers, n)
    max_value: int | None = None  # of an event
    rising: int = 0  # windows to look back for what rose, of the same budget period; 0 for none
    at_least: int | None = None  # rows with a smaller number are not shown
    top: int | None = None  # rows of a window, those with the largest numbers or rises; None for all

    @property
    def lookback(self) -> int:
        """From how many windows, the last ones, a row is made where the run goes on."""
        return self.over if self.over > 1 or self.stddev is None else LOOKBACK

    def numbers(self, table: pa.Table, *, ended: bool = False) -> pa.Table:
        """Return all rows of a table, of a run or of the last windows, with their numbers, made of those of the others.

        Of a run that has `ended` it is learned from all items how they move.
        """
        if not table.num_rows:
            return with_columns(table, dict.fromkeys(RISE, np.empty(0)) if self.rising else {})
        if self.over == 1 and self.stddev is None:
            return table
        steps = np.asarray(self.windows.starting(table["window_start"].to_numpy()))
        row, column = steps - steps.min(), numbered(table["item"])
        place = row, column
        released = [table[name].to_numpy() for name in RELEASED if name in table.column_names]
        history = np.full((len(released), int(row.max()) + 1, int(column.max()) + 1), np.nan)
        for matrix, values in zip(history, released, strict=True):
            matrix[place] = values
        if self.stddev is None:
            return with_columns(table, self._summed(history, place))
        found = smooth(history[0], self.stddev, ended)
        columns = shown_columns(*found[:, *place])
        if self.rising:
            risen = rises(found, history[0], self.stddev, self.rising)[:, *place]
            risen[:, self.windows.renewals(steps) != self.windows.renewals(steps - self.rising)] = np.nan
            columns |= dict(zip(RISE, meaningful(*risen), strict=True))
        return with_columns(table, columns)

    def _summed(self, history: Floats, place: tuple[Integers, Integers]) -> dict[str, np.ndarray]:
        """Return the columns of sums over the last windows, or over as many as an item has."""
        assert self.margins is not None
        known = ~np.isnan(history[:1])
        sums = np.cumsum(np.nan_to_num(np.concatenate([known, history])).astype(np.int64), axis=1)
        sums[:, self.over :] -= sums[:, : -self.over].copy()
        number, *totals = (each[place] for each in sums)
        return released_columns(np.stack(totals), self.margins(np.maximum(number, 1)), self.max_value)

    def newest(self, before: Sequence[pa.Table], released: pa.Table, start: int) -> pa.Table:
        """Return the rows of what was released for the window that starts then, in order, while the run goes on.

        An item that comes with rows of earlier windows has numbers that are made of these. `before` is what was
        released for the windows before, as many as `lookback` says; `RELEASED` is enough of it.
        """
        come = released["item"].filter(pc.less(released["window_start"], start))
        found = released.filter(pc.is_in(released["item"], come))
        whole = pa.concat_tables([*before, released], promote_options="default")
        back = self.windows.starting(start) - np.asarray(self.windows.starting(whole["window_start"].to_numpy()))
        whole = whole.filter(pc.and_(pa.array(back < self.lookback), pc.invert(pc.is_in(whole["item"], come))))
        others = self.numbers(whole).filter(pc.equal(whole["window_start"], start))
        found = pa.concat_tables([others, self.numbers(found)], promote_options="default")
        return found.sort_by([("window_start", "ascending"), ("item", "ascending")])

    def chosen(self, table: pa.Table) -> pa.Table:
        """Return the rows that are shown, by the numbers that they show."""
        if self.rising:
            rise, lower, upper = (table[name].to_numpy() for name in RISE)
            table = table.filter(pa.array(surely_above(rise, lower, upper, 0)))
        if self.at_least is not None:
            table = table.filter(pc.greater_equal(table["people"], self.at_least))
        return table if self.top is None else largest(table, self.top, "rise" if self.rising else "people")


def shown_columns(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> dict[str, np.ndarray]:
    """Return the columns of numbers of people and their intervals, at least 0."""
    shown = meaningful(*(np.maximum(each, 0.0) for each in (numbers, lower, upper)))
    return dict(zip(SHOWN, shown, strict=True))


def released_columns(answers: Integers, margins: Integers, max_value: int | None = None) -> dict[str, np.ndarray]:
    """Return the columns of counts as they were released, and those of values, if there are any.

    The interval of a mean is that of the ratio of a sum and a count, by the noise of both. Answers, counts and perhaps
    sums of values, are off by at most `margins`, with probability 0.95; both are int64 (answers, n).
    """
    counts, margin = answers[0], margins[0]
    columns = {**shown_columns(counts, counts - margin, counts + margin), "noisy": counts}
    if max_value is None:
        return columns
    sums, reach = answers[1], margins[1]
    value, lower, upper = meaningful(sums, sums - reach, sums + reach, finest=0)
    ends = {"value_lower": np.maximum(lower, 0.0), "value_upper": np.maximum(upper, 0.0)}
    ratios = ratio_bounds(sums, reach / NORMAL, counts, margin / NORMAL)
    ratios[0] = ratios[0].clip(0, max_value)
    mean, least, most = meaningful(*np.where(sums > 0, ratios, np.nan))
    margin = np.maximum(mean - least, most - mean).round(-FINEST)
    return columns | {"value": value.astype(np.int64)} | ends | {"mean": mean, "mean_margin": margin}
