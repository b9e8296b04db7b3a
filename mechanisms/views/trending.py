"""Trending: the published numbers of a window that are surely above a threshold, and since when they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.views.digits import NORMAL
from privstream.mechanisms.views.tables import Windows, numbered

STARTED, CONTINUES = "started", "continues"

SURELY = 3.3
"""Standard deviations by which a number must be above the threshold."""


def surely_above(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return which numbers, with intervals of 95%, are surely above a threshold.

    The error of a number is taken from the lower side of its interval: the upper one may have what limits drop. Where
    the lower end is cut off at 0 it is the longer side. The upper end of a lower bound is nan.

    Privacy: post-processing.
    """
    number, low, high = (np.asarray(each, np.float64) for each in (numbers, lower, upper))
    error = np.where(low > 0, number - low, np.fmax(number - low, high - number)) / NORMAL
    return np.asarray(number - threshold > SURELY * error)


def trending(table: pa.Table, before: pa.Table | None, windows: Windows, threshold: float) -> pa.Table:
    """Return the rows that are surely above a threshold, and since when their items are, window after window.

    The table has counts of a run or of a window; `before` is what was returned of the window before these. After a
    budget period nothing continues. Privacy: post-processing.
    """
    columns = {name: table[name] for name in ("window_start", "window_end", "item", "people", "lower", "upper")}
    number, lower, upper = (table[name].to_numpy() for name in ("people", "lower", "upper"))
    found = pa.table(columns).filter(pa.array(surely_above(number, lower, upper, threshold)))
    found = found.append_column("since", found["window_start"])
    found = found.append_column("status", pa.repeat(STARTED, len(found)))
    if before is not None and before.num_rows:
        found = pa.concat_tables([before, found.cast(before.schema)])
    if not found.num_rows:
        return found
    starts, items = found["window_start"].to_numpy(), numbered(found["item"])
    order = np.lexsort((starts, items))
    steps, items = np.asarray(windows.starting(starts[order])), items[order]
    follows = np.zeros(len(order), bool)
    follows[1:] = (items[1:] == items[:-1]) & (np.diff(steps) == 1) & (np.diff(windows.renewals(steps)) == 0)
    first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
    since, status = found["since"].to_numpy().copy(), np.full(len(order), STARTED, object)
    since[order] = since[order][first]
    status[order[follows]] = CONTINUES
    found = found.set_column(6, "since", pa.array(since)).set_column(7, "status", pa.array(status, pa.string()))
    return found.slice(0 if before is None else before.num_rows)
