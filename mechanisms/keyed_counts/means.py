"""Means from noisy sums and noisy counts, with bounds that hold wherever those of sums and counts do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def means_with_bounds(
    sums: Integers,
    counts: Integers,
    *,
    sum_bound: float | Integers,
    count_bound: float | Integers,
    low: float,
    high: float,
) -> tuple[Floats, Floats]:
    """Return means, and how far each is from the true one at most, both float64 (n,).

    Privacy: post-processing.

    Accuracy: if a true sum S and a true count N >= 1 are within the bounds of what is given, and the values were within
    [low, high], then S / N lies between the least and the largest quotient that these allow. The mean is the quotient
    of what is given, moved into that interval; its bound reaches to the farther end.

    Args:
        sums: noisy sums, shape (n,).
        counts: noisy counts, shape (n,).
        sum_bound: most by which a sum is off, one for all or one for each.
        count_bound: the same of counts.
        low: least value.
        high: largest value.

    Example:
        >>> means, bounds = means_with_bounds(
        ...     np.array([500, 30]), np.array([100, 2]), sum_bound=50, count_bound=10, low=0, high=10
        ... )
        >>> means.tolist(), [round(bound, 2) for bound in bounds.tolist()]
        ([5.0, 10.0], [1.11, 10.0])
    """
    counted = counts.astype(np.float64)
    fewest, most = np.maximum(counted - count_bound, 1.0), np.maximum(counted + count_bound, 1.0)
    least, largest = sums - sum_bound, sums + sum_bound
    lower = np.clip(np.where(least >= 0, least / most, least / fewest), low, high)
    upper = np.clip(np.where(largest >= 0, largest / fewest, largest / most), low, high)
    means = np.clip(sums / np.maximum(counted, 1.0), lower, upper)
    return means, np.maximum(upper - means, means - lower)
