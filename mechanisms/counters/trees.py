"""Continual counter from a tree of noisy partial sums; digits of steps, plain and balanced."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import (
    ContinualCounter,
    CounterState,
    bound_noise,
    node_law,
)
from privstream.mechanisms.noise.discrete import SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import sum_quantile, sum_spread
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


@dataclass(frozen=True, kw_only=True)
class TreeCounter(ContinualCounter):
    """Continual column sums from a tree of noisy partial sums: the noise at a step is that of some complete nodes.

    A prefix is the sum of as many nodes as its number has in digits to base `arity`: with two children, of few nodes in
    a high tree; with many, of more nodes of less noise each. In short runs the tree has one level: each step has noise
    of its own.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. A row enters at most `height` = h nodes, h the number of
        digits of the horizon; the noise of a node is discrete Laplace of scale h s / epsilon, or discrete Gaussian with
        sigma about sqrt(h s) times that of one count, s = columns touched by one row. It is a function of the node's
        label and of the true sum when the node is complete: a replay with other data from some step on draws fresh
        noise there.

    Accuracy:
        `variance(t)` = sum of digits of t times that of a node; `error(t, beta)` is a union bound. Time
        per step O(columns), amortised; the state has h + 1 numbers per column.

    Attributes:
        children: of a node; None for the number with the least variance at the worst step. The others are those of
            `ContinualCounter`.

    Example:
        >>> counter = TreeCounter(epsilon=1.0, horizon=1000)
        >>> counter.arity, counter.height
        (11, 3)
        >>> TreeCounter(epsilon=1.0, horizon=24).height
        1

    Source: Dwork, Naor, Pitassi, Rothblum (2010); Chan, Shi, Song (2011); Qardaji, Yang, Li, Understanding Hierarchical
    Methods for Differentially Private Histograms (2013); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 1"
    children: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.children is not None:
            checks.integer("children", self.children, minimum=2)
        self._check_noise(lambda: self.law)

    @cached_property
    def arity(self) -> int:
        """Children of a node."""
        return self.children or best_arity(self.horizon)

    @cached_property
    def height(self) -> int:
        """Nodes that contain one step."""
        return len(plain_digits(self.arity, self.horizon))

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.height * self.touched, self.rows_per_unit)

    def nodes(self, step: int) -> int:
        """Return the number of nodes whose noise is in the sums at `step`."""
        return sum(plain_digits(self.arity, step))

    @override
    def variance(self, step: int) -> float:
        return self.law.variance * self.nodes(self._step_number(step))

    @override
    def spread(self, step: int, beta: float) -> int:
        return sum_spread([(self.law, self.nodes(self._step_number(step)))], beta)

    @override
    def error(self, step: int, beta: float) -> int:
        return self.error_after((), step, beta)

    @property
    def end(self) -> tuple[SymmetricNoise, int]:
        """What the noise at the horizon is the sum of: a law, and how often."""
        return self.law, self.nodes(self.horizon)

    def error_after(self, ends: Sequence[tuple[SymmetricNoise, int]], step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and so many variables of each law in `ends`."""
        # Prefixes that differ in their last digit are partial sums of symmetric noises: of all together one is beyond
        # a bound with at most twice the probability of the last one (Levy). A union bound for the rest.
        parts = [(self.law, most_digits(self.arity, self._step_number(step))), *ends]
        walks = self.columns * min(step, 2 * (step // self.arity + 1))
        return sum_quantile(parts, math.log(checks.probability("beta", beta)) - math.log(walks))

    def _initial_memory(self) -> Integers:
        return np.zeros((self.height, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        ends = np.arange(state.step + 1, state.step + 1 + len(sums))
        nodes = bound_noise(self.law, source, ends, 0, sums)
        drawn, path = prefix_sums(self.arity, state.step, nodes, state.memory)
        return path, drawn


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
