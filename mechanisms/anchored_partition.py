"""The default partition of histogram queries: growth since the last published sums, against one-sided noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from privstream.mechanisms.continual_counter import ContinualCounter, Integers
from privstream.mechanisms.discrete import Geometric
from privstream.mechanisms.noise import NoiseSource
from privstream.mechanisms.partition import SERIES, Floats, Partition, counter_error, series_share

_TYPICAL_STEPS, _TYPICAL_INTERVALS = 1 << 20, 1 << 7  # for the split of the budget between the two noises


@dataclass(frozen=True, kw_only=True)
class AnchoredPartition(Partition):
    """Close an interval iff max_i [q_i(s + c) - q_i(s)] + mu_t > K + tau_j: geometric noises, tau for each interval.

    epsilon = 1 / b_tau + w / b_mu, the cost of one row, with scales b, and w = 1 if one change can only raise, or only
    lower, the counts: for rows added or removed; else w = 2. See docs/proofs/anchored.md.
    """

    epsilon: float
    neighbouring: str
    beta: float
    horizon: int | None
    slack: int
    counter: ContinualCounter
    columnwise: bool

    @property
    def weight(self) -> int:
        """w: how far mu must move when one row changes."""
        return 1 if self.neighbouring == "add_remove" else 2

    @cached_property
    def _scales(self) -> tuple[float, float]:
        """The scales of mu and tau for which the sum of their bounds is least."""
        test = math.sqrt(-self.weight * math.log(self._test_beta(np.array([_TYPICAL_STEPS]))[0]))
        interval = math.sqrt(-math.log(self.beta / 3 * series_share(_TYPICAL_INTERVALS)))
        total = (test + interval) / self.epsilon * (1 + 1e-12)
        return self.weight * total / test, total / interval

    @property
    def mu(self) -> Geometric:
        """The noise of a test."""
        return Geometric(self._scales[0])

    @property
    def tau(self) -> Geometric:
        """The noise of an interval's threshold."""
        return Geometric(self._scales[1])

    def mu_bound(self, step: int) -> int:
        """Return what no mu exceeds: up to the horizon, or at `step` if it is unknown."""
        return int(self._mu_bounds(np.array([step]))[0])

    def tau_bound(self, interval: int) -> int:
        """Return what tau does not exceed in interval 0, 1, .."""
        return self.tau.tail_quantile(self.beta / 3 * series_share(interval + 1))

    def thresholds(self, steps: Integers, interval: int) -> Integers:
        """Return K at each step: intervals then have some growth of at least `slack`, each."""
        return self._mu_bounds(steps).astype(np.int64) + (self.slack + self._counter_margin(interval))

    def unseen(self, steps: Integers, interval: int) -> Integers:
        """Return how far a query can have grown within an interval that is open at these steps."""
        return self.thresholds(steps, interval) + self.tau_bound(interval)

    def first_base(self, values: Integers) -> Floats:
        """Return the values at 0."""
        return values.astype(np.float64)

    def levels(self, steps: Integers, interval: int, noise: NoiseSource) -> Floats:
        """Return K + tau - mu; whole numbers, exact in float64."""
        source = noise.derive("anchored partition")
        tau = self.tau.draw(source.derive("tau"), np.array([interval], np.uint64))
        mu = self.mu.draw(source.derive("mu"), steps.astype(np.uint64))
        return (self.thresholds(steps, interval) + tau - mu).astype(np.float64)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the values at the new anchor."""
        return anchored.astype(np.float64)

    def _counter_margin(self, interval: int) -> int:
        """Return what the anchor's error can feign as growth: nothing for column sums."""
        return 0 if self.columnwise else 2 * counter_error(self.counter, interval + 1, self.beta / 3)

    def _mu_bounds(self, steps: Integers) -> Floats:
        return np.ceil(-self._scales[0] * np.log(self._test_beta(steps)))

    def _test_beta(self, steps: Integers) -> Floats:
        """Return the failure probabilities of the tests at these steps."""
        if self.horizon is not None:
            return np.full(len(steps), self.beta / 3 / self.horizon)
        return np.asarray(self.beta / 3 / (SERIES * (steps + 1) * np.log(steps + 1) ** 2))
