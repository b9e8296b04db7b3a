"""Partitions of time at hidden thresholds: where a histogram is published again."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.counters.continual_counter import ContinualCounter, CounterState, counter_error
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, Geometric, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import SERIES, series_share
from privstream.mechanisms.privacy.accounting import sensitivity_sigma
from typing_extensions import override

_FIRST_WINDOW, _LARGEST_WINDOW = 16, 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionState:
    """What outlives a step.

    `anchor` is what the counter published last, `counts` the true sums since (private), `base` what each query is
    compared with, and `interval` the number of intervals closed.
    """

    step: int
    interval: int
    counter: CounterState
    anchor: Integers
    counts: Integers
    base: Floats


class Partition(ABC):
    """When to close an interval, and what to compare with in the next one."""

    @abstractmethod
    def error_at(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at step 1, 2, .., in interval 0, 1, .."""

    @abstractmethod
    def first_base(self, values: Integers) -> Floats:
        """Return what the queries are compared with at the start, given their values at 0."""

    @abstractmethod
    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return what `gaps`, the largest of values - base, must exceed at each step to close the interval, with noise.

        The noise of a step is bound to its gap; `noise` is that of the interval alone, and of the anchor.
        """

    @abstractmethod
    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the base after an interval, from the values at its end, true ones (private) and `anchored` ones."""


def advance(
    partition: Partition,
    values: Callable[[Integers], Integers],
    counter: ContinualCounter,
    state: PartitionState,
    rows: Integers,
    noise: NoiseSource,
) -> tuple[PartitionState, list[tuple[int, PartitionState]]]:
    """Add rows (n, columns) as one step each. Return the state after them, and all (index, state) that closed one."""
    closed: list[tuple[int, PartitionState]] = []
    start, window = 0, _FIRST_WINDOW
    while start < len(rows):
        counts = state.counts + np.cumsum(rows[start : start + window], axis=0)
        current = values(state.anchor + counts)
        steps = state.step + 1 + np.arange(len(counts))
        gaps = (current - state.base).max(axis=1)
        source = noise.derive("interval", state.interval, state.anchor.astype("<i8").tobytes())
        hits = np.flatnonzero(gaps > partition.levels(steps, state.interval, gaps, source))
        if not len(hits):
            state = replace(state, step=int(steps[-1]), counts=counts[-1].copy())
            start += len(counts)
            window = min(2 * window, _LARGEST_WINDOW)
            continue
        end = int(hits[0])
        memory, anchor = counter.step(state.counter, counts[end], noise)
        base = partition.next_base(
            state.base, current[end], values(anchor[None, :])[0], int(steps[end]), state.interval, source
        )
        state = replace(
            state,
            step=int(steps[end]),
            interval=state.interval + 1,
            counter=memory,
            anchor=anchor,
            counts=np.zeros_like(anchor),
            base=base,
        )
        start, window = start + end + 1, _FIRST_WINDOW
        closed.append((start - 1, state))
    return state, closed


