"""Continual counter: the binary tree with estimates that use everything below a node."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.counters.continual_counter import ContinualCounter, CounterState, bound_noise, node_law
from privstream.mechanisms.counters.trees import prefix_sums
from privstream.mechanisms.noise.discrete import SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import log_moment, minimal_bound
from typing_extensions import override

FRACTION = 12  # fractional bits of estimates
_LARGEST_LEVELS = 24
_REACH = 90  # no draw is larger than so many standard deviations


@dataclass(frozen=True, kw_only=True)
class BottomUpTreeCounter(ContinualCounter):
    """Continual column sums from a binary tree; each node's sum is estimated from its own noise and its children's.

    The estimate of a node at height h weighs its own noisy sum by 2^h / (2^(h+1) - 1) and the sum of its children's
    estimates by the rest: the best linear unbiased estimate from the subtree. All is done on integers (2^-12 of a
    count), in a way that moves with the true sums exactly.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. The same noisy sums as in `BinaryTreeCounter`, L levels of
        them; all else is post-processing. Noise is bound to the true sum when a node is complete.

    Accuracy:
        `variance(t)` = v (sum over set bits h of t of 1 / (2 - 2^-h)), v that of a node: about half of the binary
        tree's. `error(t, beta)` is a Chernoff and union bound, up to a third above the quantile. Twice the noise of
        `BinaryTreeCounter` per step; the state has 2 L + 2 numbers per column.

    Attributes: see `ContinualCounter`; horizon below 2^24.

    Example:
        >>> from privstream.mechanisms.counters.trees import BinaryTreeCounter
        >>> counter = BottomUpTreeCounter(epsilon=1.0, horizon=1023)
        >>> round(counter.variance(1023) / BinaryTreeCounter(epsilon=1.0, horizon=1023).variance(1023), 2)
        0.58

    Source: Honaker, Efficient Use of Differentially Private Binary Trees (2015); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon >> _LARGEST_LEVELS:
            raise ValueError(f"horizon must be < 2**{_LARGEST_LEVELS}, got {self.horizon}")
        self._check_noise(lambda: self.law)
        if math.log2(_REACH * math.sqrt(self.law.variance)) + self.height + FRACTION >= 62:  # of 64-bit integers
            raise ValueError(f"epsilon must be larger for rows of {self.touched} columns, got {self.epsilon}")

    @property
    def height(self) -> int:
        """Nodes that contain one step."""
        return self.horizon.bit_length()

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.height * self.touched, self.rows_per_unit, self.streams)

    @override
    def variance(self, step: int) -> float:
        # Up to 1/12 more by rounding.
        step = self._step_number(step)
        return self.law.variance * sum(1 / (2 - 2.0**-h) for h in range(self.height) if step >> h & 1)

    @override
    def error(self, step: int, beta: float) -> int:
        step = self._step_number(step)
        bound = _union_quantile(self.law, self._moments, step, self.columns, beta)
        return math.ceil(bound + 0.5 + self.height**2 * 2.0**-FRACTION)

    def _moments(self, rate: float) -> Floats:
        """Return the log moments at `rate` of the estimates of nodes, by height."""
        moments, weights = [], np.ones(1)
        for height in range(self.height):
            # The noise of a node's descendants j levels down has this weight in its estimate, and there are 2^j.
            share = 2.0**height / (2.0 ** (height + 1) - 1)
            weights = np.append(share, (1 - share) * weights) if height else weights
            moments.append(float(2.0 ** np.arange(height + 1) @ log_moment(self.law, rate, weights)))
        return np.array(moments)

    @override
    def _initial_memory(self) -> Integers:
        # Rows 0 .. L-1: sums along the path; rows L ..: estimates of complete nodes whose sibling is not complete.
        return np.zeros((2 * self.height, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        first, last = state.step, state.step + len(sums)
        path, pending = state.memory[: self.height], state.memory[self.height :].copy()
        nodes = np.empty_like(sums)
        estimates = np.empty((0, self.columns), np.int64)
        for height in range(self.height):
            ends = np.arange((first >> height) + 1, (last >> height) + 1) << height
            if not len(ends):
                break
            own = bound_noise(self.law, source, ends, height, sums[ends - first - 1]) << FRACTION
            estimates = own if height == 0 else _combine(height, own, estimates)
            lone = int(ends[0] >> height & 1 == 0)  # the first one's left sibling was complete before
            nodes[ends[lone::2] - first - 1] = estimates[lone::2]
            estimates = np.concatenate([pending[height : height + 1], estimates]) if lone else estimates
            if len(estimates) % 2:
                pending[height] = estimates[-1]
            estimates = estimates[: len(estimates) // 2 * 2]
            estimates = estimates[0::2] + estimates[1::2]
        drawn, path = prefix_sums(2, first, nodes, path)
        return np.concatenate([path, pending]), (drawn + (1 << FRACTION - 1)) >> FRACTION


def _combine(height: int, own: Integers, children: Integers) -> Integers:
    """Return estimates, from nodes' own noise and the sums of their children's estimates."""
    weight = 1 << height
    return (weight * own + (weight - 1) * children) // (2 * weight - 1)


def _union_quantile(
    law: SymmetricNoise, moments: Callable[[float], Floats], steps: int, columns: int, beta: float
) -> float:
    """Return z that no prefix 1 .. `steps` exceeds, in any column, with probability 1 - beta.

    The noise of a prefix has one independent part for each set bit h of its length; `moments(rate)[h]` is its log
    moment. The sum over prefixes of e^(sum over bits of k_h) is a product over levels: no prefix is visited.
    """
    rest = math.log(2 * columns / checks.probability("beta", beta))

    def exponent(rate: float) -> float:
        parts = moments(rate)
        total, above = -math.inf, 0.0  # prefixes that share the leading bits of `steps`, then have a 0 for its 1
        for height in reversed(range(steps.bit_length())):
            if steps >> height & 1:
                below = above + float(np.logaddexp(0.0, parts[:height]).sum())
                total = float(np.logaddexp(total, below))
                above += float(parts[height])
        return float(np.logaddexp(total, above))

    return minimal_bound(exponent, law, 1.0, rest)
