"""The engine of top-k selection with gaps: order by noisy value, ties in favour of the lower index."""

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.sparse_vector.hidden_threshold import IntegersOrReals

Indices = NDArray[np.int64]


def leaders(noisy: IntegersOrReals, count: int) -> Indices:
    """Return the indices of the `count` largest values in descending order, of equal ones the lower index first."""
    if count < len(noisy):
        bar = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
        above = np.flatnonzero(noisy > bar)
        chosen = np.concatenate([above, np.flatnonzero(noisy == bar)[: count - len(above)]])
    else:
        chosen = np.arange(len(noisy))
    return chosen[np.lexsort((chosen, -noisy[chosen]))]


def gaps_between(noisy: IntegersOrReals, order: Indices) -> IntegersOrReals:
    """Return how far each leader but the last is ahead of the next one.

    The last gap, to a runner-up whose identity stays secret, is the margin to the least value that would still have
    been selected: one less than the difference where the runner-up would win a tie. The plain difference of integers
    would not be private (docs/proofs/free_gap.md); for real numbers, which do not tie, the two are the same.
    """
    gaps: IntegersOrReals = -np.diff(noisy[order])
    if gaps.dtype.kind == "i" and len(gaps):
        gaps[-1] -= int(order[-1] < order[-2])
    return gaps
