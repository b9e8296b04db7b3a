"""Partitions of time at hidden thresholds: when column sums are published again, and how far off they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.discrete import (
    SERIES,
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    SymmetricNoise,
    series_share,
)
from privstream.mechanisms.noise.running import LENGTHS, EpochNoise, RunningNoise, ToeplitzNoise, laplace_tree
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift

_TYPICAL_STEPS = 1 << 20  # for the split of the budget between the two noises
_EARLY = 64.0  # intervals that may end before a query has grown, on average
_SUMS, _ENDS, _TAU = 0.8, 0.1, 0.1  # shares of a failure probability
_LONGEST = 1 << 14  # steps of correlated noise


def sums_noise(
    epsilon: float,
    delta: float,
    touched: int,
    rows: int,
    expected: int | None = None,
    horizon: int | None = None,
    *,
    opposite: bool = False,
) -> EpochNoise:
    """Return the noise of continual column sums, for a person with so many rows that move so many columns by 1 each.

    Trees of complete nodes with delta = 0, else correlated Gaussian noise; so all of it is bound to the sums. How often
    sums are expected to be published, and can be at most, is for accuracy and memory alone. `opposite`: there are two
    rows, of which the second takes back what the first adds. Proof: docs/proofs/counters.md, Theorem 2.
    """

    def correlated(steps: int) -> RunningNoise:
        norm, shift = (
            math.sqrt(rows * touched) if opposite else rows * math.sqrt(touched),
            largest_shift(epsilon, delta),
        )
        return ToeplitzNoise.of(steps, shift, norm=norm, touched=rows * touched, largest=rows)

    try:
        if delta == 0:
            scale = touched * rows / epsilon
            return EpochNoise.of(lambda steps: laplace_tree(steps, scale), expected, horizon or LENGTHS[-1])
        first = expected and min(1 << (expected - 1).bit_length(), _LONGEST)  # few different ones are made
        return EpochNoise.of(correlated, first, min(horizon or _LONGEST, _LONGEST))
    except ValueError:
        raise ValueError(f"epsilon must be larger for rows of {touched:,} columns, got {epsilon}") from None


def bound_labels(noise: NoiseSource, labels: Integers, values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return labels that depend on 64-bit numbers too, of any kind."""
    return noise.bind(labels.astype(np.uint64), np.ascontiguousarray(values).view(np.int64))


def early_ends(beta: float) -> int:
    """Return how many intervals end early at most: Chernoff's bound for a sum of trials, `_EARLY` on average."""
    most = math.floor(_EARLY)
    while (most + 1) * math.log((most + 1) / _EARLY) - (most + 1 - _EARLY) < -math.log(_ENDS * beta):
        most += 1
    return most


