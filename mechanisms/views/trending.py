"""Trending: the published numbers of a window that are surely above a threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.views.digits import NORMAL

SURELY = 3.3
"""Standard deviations by which a number must be above the threshold."""


def surely_above(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return which numbers, with intervals of 95%, are surely above a threshold.

    The error of a number is taken from the lower side of its interval: the upper one may have what limits drop. Where
    the lower end is cut off at 0 it is the longer side. The upper end of a lower bound is None.

    Privacy: post-processing.
    """
    number, low, high = (np.asarray(each, np.float64) for each in (numbers, lower, upper))
    error = np.where(low > 0, number - low, np.fmax(number - low, high - number)) / NORMAL
    return np.asarray(number - threshold > SURELY * error)