def bound_labels(noise: NoiseSource, labels: Integers, values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return labels that depend on 64-bit numbers too, of any kind."""
    return noise.bind(labels.astype(np.uint64), np.ascontiguousarray(values).view(np.int64))


_TYPICAL_STEPS = 1 << 20  # for the split of the budget between the two noises
_COUNTER, _ENDS, _TAU = 0.8, 0.1, 0.1  # shares of a failure probability


@dataclass(frozen=True, kw_only=True)
class AnchoredPartition(Partition):
    """Close an interval iff max_i [q_i(s + c) - q_i(s)] + mu_t > K + tau_j: geometric noises, tau for each interval.

    epsilon = 1 / b_tau + 1 / b_mu, the cost of one row, with scales b: see docs/proofs/anchored.md. All other
    parameters are for accuracy: `early` is how many intervals may end before a query has grown by `slack`, on average,
    and `intervals` how many there will be in all.
    """

    epsilon: float
    beta: float
    horizon: int | None
    slack: int
    early: float
    intervals: int
    counter: ContinualCounter
    columnwise: bool

    @cached_property
    def _scales(self) -> tuple[float, float]:
        """The scales of mu and tau for which the sum of their bounds is least."""
        test = math.sqrt(-math.log(self._early_at(np.array([_TYPICAL_STEPS]))[0]))
        interval = math.sqrt(-math.log(self._tau_beta(self.intervals - 1)))
        total = (test + interval) / self.epsilon * (1 + 1e-12)
        return total / test, total / interval

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

    def counter_bound(self, interval: int, part: float = 1.0) -> int:
        """Return what the anchors' errors keep within after `interval` = 0, 1, .. intervals: all of these bounds hold.

        Half of the failure probability is for the expected number of intervals, the rest for other powers of two. Only
        so large a `part` of it is used up.
        """
        if interval == 0:
            return 0
        beta = _COUNTER * self.beta * part
        octave = (interval - 1) // self.intervals  # beyond the expected number
        if octave:
            octave = octave.bit_length()
            return _bound(self.counter, self.intervals << octave, beta / (4 * octave * (octave + 1)))
        below = (self.intervals // interval).bit_length() - 1
        bounds = [_bound(self.counter, self.intervals, beta / 2)]
        if below:
            bounds.append(_bound(self.counter, self.intervals >> below, beta / 4 / 2**below))
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

    @override
    def error_at(self, step: int, interval: int) -> int:
        # That of the last sums that the counter gave, and half of what may have been added unseen.
        return self.anchor_bound(interval) + (int(self.unseen(np.array([step]), interval)[0]) + 1) // 2

    def anchor_bound(self, interval: int) -> int:
        """Return what the error of the anchor of `interval` = 0, 1, .. keeps within: all of these bounds hold.

        Half of the failure probability is for bounds that hold for all anchors up to one, the rest for each alone.
        """
        if interval == 0:
            return 0
        even = 0.5 / self.intervals if interval <= self.intervals else 0.0
        share = even + 0.5 * series_share(interval)
        return min(
            self.counter_bound(interval, 0.5), _bound_once(self.counter, interval, _COUNTER * self.beta / 2 * share)
        )

    def thresholds(self, steps: Integers, interval: int) -> Integers:
        """Return K at each step: intervals then have some growth of at least `slack`, each but few."""
        return self._mu_bounds(steps).astype(np.int64) + (self.slack + self._counter_margin(interval))

    def unseen(self, steps: Integers, interval: int) -> Integers:
        """Return how far a query can have grown within an interval that is open at these steps."""
        return self.thresholds(steps, interval) + self.tau_bound(interval)

    @override
    def first_base(self, values: Integers) -> Floats:
        return values.astype(np.float64)

    @override
    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        # K + tau - mu; whole numbers, exact in float64.
        tau = self.tau.draw(noise.derive("anchored tau"), np.array([interval], np.uint64))
        source = noise.derive("anchored mu")
        mu = self.mu.draw(source, bound_labels(source, steps, gaps))
        return (self.thresholds(steps, interval) + tau - mu).astype(np.float64)

    @override
    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
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


@functools.lru_cache(maxsize=4096)
def _bound_once(counter: Any, step: int, beta: float) -> int:
    return int(counter.spread(min(step, counter.horizon), beta / counter.columns))


@dataclass(frozen=True, kw_only=True)
class HenzingerSricharanSteinerPartition(Partition):
    """Algorithm 2 and, with delta > 0, Appendix D; `queries` is k. Base and K^t_j add up to the thresholds L^t_i.

    The listing has `moves` = 1: one row changes the values of one interval by 1. All its noise is scaled by `moves`.

    What the listing leaves open, or has wrong, is read as in docs/proofs/errata.md. All noise is integer noise of the
    same scale, which exceeds a bound of continuous noise by half of one.
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
        return np.asarray(12 * self.moves / self.epsilon * np.log(2 / self._beta(step)) + 0.5)

    def tau_bound(self, number: int) -> float:
        """Return alpha_tau^j, j = 1, 2, .."""
        return float(6 * self.moves / self.epsilon * np.log(6 / self._beta(number)) + 0.5)

    @property
    def gamma(self) -> SymmetricNoise:
        """The noise of the comparisons that decide which thresholds rise: docs/proofs/anchored.md, section 4."""
        if self.delta == 0:
            return _laplace(3 * self.queries * self.moves / self.epsilon)
        published = self.moves * math.sqrt(18 * self.queries * self._spent / self.epsilon**2)
        share = 1.25 * math.exp(-self._spent)  # of delta, for which that is the classic Gaussian mechanism
        enough = sensitivity_sigma(self.epsilon / 3, share, self.moves * math.sqrt(self.queries) * (1 + 1e-12))
        return DiscreteGaussian(max(published, enough))

    @property
    def _spent(self) -> float:
        return math.log(4 / self.delta) + 2 * self.epsilon / 3

    def gamma_bound(self, number: int) -> float:
        """Return alpha_gamma^j."""
        rest = float(np.log(6 * self.queries / self._beta(number)))
        if self.delta == 0:
            return 3 * self.queries * self.moves / self.epsilon * rest + 0.5
        gamma = self.gamma
        assert isinstance(gamma, DiscreteGaussian)  # which is subgaussian
        return gamma.sigma * math.sqrt(2 * (rest + math.log(2)))

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

    @override
    def error_at(self, step: int, interval: int) -> int:
        number = interval + 1
        counter = counter_error(self.counter, number, float(self.counter_beta(number)))
        rise = float(self.rise(step, number)) + 2 * float(self.margin(step, number))
        return math.ceil(rise + self.gamma_bound(number) + 3 * counter + 1)

    @override
    def first_base(self, values: Integers) -> Floats:
        # L - K at the start.
        return np.zeros(values.shape)

    @override
    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        # K + tau - mu.
        return self.rise(steps, interval + 1) + self._tests(steps, interval, gaps, noise)

    @override
    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        # The thresholds rise of the queries that look close to theirs.
        rise = self.rise(step, interval + 1)
        return np.where(self._crossed(base + rise, values, step, interval, noise), base + rise, base)

    def _tests(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return tau - mu."""
        tau = _laplace(6 * self.moves / self.epsilon).draw(noise.derive("paper tau"), np.array([interval], np.uint64))
        source = noise.derive("paper mu")
        mu = _laplace(12 * self.moves / self.epsilon).draw(source, bound_labels(source, steps, gaps))
        return (tau - mu).astype(np.float64)

    def _crossed(
        self, thresholds: Floats, values: Integers, step: int, interval: int, noise: NoiseSource
    ) -> np.ndarray:
        """Return which queries pass their thresholds less C, with noise gamma."""
        source = noise.derive("paper gamma", step)
        gamma = self.gamma.draw(source, bound_labels(source, np.arange(len(values)), values))
        return np.asarray(values + gamma > thresholds - self.margin(step, interval + 1))


def _laplace(scale: float) -> DiscreteLaplace:
    return DiscreteLaplace(math.nextafter(scale, math.inf))


@dataclass(frozen=True, kw_only=True)
class FlagPartition(HenzingerSricharanSteinerPartition):
    """Algorithm 9: fixed thresholds, which become infinite when they are passed."""

    thresholds: tuple[int, ...]

    @override
    def error_at(self, step: int, interval: int) -> int:
        # How far the sum of a flag that is up is below its threshold at most, and of one that is down above.
        number = interval + 1
        bounds = float(self.margin(step, number)) + self.gamma_bound(number)
        return math.ceil(bounds + counter_error(self.counter, number, float(self.counter_beta(number)))) + 1

    @override
    def first_base(self, values: Integers) -> Floats:
        return np.array(self.thresholds, dtype=np.float64)

    @override
    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        # tau - mu.
        return self._tests(steps, interval, gaps, noise)

    @override
    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        # Thresholds that look passed go.
        return np.where(self._crossed(base, values, step, interval, noise), math.inf, base)
