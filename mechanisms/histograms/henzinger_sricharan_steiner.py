"""The partition of the paper: two-sided noise, thresholds that rise query by query (Henzinger, Sricharan, Steiner)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.counters.continual_counter import ContinualCounter, Integers
from privstream.mechanisms.counters.counter_error import counter_error
from privstream.mechanisms.histograms.partition import Floats, Partition, bound_labels
from privstream.mechanisms.noise.continuous import Gaussian, Laplace
from privstream.mechanisms.noise.sources import NoiseSource


@dataclass(frozen=True, kw_only=True)
class HenzingerSricharanSteinerPartition(Partition):
    """Algorithm 2 and, with delta > 0, Appendix D; `queries` is k. Base and K^t_j add up to the thresholds L^t_i.

    The listing has `moves` = 1: one row changes the values of one interval by 1. All its noise is scaled by `moves`.

    What the listing leaves open, or has wrong, is read as in docs/proofs/errata.md. All noise is compared in secret.
    """

    epsilon: float
    delta: float
    beta: float
    queries: int
    moves: int
    counter: ContinualCounter

    def _beta(self, number: int | Integers) -> Floats:
        """Return beta_t, for t = 1, 2, .."""
        return np.asarray(6 * self.beta / (math.pi * np.asarray(number, dtype=np.float64)) ** 2)

    def mu_bound(self, step: int | Integers) -> Floats:
        """Return alpha_mu^t."""
        return np.asarray(12 * self.moves / self.epsilon * np.log(2 / self._beta(step)))

    def tau_bound(self, number: int) -> float:
        """Return alpha_tau^j, j = 1, 2, .."""
        return float(6 * self.moves / self.epsilon * np.log(6 / self._beta(number)))

    @property
    def gamma(self) -> Laplace | Gaussian:
        """The noise of the comparisons that decide which thresholds rise."""
        if self.delta == 0:
            return Laplace(3 * self.queries * self.moves / self.epsilon)
        variance = 18 * self.queries * (math.log(4 / self.delta) + 2 * self.epsilon / 3) / self.epsilon**2
        return Gaussian(self.moves * math.sqrt(variance))

    def gamma_bound(self, number: int) -> float:
        """Return alpha_gamma^j."""
        rest = float(np.log(6 * self.queries / self._beta(number)))
        if self.delta == 0:
            return 3 * self.queries * self.moves / self.epsilon * rest
        spent = math.log(4 / self.delta) + 2 * self.epsilon / 3
        return 6 * self.moves / self.epsilon * math.sqrt(self.queries * spent * (rest + math.log(2)))

    def counter_beta(self, number: int) -> Floats:
        """Return the failure probability of the counter in interval j = 1, 2, .."""
        return self._beta(number) / 6

    def margin(self, step: int | Integers, number: int) -> Floats:
        """Return C_j^t."""
        return self.mu_bound(step) + self.tau_bound(number) + self.gamma_bound(number)

    def rise(self, step: int | Integers, number: int) -> Floats:
        """Return K_j^t."""
        counter = counter_error(self.counter, number, float(self.counter_beta(number)))
        return np.asarray(3 * (self.margin(step, number) + counter))

    def error_at(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at `step`, in interval 0, 1, .."""
        number = interval + 1
        counter = counter_error(self.counter, number, float(self.counter_beta(number)))
        rise = float(self.rise(step, number)) + 2 * float(self.margin(step, number))
        return math.ceil(rise + self.gamma_bound(number) + 3 * counter + 1)

    def first_base(self, values: Integers) -> Floats:
        """Return L - K at the start, 0."""
        return np.zeros(values.shape)

    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return K + tau - mu."""
        return self.rise(steps, interval + 1) + self._tests(steps, interval, gaps, noise)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Raise the thresholds of the queries that look close to theirs."""
        rise = self.rise(step, interval + 1)
        return np.where(self._crossed(base + rise, values, step, interval, noise), base + rise, base)

    def _tests(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return tau - mu."""
        tau = Laplace(6 * self.moves / self.epsilon).draw(noise.derive("paper tau"), np.array([interval], np.uint64))
        source = noise.derive("paper mu")
        return tau - Laplace(12 * self.moves / self.epsilon).draw(source, bound_labels(source, steps, gaps))

    def _crossed(
        self, thresholds: Floats, values: Integers, step: int, interval: int, noise: NoiseSource
    ) -> np.ndarray:
        """Return which queries pass their thresholds less C, with noise gamma."""
        source = noise.derive("paper gamma", step)
        gamma = self.gamma.draw(source, bound_labels(source, np.arange(len(values)), values))
        return np.asarray(values + gamma > thresholds - self.margin(step, interval + 1))


@dataclass(frozen=True, kw_only=True)
class FlagPartition(HenzingerSricharanSteinerPartition):
    """Algorithm 9: fixed thresholds, which become infinite when they are passed."""

    thresholds: tuple[int, ...]

    def error_at(self, step: int, interval: int) -> int:
        """Return how far the sum of a flag that is up is below its threshold at most, and of one that is down above."""
        number = interval + 1
        bounds = float(self.margin(step, number)) + self.gamma_bound(number)
        return math.ceil(bounds + counter_error(self.counter, number, float(self.counter_beta(number)))) + 1

    def first_base(self, values: Integers) -> Floats:
        """Return the thresholds."""
        return np.array(self.thresholds, dtype=np.float64)

    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return tau - mu."""
        return self._tests(steps, interval, gaps, noise)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Let the thresholds go that look passed."""
        return np.where(self._crossed(base, values, step, interval, noise), math.inf, base)
