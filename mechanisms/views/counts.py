"""Numbers of people as they are shown: smoothed, summed, corrected for what limits drop, ranked, divided.

Tables have a row for each window and item: `window_start` and `window_end` in microseconds since 1970, `item`, what was
released as `noisy` and perhaps `value`, and the columns of what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.views.rules import surely_above
from privstream.mechanisms.views.smoothing import DIGITS, LOOKBACK, rises, smooth
from privstream.mechanisms.views.tables import (
    FINEST,
    NORMAL,
    SHOWN,
    WindowTimes,
    meaningful,
    numbered,
    ratio_bounds,
    released_columns,
    with_columns,
)

RISE = ("rise", "rise_lower", "rise_upper")
RELEASED = ("noisy", "value")
"""Columns with what was released, unbiased: of people and of values."""

AS_IS, CORRECTED = 0.05, 0.2
"""Shares up to which numbers are shown as they are, and corrected."""

STAYS, DIVIDED, BOUND = "stays", "divided", "bound"
"""What `corrected` makes of a number."""

VALUES = ("value", "value_lower", "value_upper")

Dropped = Mapping[str, float | None]
"""The `share` that limits drop, and the `lower` and `upper` end of its interval of 95%; no upper one for "at least"."""


@dataclass(frozen=True, kw_only=True)
class ShownCounts:
    """What is shown of released counts: a view."""

    windows: WindowTimes  # that rows are about
    margins: Callable[[Integers], Integers]  # how far sums over numbers of windows are off, (answers, n)
    stddev: float | None = None  # of the noise of a count, to smooth single windows; None for numbers as released
    over: int = 1  # windows that counts are the sum of, or as many as an item has
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
        answers = np.stack([table[name].to_numpy() for name in RELEASED if name in table.column_names])
        if not table.num_rows:
            columns = released_columns(answers, answers, self.max_value)
            return with_columns(table, columns | (dict.fromkeys(RISE, np.empty(0)) if self.rising else {}))
        steps = np.asarray(self.windows.starting(table["window_start"].to_numpy()))
        row, column = steps - steps.min(), numbered(table["item"])
        place = row, column
        history = np.full((len(answers), int(row.max()) + 1, int(column.max()) + 1), np.nan)
        history[:, *place] = answers
        if self.over > 1:
            number, answers = self._summed(history, place)
        elif self.stddev is None:
            distinct, which = np.unique(steps, return_inverse=True)
            number = np.array([self.windows.number(step) for step in distinct.tolist()])[which]
        else:
            number = np.ones(len(row), np.int64)
        columns = released_columns(answers, self.margins(number), self.max_value)
        if self.stddev is not None:
            found = smooth(history[0], self.stddev, ended)
            columns |= dict(zip(SHOWN, meaningful(*np.maximum(found[:, *place], 0.0)), strict=True))
            if self.rising:
                risen = rises(found, history[0], self.stddev, self.rising)[:, *place]
                risen[:, self.windows.renewals(steps) != self.windows.renewals(steps - self.rising)] = np.nan
                columns |= dict(zip(RISE, meaningful(*risen), strict=True))
        return with_columns(table, columns)

    def _summed(self, history: Floats, place: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
        """Return of how many windows sums over the last ones are, as many as an item has, and the sums (answers, n)."""
        known = ~np.isnan(history[:1])
        sums = np.cumsum(np.nan_to_num(np.concatenate([known, history])).astype(np.int64), axis=1)
        sums[:, self.over :] -= sums[:, : -self.over].copy()
        found = sums[:, *place]
        return np.maximum(found[0], 1), found[1:]

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


def regime(share: float, least: float, most: float | None) -> str:
    """Return what `corrected` makes of numbers, given the share that limits drop."""
    if most is None:
        return BOUND
    if share <= AS_IS or least <= 0:  # limits may drop nothing
        return STAYS
    return DIVIDED if share <= CORRECTED else BOUND


def corrected(
    numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, share: float, least: float, most: float | None
) -> Floats:
    """Return numbers and the ends of their intervals, shape (3, n); the upper end of a lower bound is nan.

    Up to `AS_IS`, and where limits may drop nothing, a number stays; up to `CORRECTED` it is divided by the share that
    is retained. Its interval has the errors of both, as independent ones. That takes every item to lose the share of
    the whole run. Above, and where more may be dropped than is known, a number is a lower bound.

    Of the share that limits drop `least` and `most` are the interval of 95%; `most` is None for "at least".
    """
    found, does = np.array([numbers, lower, upper], np.float64), regime(share, least, most)
    if most is None or does == BOUND:
        found[2] = np.nan
        return found
    number, below, above = found
    divisor = 1 - share if does == DIVIDED else 1.0
    shown, least_shown = number / divisor, below
    if does == DIVIDED:
        least_shown = np.maximum(shown - np.hypot((number - below) / divisor, shown - number / (1 - least)), below)
    reach = np.hypot((above - number) / divisor, number / (1 - most) - shown)
    return np.array([shown, np.clip(least_shown, 0.0, np.maximum(shown, 0.0)), shown + reach])


def corrected_table(table: pa.Table, dropped: Dropped | None) -> pa.Table:
    """Return rows with the numbers that they show, and what rose of them, as those of all people; see `corrected`.

    Numbers stay where the share is not known.
    """
    if dropped is None or not table.num_rows:
        return table
    share, least, most = (dropped[name] for name in ("share", "lower", "upper"))
    assert share is not None and least is not None
    if most is not None and most <= AS_IS:
        return table
    columns: dict[str, np.ndarray] = {}
    for names, finest in ((SHOWN, FINEST), (VALUES, 0)):
        if {*names} <= {*table.column_names}:
            number, lower, upper = (table[name].to_numpy() for name in names)
            ends = corrected(number, lower, upper, share, least, most)
            columns |= dict(zip(names, meaningful(*ends, finest=finest), strict=True))
    if "value" in columns:
        columns["value"] = columns["value"].astype(np.int64)
    if "rise" in table.column_names and regime(share, least, most) == DIVIDED:
        risen = (table[name].to_numpy() / (1 - share) for name in RISE)
        columns |= dict(zip(RISE, meaningful(*risen), strict=True))
    return with_columns(table, columns)


def _in_order(table: pa.Table, by: str) -> tuple[Integers, Integers]:
    """Return rows window by window, the largest first, of equal ones the item that sorts first; and their places."""
    starts = table["window_start"].to_numpy()
    order = np.lexsort((numbered(table["item"]), -table[by].to_numpy(), starts))
    starts = starts[order]
    return order, np.arange(len(order)) - np.searchsorted(starts, starts)


def largest(table: pa.Table, number: int, by: str = "people") -> pa.Table:
    """Return the rows of each window with the largest numbers, in order; rows without a number are none."""
    table = table.filter(pc.is_valid(table[by]))
    if not table.num_rows:
        return table
    order, places = _in_order(table, by)
    return table.take(order[places < number])


def ranked(table: pa.Table, top: int) -> pa.Table:
    """Return the items with the largest numbers in each window, with their ranks and how far they lead the next one.

    The lead of the last item that there is, is null.
    """
    order, places = _in_order(table, "people")
    table = table.take(order)
    number, lead = table["people"].to_numpy(), np.full(len(order), np.nan)
    lead[:-1] = np.where(places[1:] > 0, number[:-1] - number[1:], np.nan).round(DIGITS)
    columns = {name: table[name] for name in ("window_start", "window_end")}
    columns |= {"rank": pa.array(places + 1), "item": table["item"], "gap": pa.array(lead, from_pandas=True)}
    columns |= {name: table[name] for name in ("people", "lower", "upper")}
    return pa.table(columns).filter(pa.array(places < top))


def ratios(above: pa.Table, below: pa.Table) -> pa.Table:
    """Return `ratio`, `lower` and `upper` of the items and windows that both tables have, but not of lower bounds.

    Counts must have independent noise, whose deviations are taken from the intervals; see `ratio_bounds`.
    """
    keys = ["window_start", "item"]
    above = above.select([*keys, "window_end", *SHOWN])
    pairs = above.join(below.select([*keys, *SHOWN]), keys, right_suffix=" below", join_type="inner")
    pairs = pairs.filter(pc.and_(pc.is_valid(pairs["upper"]), pc.is_valid(pairs["upper below"])))
    given = []
    for end in ("", " below"):
        number, lower, upper = (pairs[f"{name}{end}"].to_numpy() for name in SHOWN)
        given += [number, np.maximum(upper - number, number - lower) / NORMAL]
    found = {name: pairs[name] for name in ("window_start", "window_end", "item")}
    for name, column in zip(("ratio", "lower", "upper"), meaningful(*ratio_bounds(*given)), strict=True):
        found[name] = pa.array(column, from_pandas=True)
    return pa.table(found)