@dataclass(frozen=True, kw_only=True)
class AnchoredPartition:
    """End an interval iff max_i [q_i(s + c) - q_i(s)] + mu_t > K + tau_j: geometric noises, tau for each interval.

    epsilon = 1 / b_tau + 1 / b_mu, the cost of one row, with scales b: docs/proofs/anchored.md. All other parameters
    are for accuracy.
    """

    epsilon: float  # of the tests
    beta: float  # failure probability of all bounds
    noise: EpochNoise  # of the published sums
    columns: int  # of the sums
    horizon: int | None
    slack: int  # growth of each interval that does not end early
    intervals: int  # how many are expected
    columnwise: bool  # whether growth of the values is growth of column sums, whatever the sums are

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scales of mu and tau for which the sum of their bounds is least."""
        test = math.sqrt(-math.log(self._early_at(_TYPICAL_STEPS)))
        interval = math.sqrt(-math.log(_TAU * self.beta * self._share(self.intervals)))
        total = (test + interval) / self.epsilon * (1 + 1e-12)
        return total / test, total / interval

    def _early_at(self, step: int) -> float:
        """Return the probability that a step ends an interval early; all together at most `_EARLY`."""
        share = 1 / self.horizon if self.horizon else 1 / (SERIES * (step + 1) * math.log(step + 1) ** 2)
        return min(0.5, _EARLY * share)

    def _share(self, number: int) -> float:
        """Return the share of a failure probability for interval 1, 2, ..: half for the expected ones, evenly."""
        return (0.5 / self.intervals if number <= self.intervals else 0.0) + 0.5 * series_share(number)

    def anchor_bound(self, interval: int) -> int:
        """Return what is the error of the sums published after so many intervals, at most: of each set of sums."""
        tail = _SUMS * self.beta * self._share(interval) / (2 * self.columns) if interval else 0.0
        return self.noise.tail_bound(interval, tail) if interval else 0

    def threshold(self, step: int, interval: int) -> int:
        """Return K: intervals then have some growth of at least `slack`, each but few."""
        early = max(0, math.ceil(-self.scales[0] * math.log(self._early_at(step))) - 1)
        feigned = 0 if self.columnwise else 2 * self.anchor_bound(interval)  # growth that is the error of the sums
        return early + feigned + self.slack

    def unseen(self, step: int, interval: int) -> int:
        """Return how far a query can have grown within an interval that is open: K and a bound of tau - mu."""
        mu, tau = self.scales
        both = -math.expm1(-1 / mu) / -math.expm1(-1 / mu - 1 / tau)  # Pr[tau >= mu]
        passed = math.ceil(tau * math.log(both / (_TAU * self.beta * self._share(interval + 1)))) - 1
        return self.threshold(step, interval) + max(0, passed)

    def added(self, step: int, interval: int) -> int:
        """Return what is added to the last sums while an interval is open: half of what can be unseen."""
        return self.unseen(step, interval) // 2

    def error_at(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at step 1, 2, .., after a number of intervals."""
        return self.anchor_bound(interval) + (self.unseen(step, interval) + 1) // 2

    def error(self, growth: int, step: int) -> int:
        """Return the error up to `step`, up to which all queries together have grown by `growth`."""
        most = growth // self.slack + early_ends(self.beta)
        most = max(1, most if self.horizon is None else min(most, self.horizon))
        sums = self.noise.tail_bound(most, _SUMS * self.beta / (2 * self.columns * most), so_far=True)
        feigned = 0 if self.columnwise else 2 * (sums - self.anchor_bound(most))
        return sums + (self.unseen(step, most) + feigned + 1) // 2

    def first_base(self, values: Integers) -> Floats:
        """Return what the queries are compared with at the start, given their values at 0."""
        return values.astype(np.float64)

    def level(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return what `gap`, the largest of values - base, must exceed to end the interval, with noise bound to it.

        `noise` is that of the interval alone, and of the sums published at its start.
        """
        mu, tau = map(Geometric, self.scales)
        level = tau.draw(noise.derive("anchored tau"), np.array([interval], np.uint64))[0]
        source = noise.derive("anchored mu")
        drawn = mu.draw(source, bound_labels(source, np.array([step]), np.array([gap])))[0]
        return float(self.threshold(step, interval) + level - drawn)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the base after an interval, from the values at its end, true ones (private) and published ones."""
        return anchored.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class PaperPartition:
    """Algorithm 2 or, with thresholds, Algorithm 9; with delta > 0, of Appendix D. See `AnchoredPartition`.

    The listing has `moves` = 1: one row changes the values of one interval by 1. All its noise is scaled by `moves`.
    What the listing leaves open, or has wrong, is read as in docs/proofs/errata.md. All noise is integer noise of the
    same scale, which exceeds a bound of continuous noise by half of one.
    """

    epsilon: float  # of everything
    delta: float  # of the comparisons and the sums
    beta: float
    noise: EpochNoise
    columns: int
    queries: int  # k; with thresholds the number of columns
    moves: int  # rows of a unit
    fixed: tuple[int, ...] = ()  # thresholds, which become infinite when they are passed; those of Algorithm 2 rise

    def _beta(self, number: int) -> float:
        """Return beta_t, for t = 1, 2, .."""
        return 6 * self.beta / (math.pi * number) ** 2

    def mu_bound(self, step: int) -> float:
        """Return alpha_mu^t."""
        return 12 * self.moves / self.epsilon * math.log(2 / self._beta(step)) + 0.5

    def tau_bound(self, number: int) -> float:
        """Return alpha_tau^j, j = 1, 2, .."""
        return 6 * self.moves / self.epsilon * math.log(6 / self._beta(number)) + 0.5

    @property
    def gamma(self) -> SymmetricNoise:
        """The noise of the comparisons that decide which thresholds rise: docs/proofs/anchored.md, section 3."""
        if self.delta == 0:
            return _laplace(3 * self.queries * self.moves / self.epsilon)
        spent = math.log(4 / self.delta) + 2 * self.epsilon / 3
        published = self.moves * math.sqrt(18 * self.queries * spent / self.epsilon**2)
        share = 1.25 * math.exp(-spent)  # of delta, for which that is the classic Gaussian mechanism
        enough = gaussian_sigma(largest_shift(self.epsilon / 3, share), self.moves * math.sqrt(self.queries))
        return DiscreteGaussian(max(published, enough))

    def gamma_bound(self, number: int) -> float:
        """Return alpha_gamma^j."""
        gamma, rest = self.gamma, math.log(6 * self.queries / self._beta(number))
        if isinstance(gamma, DiscreteLaplace):
            return gamma.scale * rest + 0.5
        return gamma.sigma * math.sqrt(2 * (rest + math.log(2)))  # it is subgaussian

    def sums_bound(self, number: int) -> int:
        """Return alpha_H^j."""
        return self.noise.tail_bound(number, self._beta(number) / (12 * self.columns * number), so_far=True)

    def margin(self, step: int, number: int) -> float:
        """Return C_j^t."""
        return self.mu_bound(step) + self.tau_bound(number) + self.gamma_bound(number)

    def rise(self, step: int, number: int) -> float:
        """Return K_j^t; 0 for thresholds that are fixed."""
        return 0.0 if self.fixed else 3 * (self.margin(step, number) + self.sums_bound(number))

    def added(self, step: int, interval: int) -> int:
        """Return nothing: the last sums are published as they are."""
        return 0

    def error_at(self, step: int, interval: int) -> int:
        """Return the error; of flags: how far the sum of one that is up is below its threshold, and the reverse."""
        number = interval + 1
        margin, sums = self.margin(step, number), self.sums_bound(number)
        rising = 0.0 if self.fixed else self.rise(step, number) + margin + 2 * sums
        return math.ceil(rising + margin + self.gamma_bound(number) + sums) + 1

    def error(self, growth: int, step: int) -> int:
        """Return the error up to `step`, up to which all queries together have grown by `growth`."""
        return self.error_at(step, max(0, growth - 1))

    def first_base(self, values: Integers) -> Floats:
        """Return L - K at the start."""
        return np.array(self.fixed, np.float64) if self.fixed else np.zeros(values.shape)

    def level(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return K + tau - mu."""
        return self.rise(step, interval + 1) + self.test(step, interval, gap, noise)

    def test(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return tau - mu."""
        tau = _laplace(6 * self.moves / self.epsilon).draw(noise.derive("paper tau"), np.array([interval], np.uint64))
        source = noise.derive("paper mu")
        labels = bound_labels(source, np.array([step]), np.array([gap]))
        return float(tau[0] - _laplace(12 * self.moves / self.epsilon).draw(source, labels)[0])

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return higher thresholds, or none, of the queries that look close to theirs."""
        source, levels = noise.derive("paper gamma", step), base + self.rise(step, interval + 1)
        gamma = self.gamma.draw(source, bound_labels(source, np.arange(len(values)), values))
        crossed = values + gamma > levels - self.margin(step, interval + 1)
        return np.where(crossed, math.inf if self.fixed else levels, base)


def _laplace(scale: float) -> DiscreteLaplace:
    return DiscreteLaplace(math.nextafter(scale, math.inf))
