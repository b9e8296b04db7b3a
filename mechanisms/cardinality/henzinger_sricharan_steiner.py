"""Set cardinality as published: Algorithms 6 and 7 of Henzinger, Sricharan and Steiner, and their doubling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.cardinality.sparse_changes import SparseChanges, whole_bounds
from privstream.mechanisms.cardinality.state import CardinalityState, Integers
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource

_BASEL = 6 / math.pi**2  # times the sum of 1 / j^2 is 1
_LARGEST_RATIO = 12.0  # of epsilon and ln(2 T / beta): beyond, rounding to integers is felt


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One run of Algorithm 6 or 7: epsilon, and S, the number of estimates that it pays for."""

    epsilon: float
    changes: int

    @property
    def unit(self) -> float:
        """S / epsilon_1, epsilon_1 = epsilon / 2."""
        return 2 * self.changes / self.epsilon

    def law(self, factor: int) -> DiscreteLaplace:
        """Return noise of so many units."""
        return DiscreteLaplace(math.nextafter(factor * self.unit, math.inf))


@dataclass(frozen=True, kw_only=True)
class HenzingerSricharanSteinerChanges(SparseChanges):
    """Change the estimate iff |shown - size| + Lap(4 S / eps_1) > 24 S / eps_1 ln(2 T / beta) + Lap(2 S / eps_1).

    The new estimate is size + Lap(S / eps_1), also at step 1. With `max_updates` all changes are used up after S
    estimates. Without, instance j = 1, 2, .. follows on instance j - 1, with 6 epsilon / (pi^2 j^2) and for 2^(j - 1)
    updates. Without a horizon beta / T is 6 beta / (pi^2 t^2) at step t. All noise is rounded to integers.
    """

    epsilon: float
    beta: float
    horizon: int | None
    max_updates: int | None

    def __post_init__(self) -> None:
        if self.epsilon > _LARGEST_RATIO * self._least_log:
            largest = _LARGEST_RATIO * self._least_log
            raise ValueError(f"epsilon must be <= {largest:g} for the published algorithm with these parameters")

    @cached_property
    def rounds(self) -> int | None:
        """Estimates that are paid for; None for no end."""
        return None if self.max_updates is None else self.instance(0).changes

    def instance(self, number: int) -> Instance:
        """Return the instance that estimate 0, 1, .. belongs to."""
        if self.max_updates is not None:
            return self._made(self.epsilon, self.max_updates)
        j, before = 1, 0
        while number >= before + (made := self._of_doubling(j)).changes:
            j, before = j + 1, before + made.changes
        return made

    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return at which of the next steps the estimate is set: at step 1, then where the test says so."""
        if state.round == 0:
            return np.asarray(steps == 1)
        instance = self.instance(state.round - 1)
        mu = instance.law(4).draw(noise.derive("mu"), noise.bind(steps.astype(np.uint64), sizes))
        tau = instance.law(2).draw(noise.derive("tau"), np.array([state.round], np.uint64))
        return np.asarray(np.abs(state.shown - sizes) + mu > self._thresholds(instance, steps) + tau)

    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        """Return a new estimate, unless none is left."""
        if self.rounds is not None and state.round >= self.rounds:
            return state.shown, state.round, True
        labels = noise.bind(np.array([state.round], np.uint64), np.array([size], np.int64))
        nu = self.instance(state.round).law(1).draw(noise.derive("nu"), labels)
        return size + int(nu[0]), state.round + 1, False

    def bounds(self, steps: Integers, rounds: int) -> Integers:
        """Return 4 alpha, and 1 for rounding."""
        return self._error(self.instance(max(0, rounds - 1)), steps)

    def error(self, step: int, updates: int | None) -> int:
        """Return the bound at `step` in the last instance that so many updates can reach."""
        instance = self.instance(0)
        if self.max_updates is None:
            reached = max(1, math.ceil(math.log2((updates or 0) + 1)))  # the instances before are for 2^(j-1) - 1
            instance = self._of_doubling(reached)
        return int(self._error(instance, np.array([step]))[0])

    def _error(self, instance: Instance, steps: Integers) -> Integers:
        return whole_bounds(self._thresholds(instance, steps) * 4 / 3 + 1)

    def _thresholds(self, instance: Instance, steps: Integers) -> NDArray[np.float64]:
        return 24 * instance.unit * self._logs(steps)

    def _of_doubling(self, j: int) -> Instance:
        return self._made(self.epsilon * _BASEL / j**2, 1 << (j - 1))

    def _made(self, epsilon: float, updates: int) -> Instance:
        return Instance(epsilon=epsilon, changes=1 + math.isqrt(int(updates * epsilon / (16 * self._least_log))))

    @property
    def _least_log(self) -> float:
        """ln(2 T / beta), or ln(2 / beta_1)."""
        return float(self._logs(np.array([1]))[0])

    def _logs(self, steps: Integers) -> NDArray[np.float64]:
        """Return ln(2 / beta_t); half of beta is for what the paper's proof fails with a second time."""
        share = np.full(len(steps), 1.0 / self.horizon) if self.horizon is not None else _BASEL / steps**2.0
        return np.asarray(np.log(4 / (self.beta * share)))
