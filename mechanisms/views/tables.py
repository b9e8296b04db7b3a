"""Tables of published rows, their windows, and numbers with the digits that noise leaves meaningful."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats, Integers

SHOWN = ("people", "lower", "upper")
"""Columns with the number that is shown, and its interval."""

NORMAL = 1.959963984540054
"""As far reach 95% of a normal law to either side, in standard deviations."""

FINER = 10.0
"""How many times finer than the standard deviation that an interval stands for its digits are, at least."""

FINEST, COARSEST = -9, 15
_SLACK = 1e-6  # of a digit: what binary fractions add to a number that is rounded already


class WindowTimes(Protocol):
    """Which windows there are."""

    def starting(self, moments: Any) -> Any:
        """Return the number of the window that starts at a moment, or at each of some."""

    def number(self, step: int) -> int:
        """Return 1, 2, .. for the windows of a budget period."""

    def renewals(self, step: Any) -> Any:
        """Return how many budget periods are over before a window, or before each of some."""


def with_columns(table: pa.Table, columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return a table with further columns, or others in their place; nan is null."""
    known = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table(known | {name: pa.array(column, from_pandas=True) for name, column in columns.items()})


def numbered(texts: pa.ChunkedArray) -> Integers:
    """Return a number for each text: equal ones for equal texts, in their order."""
    found = texts.combine_chunks().dictionary_encode()
    places = np.empty(len(found.dictionary), np.int64)
    places[pc.sort_indices(found.dictionary).to_numpy()] = np.arange(len(places))
    return np.asarray(places[found.indices.to_numpy()])


def in_micros(table: pa.Table) -> pa.Table:
    """Return a table with its times as numbers: microseconds since 1970."""
    types = [pa.int64() if pa.types.is_timestamp(each) else each for each in table.schema.types]
    return table.cast(pa.schema(map(pa.Field.with_type, table.schema, types)))


def meaningful(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, finest: int = FINEST) -> Floats:
    """Return numbers and the ends of their 95% intervals, shape (3, n), rounded to digits that noise leaves meaningful.

    The digit is the largest power of ten that is at most a tenth of the standard deviation that the interval stands
    for. Ends are rounded outwards, so that what the interval held it holds still.

    Numbers are nan where there is none, the upper end alone in a lower bound; `finest` is a power of ten, 0 for whole
    numbers.

    Example:
        >>> meaningful([759.24, 12.3456], [714.8, 12.0], [803.1, 12.7]).tolist()
        [[759.0, 12.35], [714.0, 12.0], [804.0, 12.7]]
    """
    number, below, above = (np.asarray(each, np.float64) for each in (numbers, lower, upper))
    spread = np.fmax(number - below, above - number) / NORMAL
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log10(spread / FINER))
    power = np.where(np.isfinite(power), np.clip(power, finest, COARSEST), finest)
    unit = 10.0 ** np.abs(power)
    number, below, above = (np.where(power < 0, each * unit, each / unit) for each in (number, below, above))
    whole = np.array([np.rint(number), np.floor(below + _SLACK), np.ceil(above - _SLACK)])
    return np.asarray(np.where(power < 0, whole / unit, whole * unit) + 0.0)


def released_columns(answers: Integers, margins: Integers, max_value: int | None = None) -> dict[str, np.ndarray]:
    """Return the columns of counts as they were released, and those of values, if there are any.

    The interval of a mean is that of the ratio of a sum and a count, by the noise of both. Answers, counts and perhaps
    sums of values, int64 (answers, n), are off by at most `margins`, of each or of all, with probability 0.95.
    """
    counts, margin = answers[0], margins[0]
    shown = meaningful(*(np.maximum(each, 0.0) for each in (counts, counts - margin, counts + margin)))
    columns = {**dict(zip(SHOWN, shown, strict=True)), "noisy": counts}
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


def ratio_bounds(
    numerators: ArrayLike, numerator_stddevs: ArrayLike, denominators: ArrayLike, denominator_stddevs: ArrayLike
) -> Floats:
    """Return ratios of noisy numbers that are at least 0, and the ends of intervals of 95%, (3, n); nan for no bound.

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
