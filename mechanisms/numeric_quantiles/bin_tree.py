"""A tree over bins: noisy counts of its nodes, made consistent, and how far off what follows from them may be."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

Number = TypeVar("Number", np.int64, np.float64)

BRANCHINGS = range(2, 17)


@dataclass(frozen=True)
class BinTree:
    """So many `levels` of nodes: the bins, then always `branching` neighbours together. There is no root.

    Nodes are numbered level by level, the bins first. Each node has a noisy count, with independent noise of one
    variance, which is the unit of all variances here. docs/proofs/numeric_quantiles.md, section 2.
    """

    bins: int
    branching: int
    levels: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level."""
        return tuple(-(-self.bins // self.branching**level) for level in range(self.levels))

    @property
    def nodes(self) -> int:
        """Number of all nodes."""
        return sum(self.sizes)

    def counts(self, counts: Integers) -> Integers:
        """Return the counts of all nodes, int64 (nodes,), from those of the bins."""
        found = [counts]
        for _ in range(1, self.levels):
            found.append(self._sums(found[-1]))
        return np.concatenate(found)

    def estimates(self, noisy: Integers) -> list[Floats]:
        """Return the least squares estimates of the counts of all nodes, by level: children add up to their parent."""
        given = np.split(noisy.astype(np.float64), np.cumsum(self.sizes)[:-1])
        combined, below = [given[0]], []
        for level in range(1, self.levels):
            below.append(self._sums(combined[-1]))
            combined.append(self._variances[level] * (given[level] + below[-1] / self._below[level - 1]))
        for level in reversed(range(self.levels - 1)):
            excess = (combined[level + 1] - below[level]) / self._below[level]
            combined[level] = combined[level] + self._variances[level] * excess[self._parents(level)]
        return combined

    def measure(self, estimates: list[Floats]) -> Floats:
        """Return counts >= 0 of the bins, float64 (bins,): from above, each node's is divided among its children.

        In proportion to their estimates, of which negative ones count as 0; equally if none is positive.
        """
        found = np.maximum(estimates[-1], 0.0)
        for level in reversed(range(self.levels - 1)):
            shares, parents = np.maximum(estimates[level], 0.0), self._parents(level)
            shares = np.where(self._sums(shares)[parents] > 0, shares, 1.0)
            found = shares * (found / self._sums(shares))[parents]
        return found

    def norms(self, quantile: float) -> tuple[Floats, Floats]:
        """Return how much noise there is in (count below an edge) - quantile (count of all), at all inner edges.

        Returns:
            The L2 norm of the coefficients of the noise of all nodes, and a bound of their L1 norm: both (bins - 1,).
        """
        node = np.arange(1, self.bins)
        weight, square, absolute = (np.zeros(self.bins - 1) for _ in range(3))
        for level in range(self.levels):
            root = level == self.levels - 1
            family = np.zeros_like(node) if root else node // self.branching
            first, after = (0, self.sizes[level]) if root else self._family(family, level)
            left, own, right = self._split(self._variances[level], node, first, after)
            whole = self._mean(level, family, left + weight * own, quantile)
            square += (1 - whole) ** 2 * left + (weight - whole) ** 2 * own + whole**2 * right
            left, own, right = self._split(self._absolute[level], node, first, after)
            absolute += (1 - whole) * left + np.abs(weight - whole) * own + whole * right
            weight, node = np.broadcast_to(whole, node.shape), family
        return np.sqrt(square), absolute

    @cached_property
    def worst_norm(self) -> float:
        """The largest L2 norm over edges and quantiles; its square is convex in the quantile: 0 or 1 is the worst."""
        return max(float(self.norms(quantile)[0].max()) for quantile in (0.0, 1.0))

    def _mean(self, level: int, family: Integers, weighted: Floats, quantile: float) -> Floats:
        """Return the part of a family's count that is below the edge, as its sum tells; above all, the quantile."""
        return np.full(len(family), quantile) if level == self.levels - 1 else weighted / self._below[level][family]

    def _family(self, family: Integers, level: int) -> tuple[Integers, Integers]:
        first = family * self.branching
        return first, np.minimum(first + self.branching, self.sizes[level])

    @staticmethod
    def _split(
        values: Floats, node: Integers, first: int | Integers, after: int | Integers
    ) -> tuple[Floats, Floats, Floats]:
        """Return the sums of values of a family's nodes before the node, its own value, and the sums after it."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[node] - sums[first], values[node], sums[after] - sums[node + 1]

    @cached_property
    def _variances(self) -> list[Floats]:
        """By level, the variance of what a node's own noisy count and those below it say together of its count."""
        found = [np.ones(self.bins)]
        for _ in range(1, self.levels):
            below = self._sums(found[-1])
            found.append(below / (1 + below))
        return found

    @cached_property
    def _below(self) -> list[Floats]:
        """By level, for each parent, the variance of what its children say together."""
        return [self._sums(values) for values in self._variances[:-1]]

    @cached_property
    def _absolute(self) -> list[Floats]:
        """By level, the L1 norm of the coefficients, all >= 0, of that combination."""
        found = [np.ones(self.bins)]
        for level in range(1, self.levels):
            below = self._sums(found[-1]) / self._below[level - 1]
            found.append(self._variances[level] * (1 + below))
        return found

    def _sums(self, values: NDArray[Number]) -> NDArray[Number]:
        """Add up children."""
        sums: NDArray[Number] = np.add.reduceat(values, np.arange(0, len(values), self.branching))
        return sums

    def _parents(self, level: int) -> Integers:
        return np.arange(self.sizes[level]) // self.branching


@functools.lru_cache(maxsize=64)
def best_tree(bins: int, *, pure: bool) -> BinTree:
    """Return the tree with the least error at the worst edge and for the worst quantile.

    A unit is in one node of each level. So the variance of a node grows with the number of levels, and with its square
    for noise that is `pure`.
    """
    return min(_candidates(bins), key=lambda tree: tree.worst_norm**2 * tree.levels ** (2 if pure else 1))


def _candidates(bins: int) -> list[BinTree]:
    """Return trees with few nodes on top, and the one of bins alone."""
    found = {BinTree(bins, 2, 1)}
    for branching in BRANCHINGS:
        levels = 1
        while bins > branching**levels:
            levels += 1
        found |= {BinTree(bins, branching, most) for most in (levels - 1, levels) if most > 1}
    return sorted(found, key=lambda tree: (tree.levels, tree.branching))
