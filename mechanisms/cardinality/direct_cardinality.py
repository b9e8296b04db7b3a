"""Set cardinality with noise for every step: fresh noise for each size, or a continual counter of the changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.cardinality.state import Cardinalities, CardinalityAlgorithm, CardinalityState, Integers
from privstream.mechanisms.counters.continual_counter import ContinualCounter, CounterState, node_law
from privstream.mechanisms.counters.counter_error import counter_error
from privstream.mechanisms.counters.unknown_horizon import best_counter
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource

_TYPICAL_STEPS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FreshNoise(CardinalityAlgorithm):
    """Each size with noise of its own, for one person who moves each of `horizon` sizes by 1."""

    epsilon: float
    delta: float
    beta: float
    horizon: int

    @cached_property
    def law(self) -> DiscreteLaplace | DiscreteGaussian:
        """The noise of a step."""
        return node_law(self.epsilon, self.delta, self.horizon)

    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take the true sizes (n,) after the next n steps, n > 0. Estimates may be negative."""
        steps = state.step + 1 + np.arange(len(sizes))
        estimates = sizes + self.law.draw(noise, noise.bind(steps.astype(np.uint64), sizes))
        bounds = np.full(len(sizes), self.error(1, None))
        after = replace(state, step=int(steps[-1]), size=int(sizes[-1]), shown=int(estimates[-1]))
        return after, Cardinalities(estimates, bounds, np.zeros(len(sizes), np.bool_))

    def error(self, step: int, updates: int | None) -> int:
        """Return an error bound for all steps."""
        return max(0, self.law.tail_quantile(self.beta / (2 * self.horizon)))


@dataclass(frozen=True, kw_only=True)
class CountedChanges(CardinalityAlgorithm):
    """A continual counter of changes, for a unit that adds 1 at `moves` steps at most and takes 1 away at as many."""

    epsilon: float
    delta: float
    beta: float
    horizon: int | None
    moves: int

    @cached_property
    def counter(self) -> ContinualCounter:
        """The counter; to it, a move is a row that is replaced by another one at another step."""
        budget: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        budget |= {"neighbouring": "replace_one", "rows_per_unit": self.moves}
        return best_counter(self.horizon, **budget)

    def initial_memory(self) -> NDArray[Any]:
        """Return the counter's memory before the first step."""
        return self.counter.initial_state().memory

    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take the true sizes (n,) after the next n steps, n > 0. Estimates may be negative."""
        before = CounterState(step=state.step, totals=np.array([state.size]), memory=state.memory)
        changes = np.diff(sizes, prepend=state.size)
        counter, published = self.counter.run(before, changes[:, None], noise)
        estimates = published[:, 0]
        bounds = self._bounds(state.step + 1 + np.arange(len(sizes)))
        after = replace(state, step=counter.step, size=int(sizes[-1]), shown=int(estimates[-1]), memory=counter.memory)
        return after, Cardinalities(estimates, bounds, np.zeros(len(sizes), np.bool_))

    def error(self, step: int, updates: int | None) -> int:
        """Return an error bound for all of steps 1 .. `step`."""
        return int(self._bounds(np.array([step]))[0])

    def _bounds(self, steps: Integers) -> Integers:
        if self.horizon is not None:
            return np.full(len(steps), self._whole_error)
        blocks = np.ceil(np.log2(steps)).astype(np.int64)
        distinct, place = np.unique(blocks, return_inverse=True)
        return np.array([counter_error(self.counter, 1 << int(block), self.beta) for block in distinct])[place]

    @cached_property
    def _whole_error(self) -> int:
        return int(self.counter.error(self.horizon or _TYPICAL_STEPS, self.beta))
