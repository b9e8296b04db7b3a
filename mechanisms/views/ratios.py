"""Ratios: the counts of items in one table divided by those in another one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.views.digits import NORMAL, meaningful

NUMBERS = ("people", "lower", "upper")


def ratios(above: pa.Table, below: pa.Table) -> pa.Table:
    """Return `ratio`, `lower` and `upper` of the items and windows that both tables have, but not of lower bounds.

    Counts must have independent noise, whose deviations are taken from the intervals; see `ratio_bounds`.

    Privacy: post-processing.
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


def ratio_bounds(
    numerators: ArrayLike, numerator_stddevs: ArrayLike, denominators: ArrayLike, denominator_stddevs: ArrayLike
) -> Floats:
    """Return ratios of noisy numbers that are at least 0, and the ends of intervals of 95%, (3, n); nan for no bound.

    Privacy: none is spent; all inputs are published numbers.

    Accuracy: with independent normal noise of known variance, each single interval holds the ratio of the numbers
    without noise with a probability of 95% (92% where the denominator is as small as the deviation of its noise). Where
    the denominator with noise is within its reach around 0, there is neither a ratio nor an interval.

    Example:
        >>> [end.round(3).tolist() for end in ratio_bounds([50.0], [5.0], [1000.0], [5.0])]
        [[0.05], [0.04], [0.06]]

    Source: Fieller, Some problems in interval estimation (1954).
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    noise_above = np.square(NORMAL * np.asarray(numerator_stddevs, np.float64))
    noise_below = np.square(NORMAL * np.asarray(denominator_stddevs, np.float64))
    known = below > np.sqrt(noise_below)
    below = np.where(known, below, np.nan)
    leading = np.square(below) - noise_below  # of the quadratic equation whose roots are the ends
    reach = np.sqrt(np.square(above) * noise_below + noise_above * leading)
    ends = ((above * below + side * reach) / leading for side in (-1, 1))
    lower, upper = (np.maximum(end, 0.0) for end in ends)
    return np.array([np.maximum(above / below, 0.0), lower, upper])
