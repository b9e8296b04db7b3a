"""The default partition of histogram queries: growth since the last published sums, against one-sided noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms.counters.continual_counter import ContinualCounter, Integers
from privstream.mechanisms.histograms.partition import Floats, Partition, bound_labels
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.failure_shares import SERIES
from privstream.mechanisms.noise.sources import NoiseSource

_TYPICAL_STEPS = 1 << 20  # for the split of the budget between the two noises
_COUNTER, _ENDS, _TAU = 0.8, 0.1, 0.1  # shares of a failure probability


@dataclass(frozen=True, kw_only=True)
class AnchoredPartition(Partition):
    """Close an interval iff max_i [q_i(s + c) - q_i(s)] + mu_t > K + tau_j: geometric noises, tau for each interval.

    epsilon = 1 / b_tau + w / b_mu, the cost of one row, with scales b, and w = 1 if one change can only raise, or only
    lower, the counts: for rows added or removed; else w = 2. See docs/proofs/anchored.md. All other parameters are for
    accuracy: `early` is how many intervals may end before a query has grown by `slack`, on average, and `intervals` how
    many there will be in all.
    """

    epsilon: float
    neighbouring: str
    beta: float
    horizon: int | None
    slack: int
    early: float
    intervals: int
    counter: ContinualCounter
    columnwise: bool

    @property
    def weight(self) -> int:
        """w: how far mu must move when one row changes."""
        return 1 if self.neighbouring == "add_remove" else 2

    @cached_property
    def _scales(self) -> tuple[float, float]:
        """The scales of mu and tau for which the sum of their bounds is least."""
        test = math.sqrt(-self.weight * math.log(self._early_at(np.array([_TYPICAL_STEPS]))[0]))
        interval = math.sqrt(-math.log(self._tau_beta(self.intervals - 1)))
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
        """Return what few mu exceed, `early` in all on average: up to the horizon, or at `step` if it is unknown."""
        return int(self._mu_bounds(np.array([step]))[0])

    def tau_bound(self, interval: int) -> int:
        """Return what tau - mu does not exceed where growth in interval 0, 1, .. first passes K and this bound."""
        tau, mu = self.tau, self.mu
        both = -math.expm1(-1 / mu.scale) / -math.expm1(-1 / mu.scale - 1 / tau.scale)  # Pr[tau >= mu]
        return max(0, math.ceil(tau.scale * math.log(both / self._tau_beta(interval))) - 1)

    def most_intervals(self, growth: int) -> int:
        """Return how many intervals there are at most while all queries together grow by `growth`."""
        most = 1 + growth // self.slack + early_bound(self.early, self.beta)
        return most if self.horizon is None else min(most, self.horizon + 1)

    def counter_bound(self, interval: int) -> int:
        """Return what the anchors' errors keep within after `interval` = 0, 1, .. intervals: all of these bounds hold.

        Half of the failure probability is for the expected number of intervals, the rest for other powers of two.
        """
        if interval == 0:
            return 0
        octave = (interval - 1) // self.intervals  # beyond the expected number
        if octave:
            octave = octave.bit_length()
            return _bound(self.counter, self.intervals << octave, _COUNTER * self.beta / (4 * octave * (octave + 1)))
        below = (self.intervals // interval).bit_length() - 1
        bounds = [_bound(self.counter, self.intervals, _COUNTER * self.beta / 2)]
        if below:
            bounds.append(_bound(self.counter, self.intervals >> below, _COUNTER * self.beta / 4 / 2**below))
        return min(bounds)

    def error(self, growth: int, step: int, counter_share: float = 1.0) -> float:
        """Return the error up to `step`, up to which all queries together have grown by `growth`.

        With `counter_share` the counter is one with more epsilon, of which it has that share: for predictions.
        """
        most = self.most_intervals(growth)
        unseen = self.mu_bound(step) + self.slack + self.tau_bound(most - 1)
        if self.columnwise:
            return _bound(self.counter, max(1, most - 1), _COUNTER * self.beta) / counter_share + unseen / 2 + 1
        return 2 * max(map(self.counter_bound, (most, self.intervals))) / counter_share + unseen / 2 + 1

    def error_at(self, step: int, interval: int) -> int:
        """Return the error of the last sums that the counter gave, and of half of what may have been added unseen."""
        return self.counter_bound(interval) + (int(self.unseen(np.array([step]), interval)[0]) + 1) // 2

    def thresholds(self, steps: Integers, interval: int) -> Integers:
        """Return K at each step: intervals then have some growth of at least `slack`, each but few."""
        return self._mu_bounds(steps).astype(np.int64) + (self.slack + self._counter_margin(interval))

    def unseen(self, steps: Integers, interval: int) -> Integers:
        """Return how far a query can have grown within an interval that is open at these steps."""
        return self.thresholds(steps, interval) + self.tau_bound(interval)

    def first_base(self, values: Integers) -> Floats:
        """Return the values at 0."""
        return values.astype(np.float64)

    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return K + tau - mu; whole numbers, exact in float64."""
        tau = self.tau.draw(noise.derive("anchored tau"), np.array([interval], np.uint64))
        source = noise.derive("anchored mu")
        mu = self.mu.draw(source, bound_labels(source, steps, gaps))
        return (self.thresholds(steps, interval) + tau - mu).astype(np.float64)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the values at the new anchor."""
        return anchored.astype(np.float64)

    def _counter_margin(self, interval: int) -> int:
        """Return what the anchor's error can feign as growth: nothing for column sums."""
        return 0 if self.columnwise else 2 * self.counter_bound(max(interval + 1, self.intervals))

    def _mu_bounds(self, steps: Integers) -> Floats:
        bounds: Floats = np.ceil(-self._scales[0] * np.log(self._early_at(steps))) - 1
        return np.maximum(bounds, 0.0)

    def _early_at(self, steps: Integers) -> Floats:
        """Return the probabilities that these steps end an interval early; they add up to `early`, or less."""
        if self.horizon is not None:
            return np.full(len(steps), min(0.5, self.early / self.horizon))
        shares: Floats = self.early / (SERIES * (steps + 1) * np.log(steps + 1) ** 2)
        return np.minimum(shares, 0.5)

    def _tau_beta(self, interval: int) -> float:
        """Return the share of beta for tau in interval 0, 1, ..: half for the expected ones, evenly."""
        beta, octave = _TAU * self.beta, (interval // self.intervals).bit_length()
        if octave == 0:
            return beta / (2 * self.intervals)
        return beta / ((octave + 1) * (octave + 2) * (self.intervals << octave - 1))


def early_bound(early: float, beta: float) -> int:
    """Return how many intervals end early at most, `early` on average: Chernoff's bound for a sum of trials."""
    goal, most = -math.log(_ENDS * beta), math.floor(early)
    while (most + 1) * math.log((most + 1) / early) - (most + 1 - early) < goal:
        most += 1
    return most


@functools.lru_cache(maxsize=4096)
def _bound(counter: Any, steps: int, beta: float) -> int:
    return int(counter.error(min(steps, counter.horizon), beta))
