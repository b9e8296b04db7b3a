"""Ranks: the largest published numbers of a window, and by how much each is ahead of the next."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.views.tables import numbered

DIGITS = 1
"""Of leads between numbers."""


def _in_order(table: pa.Table, by: str) -> tuple[Integers, Integers]:
    """Return rows window by window, the largest first, of equal ones the item that sorts first; and their places."""
    starts = table["window_start"].to_numpy()
    order = np.lexsort((numbered(table["item"]), -table[by].to_numpy(), starts))
    starts = starts[order]
    return order, np.arange(len(order)) - np.searchsorted(starts, starts)


def largest(table: pa.Table, number: int, by: str = "people") -> pa.Table:
    """Return the rows of each window with the largest numbers, in order; rows without a number are none.

    Privacy: post-processing.
    """
    table = table.filter(pc.is_valid(table[by]))
    if not table.num_rows:
        return table
    order, places = _in_order(table, by)
    return table.take(order[places < number])


def ranked(table: pa.Table, top: int) -> pa.Table:
    """Return the items with the largest numbers in each window, with their ranks and how far they lead the next one.

    The lead of the last item that there is, is null.

    Privacy: post-processing.

    Example:
        >>> counts = {"window_start": [0] * 3, "window_end": [9] * 3, "item": ["b", "a", "c"]}
        >>> numbers = dict.fromkeys(["people", "lower", "upper"], [5.0, 9.0, 5.0])
        >>> found = ranked(pa.table(counts | numbers), 2)
        >>> found["item"].to_pylist(), found["gap"].to_pylist()
        (['a', 'b'], [4.0, 0.0])
    """
    order, places = _in_order(table, "people")
    table = table.take(order)
    number, lead = table["people"].to_numpy(), np.full(len(order), np.nan)
    lead[:-1] = np.where(places[1:] > 0, number[:-1] - number[1:], np.nan).round(DIGITS)
    columns = {name: table[name] for name in ("window_start", "window_end")}
    columns |= {"rank": pa.array(places + 1), "item": table["item"], "gap": pa.array(lead, from_pandas=True)}
    columns |= {name: table[name] for name in ("people", "lower", "upper")}
    return pa.table(columns).filter(pa.array(places < top))
