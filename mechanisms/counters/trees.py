"""Continual counters from trees of noisy partial sums: binary, of many children, and k-ary with signs."""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.counters.continual_counter import (
    ContinualCounter,
    CounterState,
    bound_noise,
    node_labels,
    node_law,
)
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import sum_spread, sums_quantile
from scipy import fft
from typing_extensions import override


def prefix_sums(base: int, first: int, nodes: Integers, path: Integers) -> tuple[Integers, Integers]:
    """Return f(t) = node(t) + f(t - u), f(0) = 0, u the largest power of `base` in t, after `first`; and the next path.

    Args:
        base: at least 2.
        first: steps done.
        nodes: (n, columns), the values of the nodes that end at steps first + 1 .. first + n.
        path: (levels, columns), f(first with its h lowest digits cleared) in row h.
    """
    count = len(nodes)
    sums = np.empty_like(nodes)
    for height in reversed(range(len(path))):
        unit = base**height
        for digit in range(1, base):
            start = (digit * unit - first - 1) % (base * unit) + 1  # steps to the next one with this digit
            if start > count:
                continue
            here = nodes[start - 1 :: base * unit]
            before = sums[start - 1 + (base - 1) * unit :: base * unit][: len(here) - 1]
            sums[start - 1] = here[0] + (path[height] if start <= unit else sums[start - 1 - unit])
            sums[start - 1 + base * unit :: base * unit] = here[1:] + before
    last = first + count
    following = path.copy()
    for height in range(len(path)):
        end = last - last % base**height
        if end > first:
            following[height] = sums[end - first - 1]
    return sums, following


_CELLS = 2048  # resolution of a quantile


class Window:
    """Functions on the integers -z .. z, and their means over one more noise variable."""

    def __init__(self, law: SymmetricNoise, z: int) -> None:
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


def summed_within(window: Window, base: int, steps: int) -> Floats:
    """Return the probability that the noise stays within the window at steps 1 .. `steps`, by that at step 0."""
    full, result = window.ones, window.ones  # full: all prefixes shorter than base^h
    while steps:
        steps, digit = divmod(steps, base)
        result = _walked(window, full, digit, result)
        if steps:
            full = _walked(window, full, base - 1, full)
    return result


def _walked(window: Window, each: Floats, count: int, last: Floats) -> Floats:
    """Return the mean of `each` before every one of `count` nodes and of `last` after them."""
    for _ in range(count):
        last = each * window.mean(last)
    return last


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


