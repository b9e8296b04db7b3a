"""Ratios: the counts of items in one table divided by those in another one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.postprocess import ratio_bounds
from privstream.mechanisms.views.digits import NORMAL, meaningful

NUMBERS = ("people", "lower", "upper")


def ratios(above: pa.Table, below: pa.Table) -> pa.Table:
    """Return `ratio`, `lower` and `upper` of the items and windows that both tables have, but not of lower bounds.

    Deviations of the noise are taken from the intervals; see `ratio_bounds`.

    Privacy: post-processing.

    Args:
        above, below: counts with independent noise.
    """
    keys = ["window_start", "item"]
    above = above.select([*keys, "window_end", *NUMBERS])
    pairs = above.join(below.select([*keys, *NUMBERS]), keys, right_suffix=" below", join_type="inner")
    pairs = pairs.filter(pc.and_(pc.is_valid(pairs["upper"]), pc.is_valid(pairs["upper below"])))
    given = []
    for end in ("", " below"):
        number, lower, upper = (pairs[f"{name}{end}"].to_numpy() for name in NUMBERS)
        given += [number, np.maximum(upper - number, number - lower) / NORMAL]
    found = {name: pairs[name] for name in ("window_start", "window_end", "item")}
    for name, column in zip(("ratio", "lower", "upper"), meaningful(*ratio_bounds(*given)), strict=True):
        found[name] = pa.array(column, from_pandas=True)
    return pa.table(found)
