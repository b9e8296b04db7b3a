"""Exact quantiles of the largest noise on a tree counter: the law of its extremes along all prefixes, level by level.

Given that the noise at a node's left end is u, whether all prefixes below the node stay within +-z depends on noise of
that subtree alone. So the probability, as a function of u on -z .. z, obeys a recursion of products and convolutions.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from scipy import fft

Floats = NDArray[np.float64]
TreeLaw = DiscreteLaplace | DiscreteGaussian

_CELLS = 2048  # resolution of a quantile


class Window:
    """Functions on the integers -z .. z, and their means over one more noise variable."""

    def __init__(self, law: TreeLaw, z: int) -> None:
        self.z = z
        self._length = fft.next_fast_len(4 * z + 1, real=True)
        kernel = np.zeros(self._length)
        kernel[np.arange(-2 * z, 2 * z + 1)] = law.pmf(np.arange(-2 * z, 2 * z + 1))
        self._transform = fft.rfft(kernel)

    @property
    def ones(self) -> Floats:
        """The probability that u alone is within the window."""
        return np.ones(2 * self.z + 1)

    def mean(self, function: Floats) -> Floats:
        """Return E[function(u + noise)], function being 0 outside of the window."""
        product = fft.irfft(fft.rfft(function, self._length) * self._transform, self._length)
        return np.clip(product[: 2 * self.z + 1], 0.0, 1.0)


def binary_within(window: Window, steps: int) -> Floats:
    """Return the probability that the noise stays within the window at steps 1 .. `steps`, by that at step 0."""
    full = [window.ones]  # full[h]: all prefixes shorter than 2^h
    while len(full) < steps.bit_length():
        full.append(full[-1] * window.mean(full[-1]))
    result = window.ones
    for height in range(steps.bit_length()):
        if steps >> height & 1:
            result = full[height] * window.mean(result)
    return result


class KaryWindow:
    """The recursion for balanced k-ary prefixes: on both sides of a position, independently given its noise."""

    def __init__(self, window: Window, base: int, height: int) -> None:
        self._window, self._base = window, base
        self._right = [window.ones]  # steps 1 .. reach(level) to the right of a position
        for _ in range(height):
            right = self._right[-1]
            self._right.append(right * self._walk(right * right, base // 2 - 1, right * right))

    def within(self, steps: int) -> Floats:
        """Return the probability that the noise stays within the window at steps 1 .. `steps`, by that at step 0."""
        return self._near(len(self._right) - 1, steps)

    def _walk(self, each: Floats, count: int, last: Floats) -> Floats:
        """Return the mean of `each` along `count` nodes and of `last` at the node after them."""
        result = self._window.mean(last)
        for _ in range(count):
            result = self._window.mean(each * result)
        return result

    def _split(self, level: int, steps: int) -> tuple[int, int]:
        """Return the digit of `steps` at the level below, and the signed rest."""
        unit = self._base ** (level - 1)
        digit = (steps + unit // 2) // unit
        return digit, steps - digit * unit

    def _near(self, level: int, steps: int) -> Floats:
        """Return the probability for steps 1 .. `steps` right of a position."""
        if level == 0 or steps == 0:
            return self._window.ones
        digit, rest = self._split(level, steps)
        if digit == 0:
            return self._near(level - 1, steps)
        right = self._right[level - 1]
        last = right * self._near(level - 1, rest) if rest >= 0 else self._far(level - 1, -rest)
        return right * self._walk(right * right, digit - 1, last)

    def _far(self, level: int, first: int) -> Floats:
        """Return the probability for steps `first` .. reach(level) right of a position, first >= 1."""
        if level == 0:
            return self._window.ones
        digit, rest = self._split(level, first)
        right = self._right[level - 1]
        start = self._far(level - 1, rest) if rest > 0 else self._near(level - 1, -rest) * right
        beyond = self._base // 2 - digit
        if beyond:
            start = start * self._walk(right * right, beyond - 1, right * right)
        for _ in range(digit):  # the steps on the way are free; that their noise is kept within is on the safe side
            start = self._window.mean(start)
        return start


def after_ends(ends: Sequence[tuple[TreeLaw, int]], window: Callable[[TreeLaw], Window], within: Floats) -> float:
    """Return the mean of `within` over the noise at step 0: sums of so many variables of each law in `ends`."""
    for law, number in ends:
        for _ in range(number):
            within = window(law).mean(within)
    return float(within[len(within) // 2])


def tree_quantile(
    within: Callable[[Callable[[TreeLaw], Window]], float], columns: int, beta: float, bound: float
) -> int:
    """Return the least z, up to one part in about a thousand, that all columns keep within with probability 1 - beta.

    Args:
        within: the probability for one column, given a function that makes windows for noise laws. Wide laws are put on
            a coarser grid, on which they look the same.
        columns: number of independent columns.
        beta: in (0, 1).
        bound: a value known to be large enough.
    """
    cell = max(1, math.ceil(bound / _CELLS))
    low, high = 0, math.ceil(bound / cell)
    while low < high:
        middle = (low + high) // 2
        inside = within(functools.partial(_coarse_window, z=middle, cell=cell))
        exceeded = -math.expm1(columns * math.log(inside)) if inside > 0 else 1.0
        low, high = (low, middle) if exceeded <= beta else (middle + 1, high)
    return high if cell == 1 else math.floor((high + 0.5) * cell)


def _coarse_window(law: TreeLaw, z: int, cell: int) -> Window:
    if cell == 1:
        return Window(law, z)
    if isinstance(law, DiscreteLaplace):
        return Window(DiscreteLaplace(law.scale / cell), z)
    return Window(DiscreteGaussian(law.sigma / cell), z)