def after_ends(
    ends: Sequence[tuple[SymmetricNoise, int]], window: Callable[[SymmetricNoise], Window], within: Floats
) -> float:
    """Return the mean of `within` over the noise at step 0: sums of so many variables of each law in `ends`."""
    for law, number in ends:
        for _ in range(number):
            within = window(law).mean(within)
    return float(within[len(within) // 2])


def tree_quantile(
    within: Callable[[Callable[[SymmetricNoise], Window]], float], columns: int, beta: float, bound: float
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
        failing = -math.expm1(columns * math.log(inside)) if inside > 0 else 1.0
        low, high = (low, middle) if failing <= beta else (middle + 1, high)
    return high if cell == 1 else math.floor((high + 0.5) * cell)


def _coarse_window(law: SymmetricNoise, z: int, cell: int) -> Window:
    if cell == 1:
        return Window(law, z)
    if isinstance(law, DiscreteLaplace):
        return Window(DiscreteLaplace(law.scale / cell), z)
    return Window(DiscreteGaussian(law.sigma / cell), z)


@dataclass(frozen=True, kw_only=True)
class TreeCounter(ContinualCounter):
    """A counter whose noise at a step is the sum of that of some nodes of a tree over time, plus or minus."""

    @property
    @abstractmethod
    def height(self) -> int:
        """Nodes that contain one step."""

    @abstractmethod
    def nodes(self, step: int) -> int:
        """Return the number of nodes whose noise is in the sums at `step`."""

    @abstractmethod
    def most_nodes(self, step: int) -> int:
        """Return a number that this is at most at any of steps 1 .. `step`."""

    @abstractmethod
    def _within(self, window: Window, step: int) -> Floats:
        """Return the probability that the noise stays within the window at steps 1 .. `step`, by that at step 0."""

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.height * self.touched, self.rows_per_unit, self.streams)

    @override
    def variance(self, step: int) -> float:
        return self.law.variance * self.nodes(self._step_number(step))

    @override
    def spread(self, step: int, beta: float) -> int:
        return sum_spread([(self.law, self.nodes(self._step_number(step)))], beta)

    @override
    def error(self, step: int, beta: float) -> int:
        return self.error_after((), step, beta)

    def variance_up_to(self, step: int) -> float:
        """Return what the variance is at most at steps 1 .. `step`."""
        return self.law.variance * self.most_nodes(self._step_number(step))

    @property
    def end(self) -> tuple[SymmetricNoise, int]:
        """What the noise at the horizon is the sum of: a law, and how often."""
        return self.law, self.nodes(self.horizon)

    def error_after(self, ends: Sequence[tuple[SymmetricNoise, int]], step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and so many variables of each law in `ends`."""
        step = self._step_number(step)
        bound = sums_quantile([(self.law, self.most_nodes(step)), *ends], self.columns * step, beta)

        def within(window: Callable[[SymmetricNoise], Window]) -> float:
            return after_ends(ends, window, self._within(window(self.law), step))

        return tree_quantile(within, self.columns, beta, bound)


@dataclass(frozen=True, kw_only=True)
class SummedNodesCounter(TreeCounter):
    """What trees of which only complete nodes are used, and added, have in common: all noise is bound to the data."""

    @property
    @abstractmethod
    def arity(self) -> int:
        """Children of a node."""

    @cached_property
    @override
    def height(self) -> int:
        return len(plain_digits(self.arity, self.horizon))

    @override
    def nodes(self, step: int) -> int:
        return sum(plain_digits(self.arity, step))

    @override
    def most_nodes(self, step: int) -> int:
        return most_digits(self.arity, step)

    @override
    def _within(self, window: Window, step: int) -> Floats:
        return summed_within(window, self.arity, step)

    def _initial_memory(self) -> Integers:
        return np.zeros((self.height, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        ends = np.arange(state.step + 1, state.step + 1 + len(sums))
        nodes = bound_noise(self.law, source, ends, 0, sums)
        drawn, path = prefix_sums(self.arity, state.step, nodes, state.memory)
        return path, drawn


@dataclass(frozen=True, kw_only=True)
class BinaryTreeCounter(SummedNodesCounter):
    """Continual column sums from a binary tree of noisy partial sums: a prefix is the sum of at most L of them.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. A row enters L = ceil(log2(horizon + 1)) nodes; the noise of
        a node is discrete Laplace of scale L s / epsilon, or discrete Gaussian with sigma about sqrt(L s) times that of
        one count, s = columns touched by one change. A node's noise is a function of its label and of the true sum
        when the node is complete: a replay with other data from some step on draws fresh noise there.

    Accuracy:
        `variance(t)` = popcount(t) times that of a node; `error(t, beta)` is the exact quantile, up to a thousandth.
        Time per step O(columns), amortised; the state has L + 2 numbers per column.

    Attributes: see `ContinualCounter`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counter = BinaryTreeCounter(epsilon=1.0, horizon=1023)
        >>> counter.height, round(counter.variance(1)), counter.error(1023, 0.05)
        (10, 200, 156)
        >>> state, sums = counter.run(counter.initial_state(), [[5], [0], [7]], SeededNoise(1))
        >>> sums.shape, sums.dtype
        ((3, 1), dtype('int64'))

    Source: Dwork, Naor, Pitassi, Rothblum (2010); Chan, Shi, Song (2011); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_noise(lambda: self.law)

    @property
    @override
    def arity(self) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class WideTreeCounter(SummedNodesCounter):
    """Continual column sums from a tree of noisy partial sums whose nodes have many children: for pure privacy.

    A prefix is the sum of as many nodes as its number has in digits to base k: more of them than in a binary tree, of
    less noise each, since the tree is lower. In short runs the tree has one level: each step has noise of its own. The
    best counter for delta = 0 whose noise is bound to the data, and in short runs better than Gaussian noise.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. A row enters at most `height` = h nodes, h the number of
        digits of the horizon; the noise of a node is discrete Laplace of scale h s / epsilon, s = columns touched by
        one change, and a function of its label and of the true sum when the node is complete.

    Accuracy:
        `variance(t)` = sum of digits of t times that of a node; `error(t, beta)` is the exact quantile, up to a
        thousandth. Time per step O(columns) in long runs; the state has h + 1 numbers per column.

    Attributes: see `ContinualCounter`; delta = 0. `arity`, the number of children, is that of the least variance at the
        worst step.

    Example:
        >>> counter = WideTreeCounter(epsilon=1.0, horizon=1000)
        >>> counter.arity, counter.height, counter.error(1000, 0.05)
        (11, 3, 70)
        >>> day = WideTreeCounter(epsilon=1.0, horizon=24)
        >>> day.height, day.error(24, 0.05)
        (1, 14)

    Source: Qardaji, Yang, Li, Understanding Hierarchical Methods for Differentially Private Histograms (2013);
    docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta:
            raise ValueError(f"delta must be 0 for this counter, got {self.delta}")
        self._check_noise(lambda: self.law)

    @cached_property
    @override
    def arity(self) -> int:
        return best_arity(self.horizon)


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


@dataclass(frozen=True, kw_only=True)
class KaryTreeCounter(TreeCounter):
    """Continual column sums from a k-ary tree, k odd: a prefix is the nearest larger node sums, plus or minus others.

    A step t = sum of d_i k^i with balanced digits |d_i| <= (k - 1)/2 is read as |d_i| nodes of height i to the right of
    a position where d_i > 0, and to the left of it, subtracted, where d_i < 0. Half as many nodes are needed as when
    all are added, and the tree is lower than the binary one. The best choice for delta = 0.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. A row enters `height` = h nodes, h the least with
        (k^h - 1)/2 >= horizon; the noise of a node is discrete Laplace of scale h s / epsilon, s = columns touched by
        one change. Nodes are used before they are complete, so their noise cannot depend on the data: a run that is
        repeated with other data needs a noise source of its own, or the difference shows.

    Accuracy:
        `variance(t)` = sum of |d_i| times that of a node; `error(t, beta)` is the exact quantile, up to a thousandth.
        Time per step O(k h columns), O(columns) in long runs; the state has one number per column.

    Attributes:
        base: k, odd, 3 to 99; None for the least mean variance over the horizon. The others are those of
            `ContinualCounter`, with delta = 0.

    Example:
        >>> counter = KaryTreeCounter(epsilon=1.0, horizon=1024)
        >>> counter.arity, counter.height, counter.error(1024, 0.05)
        (13, 3, 59)

    Source: Andersson, Pagh, Torkamani, Improved Counting under Continual Observation with Pure Differential Privacy
    (2024); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 2"
    base: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta:  # nodes are used ahead of time: only pure privacy withstands adaptive inputs then
            raise ValueError(f"delta must be 0 for this counter, got {self.delta}")
        if self.base is not None:
            base = checks.integer("base", self.base, minimum=3)
            if base > _LARGEST_BASE or base % 2 == 0:
                raise ValueError(f"base must be odd and <= {_LARGEST_BASE}, got {self.base}")
        self._check_noise(lambda: self.law)

    @cached_property
    def arity(self) -> int:
        """Children of a node, k."""
        return self.base or best_base(self.horizon)

    @cached_property
    @override
    def height(self) -> int:
        return tree_height(self.arity, self.horizon)

    @override
    def nodes(self, step: int) -> int:
        return sum(map(abs, digits(self.arity, step)))

    @override
    def most_nodes(self, step: int) -> int:
        return self.arity // 2 * tree_height(self.arity, step)

    @override
    def _within(self, window: Window, step: int) -> Floats:
        return KaryWindow(window, self.arity, self.height).within(step)

    def _initial_memory(self) -> Integers:
        return np.zeros((0, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        first, last = state.step + 1, state.step + len(sums)
        position, noise = 0, np.zeros((1, self.columns), np.int64)  # noise at positions position, position + 1, ..
        for level in reversed(range(self.height)):
            unit = self.arity**level
            low, high = (first + unit // 2) // unit, (last + unit // 2) // unit  # the nearest multiples
            position, noise = self._descend(level, position, noise, source)
            noise = noise[low - position : high - position + 1]
            position = low
        return state.memory, noise

    def _descend(self, level: int, position: int, noise: Integers, source: NoiseSource) -> tuple[int, Integers]:
        """Return the noise at the multiples of k^level within half a node of the given multiples of k^(level + 1)."""
        side = self.arity // 2
        centres = self.arity * np.arange(position, position + len(noise))
        away = np.arange(1, side + 1)
        # The node between two neighbouring positions is numbered by the left one, which may be negative and unused.
        right = self._draw(level, centres[:, None] + away - 1, source)
        left = self._draw(level, centres[:, None] - away, source)
        around = np.empty((len(noise), self.arity, self.columns), np.int64)
        around[:, side] = noise
        around[:, side + 1 :] = noise[:, None] + np.cumsum(right, axis=1)
        around[:, :side] = (noise[:, None] - np.cumsum(left, axis=1))[:, ::-1]
        return int(centres[0]) - side, around.reshape(-1, self.columns)

    def _draw(self, level: int, nodes: Integers, source: NoiseSource) -> Integers:
        """Return the noise of nodes (groups, side) as (groups, side, columns)."""
        labels = node_labels(nodes.reshape(-1), level, self.columns)
        return self.law.draw(source, labels).reshape(*nodes.shape, self.columns)


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
