"""Continual counter: the k-ary tree with subtraction."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.counters import path_quantile
from privstream.mechanisms.counters.continual_counter import (
    ContinualCounter,
    CounterState,
    Integers,
    node_labels,
    node_law,
)
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tail_bounds import sums_quantile

_LARGEST_BASE = 99


@dataclass(frozen=True, kw_only=True)
class KaryTreeCounter(ContinualCounter):
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
    def height(self) -> int:
        """Nodes that contain one step."""
        return tree_height(self.arity, self.horizon)

    @cached_property
    def law(self) -> DiscreteLaplace | DiscreteGaussian:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.height * self.touched, self.rows_per_unit)

    def variance(self, step: int) -> float:
        """Return the variance of the noise on each column at `step` = 1, 2, .."""
        return self.law.variance * sum(map(abs, digits(self.arity, self._step_number(step))))

    def error(self, step: int, beta: float) -> int:
        """Return z such that all columns at all of steps 1 .. `step` are within z with probability 1 - beta."""
        return self.error_after((), step, beta)

    @property
    def end(self) -> tuple[path_quantile.TreeLaw, int]:
        """What the noise at the horizon is the sum of: a law, and how often."""
        return self.law, sum(map(abs, digits(self.arity, self.horizon)))

    def error_after(self, ends: Sequence[tuple[path_quantile.TreeLaw, int]], step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and so many variables of each law in `ends`."""
        step = self._step_number(step)
        nodes = [(self.law, self.arity // 2 * tree_height(self.arity, step)), *ends]
        bound = sums_quantile(nodes, self.columns * step, beta)

        def within(window: Callable[[path_quantile.TreeLaw], path_quantile.Window]) -> float:
            start = path_quantile.KaryWindow(window(self.law), self.arity, self.height).within(step)
            return path_quantile.after_ends(ends, window, start)

        return path_quantile.tree_quantile(within, self.columns, beta, bound)

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
