"""Numbers of what counts within limits, corrected to numbers of all people by the share that limits drop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.views.counts import RISE, SHOWN
from privstream.mechanisms.views.digits import FINEST, meaningful
from privstream.mechanisms.views.tables import with_columns

AS_IS, CORRECTED = 0.05, 0.2
"""Shares up to which numbers are shown as they are, and corrected."""

VALUES = ("value", "value_lower", "value_upper")

Dropped = Mapping[str, float | None]
"""The `share` that limits drop, and the `lower` and `upper` end of its interval of 95%; no upper one for "at least"."""


def corrected(
    numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, share: float, least: float, most: float | None
) -> NDArray[np.float64]:
    """Return numbers and the ends of their intervals, shape (3, n); the upper end of a lower bound is nan.

    Up to `AS_IS` a number stays, up to `CORRECTED` it is divided by the share that is retained, and its interval has
    the errors of both, as independent ones. That takes every item to lose the share of the whole run. Above, and
    where more may be dropped than is known, a number is a lower bound.

    Of the share that limits drop `least` and `most` are the interval of 95%; `most` is None for "at least".

    Privacy: post-processing.
    """
    found = np.array([numbers, lower, upper], np.float64)
    if most is None or share > CORRECTED:
        found[2] = np.nan
        return found
    number, below, above = found
    divisor = 1 - share if share > AS_IS else 1.0
    shown, least_shown = number / divisor, below
    if share > AS_IS and least > 0:  # else limits may drop nothing
        least_shown = np.maximum(shown - np.hypot((number - below) / divisor, shown - number / (1 - least)), below)
    reach = np.hypot((above - number) / divisor, number / (1 - most) - shown)
    return np.array([shown, np.clip(least_shown, 0.0, np.maximum(shown, 0.0)), shown + reach])


def corrected_table(table: pa.Table, dropped: Dropped | None) -> pa.Table:
    """Return rows with the numbers that they show, and what rose of them, as those of all people; see `corrected`.

    Numbers stay where the share is not known. Privacy: post-processing.
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
    if "rise" in table.column_names and AS_IS < share <= CORRECTED:
        risen = (table[name].to_numpy() / (1 - share) for name in RISE)
        columns |= dict(zip(RISE, meaningful(*risen), strict=True))
    return with_columns(table, columns)
