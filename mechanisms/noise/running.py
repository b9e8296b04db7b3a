"""Trees of partial sums over steps: digits of steps, plain and balanced, and the nodes that add up to a prefix."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator


def plain_digits(base: int, step: int) -> list[int]:
    """Return the digits of a step, lowest first."""
    found = []
    while step:
        step, digit = divmod(step, base)
        found.append(digit)
    return found


def most_digits(base: int, step: int) -> int:
    """Return the largest sum of digits of the steps 1 .. `step`."""
    numbers = plain_digits(base, step)
    lower = [sum(numbers[place:]) - 1 + place * (base - 1) for place, digit in enumerate(numbers) if digit]
    return max(sum(numbers), *lower)


@functools.lru_cache(maxsize=256)
def best_arity(horizon: int) -> int:
    """Return the number of children with the least variance at the worst step, among the least of each height."""
    bases: list[int] = []
    for height in range(1, horizon.bit_length() + 1):
        base = max(2, round(horizon ** (1 / height)) - 1)
        bases.append(next(base for base in itertools.count(base) if base**height > horizon))
    return min(bases, key=lambda base: len(plain_digits(base, horizon)) ** 2 * most_digits(base, horizon))


_LARGEST_BASE = 99


def tree_height(base: int, horizon: int) -> int:
    """Return the least h with (base^h - 1) / 2 >= horizon."""
    return next(h for h in itertools.count(1) if (base**h - 1) // 2 >= horizon)


def digits(base: int, step: int) -> list[int]:
    """Return the balanced digits of a step, lowest first."""
    found = []
    while step:
        digit = (step + base // 2) % base - base // 2
        found.append(digit)
        step = (step - digit) // base
    return found


def prefix_nodes(base: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Return height, position and sign of the nodes that add up to the first `step` steps: balanced digits."""
    numbers, position = digits(base, step), 0
    for height in reversed(range(len(numbers))):
        position, number = position * base, numbers[height]
        for node in range(min(position, position + number), max(position, position + number)):
            yield height, node, 1 if number > 0 else -1
        position += number


def total_digits(base: int, horizon: int) -> int:
    """Return the sum over steps 1 .. horizon of the absolute values of their balanced digits."""
    side, total = base // 2, 0
    period = side * (side + 1)
    for level in range(tree_height(base, horizon)):
        unit = base**level
        quotients, rest = divmod(horizon + unit // 2 + 1, unit)  # steps -unit//2 .. horizon share digits in runs

        def below(count: int) -> int:
            """Return the sum of |digit| of the quotients 0 .. count - 1."""
            cycles, part = divmod(count, base)
            return cycles * period + sum(abs((q + side) % base - side) for q in range(part))

        total += unit * below(quotients) + rest * (below(quotients + 1) - below(quotients))
    return total


@functools.lru_cache(maxsize=256)
def best_base(horizon: int) -> int:
    """Return the odd base with the least mean variance over the horizon."""
    bases = range(3, _LARGEST_BASE + 1, 2)
    return min(bases, key=lambda base: tree_height(base, horizon) ** 2 * total_digits(base, horizon))
