"""Ranks: the largest published numbers of a window, and by how much each is ahead of the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def ranked(numbers: Sequence[float], names: Sequence[str], top: int) -> list[tuple[int, float | None]]:
    """Return the places of the `top` largest numbers, the largest first, each with its lead over the next one.

    Of equal numbers the one whose name sorts first leads. The lead of the last number there is is None.

    Privacy: post-processing.

    Example:
        >>> ranked([5.0, 9.0, 5.0], ["b", "a", "c"], 2)
        [(1, 4.0), (0, 0.0)]
    """
    order = sorted(range(len(numbers)), key=lambda place: (-numbers[place], names[place]))[: top + 1]
    leads = [numbers[one] - numbers[after] for one, after in pairwise(order)]
    return list(zip(order, [*leads, None], strict=False))[:top]
