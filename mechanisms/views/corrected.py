"""Numbers of what counts within limits, corrected to numbers of all people by the share that limits drop."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

AS_IS, CORRECTED = 0.05, 0.2
"""Up to the first share numbers are shown as they are, up to the second one corrected, and above as lower bounds."""


def corrected(
    numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, share: float, least: float, most: float | None
) -> NDArray[np.float64]:
    """Return numbers and the ends of their intervals, shape (3, n); the upper end of a lower bound is nan.

    A corrected number is divided by the share that is retained. Its interval has the errors of both, as independent
    ones. It takes every item to lose the share of the whole run.

    Privacy: post-processing.

    Args:
        numbers, lower, upper: of what counts, shape (n,).
        share, least, most: that limits drop, with its interval of 95%, in [0, 1); `most` is None for "at least".
    """
    found = np.array([numbers, lower, upper], np.float64)
    if share > CORRECTED:
        found[2] = np.nan
        return found
    if share > AS_IS:
        counted = found[0].copy()
        found /= 1 - share
        number, below, above = found
        low, high = counted / (1 - least), counted / (1 - (share if most is None else most))
        found = np.array(
            [
                number,
                np.minimum(lower, number)
                if least <= 0  # limits may drop nothing
                else np.maximum(number - np.hypot(number - below, number - low), np.minimum(lower, number)),
                number + np.hypot(above - number, high - number),
            ]
        )
    if most is None:
        found[2] = np.nan
    return found
