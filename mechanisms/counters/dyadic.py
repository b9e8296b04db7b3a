"""Sums along the binary expansion of step numbers, for many steps at once."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def prefix_sums(first: int, nodes: Integers, path: Integers) -> tuple[Integers, Integers]:
    """Return f(t) = node(t) + f(t without its lowest bit), f(0) = 0, for the steps after `first`, and the next path.

    Args:
        first: steps done.
        nodes: (n, columns), the values of the nodes that end at steps first + 1 .. first + n.
        path: (levels, columns), f(first with its h lowest bits cleared) in row h.
    """
    count = len(nodes)
    sums = np.empty_like(nodes)
    for height in reversed(range(len(path))):
        unit = 1 << height
        start = unit - first % (2 * unit)  # steps to the next odd multiple of the unit
        start += 2 * unit if start <= 0 else 0
        if start > count:
            continue
        here = nodes[start - 1 :: 2 * unit]
        before = sums[start - 1 + unit :: 2 * unit][: len(here) - 1]  # f at even multiples between them
        sums[start - 1] = here[0] + (path[height] if start <= unit else sums[start - 1 - unit])
        sums[start - 1 + 2 * unit :: 2 * unit] = here[1:] + before
    last = first + count
    following = path.copy()
    for height in range(len(path)):
        end = last >> height << height
        if end > first:
            following[height] = sums[end - first - 1]
    return sums, following
