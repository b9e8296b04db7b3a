"""Numbers of what counts within limits, corrected to numbers of all people by the share that limits drop."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

AS_IS, CORRECTED = 0.05, 0.2
"""Shares up to which numbers are shown as they are, and corrected."""


def corrected(
    numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, share: float, least: float, most: float | None
) -> NDArray[np.float64]:
    """Return numbers and the ends of their intervals, shape (3, n); the upper end of a lower bound is nan.

    Up to `AS_IS` a number stays, up to `CORRECTED` it is divided by the share that is retained, and its interval has
    the errors of both, as independent ones. That takes every item to lose the share of the whole run. Above, and
    where more may be dropped than is known, a number is a lower bound.

    Privacy: post-processing.

    Args:
        numbers, lower, upper: of what counts, shape (n,).
        share, least, most: that limits drop, with its interval of 95%, in [0, 1); `most` is None for "at least".
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
