"""Continual counter: the binary tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from privstream.mechanisms.counters import path_quantile
from privstream.mechanisms.counters.continual_counter import (
    ContinualCounter,
    CounterState,
    Integers,
    bound_noise,
    node_law,
)
from privstream.mechanisms.counters.dyadic import prefix_sums
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tail_bounds import sums_quantile


@dataclass(frozen=True, kw_only=True)
class BinaryTreeCounter(ContinualCounter):
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
        >>> counter.levels, round(counter.variance(1)), counter.error(1023, 0.05)
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
    def levels(self) -> int:
        """Levels of the tree, and so nodes that contain one step."""
        return self.horizon.bit_length()

    @cached_property
    def law(self) -> DiscreteLaplace | DiscreteGaussian:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.levels * self.touched, self.rows_per_unit)

    def variance(self, step: int) -> float:
        """Return the variance of the noise on each column at `step` = 1, 2, .."""
        return self._step_number(step).bit_count() * self.law.variance

    def error(self, step: int, beta: float) -> int:
        """Return z such that all columns at all of steps 1 .. `step` are within z with probability 1 - beta."""
        return self.error_after((), step, beta)

    @property
    def end(self) -> tuple[path_quantile.TreeLaw, int]:
        """What the noise at the horizon is the sum of: a law, and how often."""
        return self.law, self.horizon.bit_count()

    def error_after(self, ends: Sequence[tuple[path_quantile.TreeLaw, int]], step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and so many variables of each law in `ends`."""
        step = self._step_number(step)
        bound = sums_quantile([(self.law, self.levels), *ends], self.columns * step, beta)

        def within(window: Callable[[path_quantile.TreeLaw], path_quantile.Window]) -> float:
            return path_quantile.after_ends(ends, window, path_quantile.binary_within(window(self.law), step))

        return path_quantile.tree_quantile(within, self.columns, beta, bound)

    def _initial_memory(self) -> Integers:
        return np.zeros((self.levels, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        ends = np.arange(state.step + 1, state.step + 1 + len(sums))
        nodes = bound_noise(self.law, source, ends, 0, sums)
        drawn, path = prefix_sums(state.step, nodes, state.memory)
        return path, drawn
