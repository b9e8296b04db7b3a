"""Numbers of a finished run that has one for each window, smoothed over the windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from privstream.mechanisms.views.digits import meaningful
from privstream.mechanisms.views.smoothing import smooth_row

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
