"""The algorithms of set cardinality: direct counters, gaps, and hidden changes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import ContinualCounter, CounterState, counter_error, node_law
from privstream.mechanisms.counters.toeplitz import LARGEST_HORIZON as BUFFERED_HORIZON
from privstream.mechanisms.counters.unknown_horizon import best_counter
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import SERIES, series_share
from privstream.mechanisms.privacy.accounting import PrivacyCurve, noise_curve
from privstream.mechanisms.smoothing import LEAST_STDDEV, NORMAL, LocalLevel, Smoothed, beside
from typing_extensions import override


class Cardinalities(NamedTuple):
    """What is published: one entry for each step, or plain values for a single one.

    Attributes:
        estimates: how many are in the set, >= 0.
        error_bounds: with probability 1 - beta no estimate of the run is off by more, while not `exhausted`.
        exhausted: whether all changes of the estimate are used up, so that it stays what it is.
    """

    estimates: Any
    error_bounds: Any
    exhausted: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class CardinalityState:
    """What outlives a step.

    Attributes:
        step: steps done.
        size: how many are in the set; private.
        shown: what was published last, before negative numbers become 0.
        round: how often `shown` has been set.
        exhausted: raised when no change of `shown` is left: it is published for ever. A function of what has been
            published, so it is no secret.
        memory: what a continual counter remembers; empty without one.
    """

    step: int
    size: int
    shown: int
    round: int
    exhausted: bool
    memory: NDArray[Any]


class CardinalityAlgorithm(ABC):
    """One way to publish the size of a set after every step."""

    def initial_memory(self) -> NDArray[Any]:
        """Return the memory before the first step."""
        return np.zeros(0, np.int64)

    @abstractmethod
    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take the true sizes (n,) after the next n steps, n > 0. Estimates may be negative."""

    @abstractmethod
    def error(self, step: int, updates: int | None) -> int:
        """Return an error bound for all of steps 1 .. `step`, if the set is changed by at most so many updates."""


_FIRST_WINDOW, _LARGEST_WINDOW = 64, 1 << 16
_LARGEST_BOUND = 1 << 62


class SparseChanges(CardinalityAlgorithm):
    """The loop over rounds: a round ends with a hit, after which the estimate is set anew, if a change is left.

    The noise of a step is a function of the source, the step and the true size; that of a round of the source and the
    round. So steps can be taken in pieces of any length.
    """

    @abstractmethod
    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return at which of the next steps the test of the present round is a hit."""

    @abstractmethod
    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        """Return estimate, round and exhaustion after a hit at `step`."""

    @abstractmethod
    def bounds(self, steps: Integers, rounds: int) -> Integers:
        """Return the error bounds at these steps, the estimate having been set so many times."""

    @override
    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        first = state.step
        estimates, bounds = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
        exhausted = np.zeros(len(sizes), np.bool_)
        start, window = 0, _FIRST_WINDOW
        while start < len(sizes):
            steps = first + 1 + np.arange(start, min(start + window, len(sizes)))
            chunk = sizes[start : start + len(steps)]
            found = np.zeros(0, np.int64) if state.exhausted else np.flatnonzero(self.hits(state, steps, chunk, noise))
            held = int(found[0]) if len(found) else len(steps)
            estimates[start : start + held] = state.shown
            bounds[start : start + held] = self.bounds(steps[:held], state.round)
            exhausted[start : start + held] = state.exhausted
            start, window = start + held, min(2 * window, _LARGEST_WINDOW)
            if len(found):
                shown, done, spent = self.changed(state, int(steps[held]), int(chunk[held]), noise)
                state = replace(state, shown=shown, round=done, exhausted=spent)
                estimates[start], exhausted[start] = shown, spent
                bounds[start] = self.bounds(steps[held : held + 1], done)[0]
                start, window = start + 1, _FIRST_WINDOW
        state = replace(state, step=first + len(sizes), size=int(sizes[-1]))
        return state, Cardinalities(estimates, bounds, exhausted)


def whole_bounds(bounds: NDArray[np.float64]) -> Integers:
    """Round error bounds up to integers that fit."""
    return np.minimum(np.ceil(bounds), float(_LARGEST_BOUND)).astype(np.int64)


_TYPICAL_STEPS = 1 << 20
_DIFFER, _TAIL = 0.9, 0.025  # deviations of noise, which a third of noise exceeds; one side of 95%


@dataclass(frozen=True, kw_only=True)
class FreshNoise(CardinalityAlgorithm):
    """Each size with noise of its own, for one person who moves each of `horizon` sizes by 1, in so many `streams`.

    With delta > 0 the noise whose error is the smallest one, by public parameters: Gaussian; Laplace, as for few sizes
    (what is epsilon-DP is (epsilon, delta)-DP); or, if a person moves all sizes in one direction (`one_way`), Gaussian
    noise of which a part is in all sizes of the stream. All are bound to the sizes, and have labels of their own.
    """

    epsilon: float
    delta: float
    beta: float
    horizon: int
    streams: int = 1
    one_way: bool = False

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a step."""
        laplace = node_law(self.epsilon / self.streams, 0.0, self.horizon)
        if self.delta == 0:
            return laplace
        gaussian = node_law(self.epsilon, self.delta, self.horizon * self.streams)
        return min(gaussian, laplace, key=self._error)

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of all streams together."""
        return noise_curve(self.epsilon, 0.0 if isinstance(self.law, DiscreteLaplace) else self.delta)

    @override
    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        steps = state.step + 1 + np.arange(len(sizes))
        estimates = self._noisy(steps, sizes, noise)
        bounds = np.full(len(sizes), self.error(1, None))
        after = replace(state, step=int(steps[-1]), size=int(sizes[-1]), shown=int(estimates[-1]))
        return after, Cardinalities(estimates, bounds, np.zeros(len(sizes), np.bool_))

    def _noisy(self, steps: Integers, sizes: Integers, noise: NoiseSource) -> Integers:
        if self.delta > 0 and isinstance(self.law, DiscreteLaplace):
            noise = noise.derive("laplace")
        elif self.delta > 0 and self.streams > 1:
            noise = noise.derive("streams together", self.streams)
        return sizes + self.law.draw(noise, noise.bind(steps.astype(np.uint64), sizes))

    def smooth(
        self,
        estimates: NDArray[np.float64],
        factors: NDArray[np.float64] | float = 1.0,
        unsure: NDArray[np.float64] | float = 0.0,
    ) -> Smoothed:
        """Return sizes and intervals of 95% of steps that follow each other, each from those before and after it.

        The noise in common is no part of what is smoothed, and widens all intervals. Where an estimate is off the mean
        of the smoothed ones beside it, as noise is in a third of steps, its interval reaches as far as that of the
        estimate by itself. All are widened by what neither noise nor the model explains of how estimates and smoothed
        sizes differ in the whole run.

        Args:
            estimates: with their noise, also below 0, shape (steps, streams), at least one step.
            factors: by which levels are multiplied in each step, as by a season; of a shape that goes with that.
            unsure: standard deviations of factors, relative to them.
        """
        own, common = self.stddevs
        sizes, _, upper = LocalLevel(max(LEAST_STDDEV, own)).smooth(estimates, factors)
        all_steps = np.hypot(np.hypot(common, unsure * sizes), self._unexplained(estimates, sizes, upper))
        reach: NDArray[np.float64] = np.hypot(upper - sizes, NORMAL * all_steps)
        lower, upper = sizes - reach, sizes + reach
        if len(estimates) > 1:
            differ = np.abs(estimates - factors * beside(sizes / factors)) > _DIFFER * own
            alone = self._reach(self.law, _TAIL)
            lower = np.where(differ, np.minimum(lower, estimates - alone), lower)
            upper = np.where(differ, np.maximum(upper, estimates + alone), upper)
        ends = np.asarray(np.round(np.maximum([lower, upper], 0.0), 1), np.float64)
        return Smoothed(sizes, ends[0], ends[1])

    def _unexplained(
        self, estimates: NDArray[np.float64], sizes: NDArray[np.float64], upper: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return by how much estimates differ from smoothed sizes beside noise: a standard deviation for each stream.

        As much of it as is surely no noise, whose squares vary by twice the square of its variance, or by five times
        where it is Laplace noise.
        """
        own, _ = self.stddevs
        usual = np.square(own) - np.square((upper - sizes) / NORMAL)
        more = (np.square(estimates - sizes) - usual).mean(axis=0)
        squares = 5.0 if isinstance(self.law, DiscreteLaplace) else 2.0
        sure = np.clip((more / (np.square(own) * math.sqrt(squares / len(estimates))) - 1) / 3, 0, 1)
        return np.asarray(np.sqrt(sure * np.maximum(more, 0.0)), np.float64)

    @property
    def stddevs(self) -> tuple[float, float]:
        """Standard deviations of the noise of a size by itself, and of that which all sizes have in common."""
        return math.sqrt(self.law.variance), 0.0

    @override
    def error(self, step: int, updates: int | None) -> int:
        return self._error(self.law)

    def _error(self, law: SymmetricNoise) -> int:
        """Return what sizes are off by at most with this noise, all of them, but with beta."""
        return self._reach(law, self.beta / (2 * self.horizon))

    @staticmethod
    def _reach(law: SymmetricNoise, tail: float) -> int:
        """Return what a size is off by at most, to one side, but with probability `tail`."""
        return max(0, law.tail_quantile(tail))


@dataclass(frozen=True, kw_only=True)
class CountedChanges(CardinalityAlgorithm):
    """A continual counter of changes, for a unit that adds 1 at `moves` steps at most and takes 1 away at as many.

    It is the comings and goings of so many `people`, 1 or 2, each of whom takes 1 away before the next is added, in
    each of so many `streams`; epsilon and delta are for all of them.
    """

    epsilon: float
    delta: float
    beta: float
    horizon: int | None
    moves: int
    people: int = 1
    streams: int = 1

    @cached_property
    def counter(self) -> ContinualCounter:
        """The counter; to it, a move is a row that is replaced by another one at another step."""
        budget: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        budget |= {"neighbouring": "replace_one", "rows_per_unit": self.moves, "streams": self.streams}
        if (
            self.delta > 0
            and self.horizon is not None
            and self.horizon <= BUFFERED_HORIZON
            and self.moves > self.people
        ):
            budget["alternating"] = self.people
        return best_counter(self.horizon, beta=self.beta, **budget)

    @override
    def initial_memory(self) -> NDArray[Any]:
        return self.counter.initial_state().memory

    @override
    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        before = CounterState(step=state.step, totals=np.array([state.size]), memory=state.memory)
        changes = np.diff(sizes, prepend=state.size)
        counter, published = self.counter.run(before, changes[:, None], noise)
        estimates = published[:, 0]
        bounds = self._bounds(state.step + 1 + np.arange(len(sizes)))
        after = replace(state, step=counter.step, size=int(sizes[-1]), shown=int(estimates[-1]), memory=counter.memory)
        return after, Cardinalities(estimates, bounds, np.zeros(len(sizes), np.bool_))

    @override
    def error(self, step: int, updates: int | None) -> int:
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


_TYPICAL_ROUNDS = 1 << 4  # for the split of the budget where it is unknown, as are steps
_CANDIDATES = 400
_LARGEST_ROUNDS = 1 << 40
_RUN = np.zeros(1, np.uint64)  # label of what is drawn once


@dataclass(frozen=True, kw_only=True)
class GapChanges(SparseChanges):
    """At each step two tests, the second one only if the first is a miss:

        up:   size - shown + mu  >= K + tau        down:  shown - size + mu' >= K + tau'

    tau, tau' are drawn once, mu, mu' for each step, all geometric. After a hit the estimate is the noisy size that the
    test has looked at, size + mu - tau or size - mu' + tau', less the public middle of what that can be off by. The run
    costs 1 / b_tau, and each hit 1 / b_mu, with scales b.

    With `max_updates` there are `rounds` hits of equal cost, chosen to give the least error bound. Without, they are
    unbounded: hit r = 0, 1, .. costs series_share(s + 1) of what is for hits, s the last number that has the three
    leading binary digits of r: laws are costly to make. See docs/proofs/cardinality.md.
    """

    epsilon: float
    beta: float
    horizon: int | None
    max_updates: int | None

    @cached_property
    def rounds(self) -> int | None:
        """Hits that are paid for; None where they are unbounded."""
        return None if self.max_updates is None else self._best_rounds(self.max_updates)

    @property
    def tau(self) -> Geometric:
        """The noise of the two thresholds."""
        return Geometric(self._tau_scale)

    def mu(self, number: int) -> Geometric:
        """The noise of a test after so many hits."""
        return Geometric(self._mu_scale(number))

    @cached_property
    def tau_bound(self) -> float:
        """What neither tau exceeds."""
        return float(tail(self._tau_scale, np.array(self._tau_log)))

    def mu_bounds(self, steps: Integers, number: int) -> NDArray[np.float64]:
        """Return what no mu exceeds at these steps after so many hits."""
        return tail(self._mu_scale(number), self._test_logs(steps))

    def middle(self, steps: Integers, number: int) -> NDArray[np.float64]:
        """Return the middle of what an up hit is off by; less that, all is off by at most `reach`."""
        return np.floor((self.mu_bounds(steps, number) - self.tau_bound) / 2)

    def reach(self, steps: Integers, number: int) -> NDArray[np.float64]:
        """Return how far off a new estimate is at most."""
        return np.ceil((self.mu_bounds(steps, number) + self.tau_bound) / 2)

    def slack(self, steps: Integers, number: int) -> NDArray[np.float64]:
        """Return by how much the size has changed at the next hit, at least."""
        if self.max_updates is not None and self.rounds is not None:
            return np.full(len(steps), float(self.max_updates // (self.rounds + 1) + 1))
        noise = 1.5 * (self.mu_bounds(steps, number) + self.tau_bound)
        return np.maximum(1.0, np.ceil(noise))

    def thresholds(self, steps: Integers, number: int) -> NDArray[np.float64]:
        """Return K: whole numbers."""
        off = self.reach(steps, number) if number else 0.0  # the set is empty at first, which is known
        return self.slack(steps, number) + self.mu_bounds(steps, number) + off

    @override
    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        up, down = self._excess(state, steps, sizes, noise)
        return (up >= 0) | (down >= 0)

    @override
    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        # The noisy size that the test has looked at is the new estimate.
        steps, sizes = np.array([step]), np.array([size])
        up, down = self._excess(state, steps, sizes, noise)
        passed, middle = self.thresholds(steps, state.round)[0], self.middle(steps, state.round)[0]
        moved = passed + up[0] - middle if up[0] >= 0 else middle - passed - down[0]
        done = state.round + 1
        return state.shown + int(moved), done, self.rounds is not None and done >= self.rounds

    @override
    def bounds(self, steps: Integers, rounds: int) -> Integers:
        # What is true before the last hit stays true when all are used up.
        number = rounds if self.rounds is None else min(rounds, self.rounds - 1)
        return whole_bounds(self.thresholds(steps, number) + self.tau_bound)

    @override
    def error(self, step: int, updates: int | None) -> int:
        # After as many hits as so many updates can bring.
        at = np.array([step])
        if self.rounds is not None:
            return int(self.bounds(at, self.rounds - 1)[0])
        number, left = 0, float(updates or 0)
        while left >= (slack := float(self.slack(np.array([1]), number)[0])):
            number, left = number + 1, left - slack
        return int(self.bounds(at, number)[0])

    def _excess(
        self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return by how much each test is passed; whole numbers, exact in float64."""
        labels = noise.bind(steps.astype(np.uint64), sizes)
        level, mu, tau = self.thresholds(steps, state.round), self.mu(state.round), self.tau
        moved = sizes - state.shown
        up = moved + mu.draw(noise.derive("up"), labels) - (level + tau.draw(noise.derive("up threshold"), _RUN))
        down = mu.draw(noise.derive("down"), labels) - moved - (level + tau.draw(noise.derive("down threshold"), _RUN))
        return up, down

    @cached_property
    def _tests_share(self) -> float:
        """The part of epsilon that is for hits: what gives the least sum of both bounds."""
        test = math.sqrt(self._test_logs(np.array([self.horizon or _TYPICAL_STEPS]))[0] / self._share(_TYPICAL_ROUNDS))
        return test / (test + math.sqrt(self._tau_log))

    @property
    def _tau_scale(self) -> float:
        return (1 + 1e-12) / (self.epsilon * (1 - self._tests_share))

    def _mu_scale(self, number: int) -> float:
        return (1 + 1e-12) / (self.epsilon * self._tests_share * self._share(number))

    def _share(self, number: int) -> float:
        """Return which part of what is for hits pays for hit 0, 1, .."""
        return series_share(_end_of_block(number) + 1) if self.rounds is None else 1 / self.rounds

    def _test_logs(self, steps: Integers) -> NDArray[np.float64]:
        """Return -ln of the failure probability of each of the two tests at these steps; in all beta / 2."""
        if self.horizon is not None:
            return np.full(len(steps), math.log(4 * self.horizon / self.beta))
        return np.asarray(np.log(4 / self.beta * SERIES * (steps + 1) * np.log(steps + 1) ** 2))

    @property
    def _tau_log(self) -> float:
        """-ln of the failure probability of each of the two thresholds; in all beta / 2."""
        return math.log(4 / self.beta)

    def _best_rounds(self, updates: int) -> int:
        """Return the number of hits for which updates / (rounds + 1) and the noise sum to the least error bound."""
        numbers = np.unique(np.floor(np.geomspace(1, min(updates, _LARGEST_ROUNDS), _CANDIDATES)))
        test = self._test_logs(np.array([self.horizon or _TYPICAL_STEPS]))[0]
        noise = 1.5 * (np.sqrt(test * numbers) + math.sqrt(self._tau_log)) ** 2 / self.epsilon
        return int(numbers[np.argmin(updates / (numbers + 1) + noise)])


def _end_of_block(number: int) -> int:
    """Return the largest number of the same length with the same three leading binary digits."""
    rest = max(0, number.bit_length() - 3)
    return number | ((1 << rest) - 1)


def tail(scale: float, logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what geometric noise of that scale exceeds with probability e^-logs at most."""
    return np.asarray(np.maximum(0.0, np.ceil(scale * logs) - 1))


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
        """Estimates that are paid for; None where they are unbounded."""
        return None if self.max_updates is None else self.instance(0).changes

    def instance(self, number: int) -> Instance:
        """Return the instance that estimate 0, 1, .. belongs to."""
        if self.max_updates is not None:
            return self._made(self.epsilon, self.max_updates)
        j, before = 1, 0
        while number >= before + (made := self._of_doubling(j)).changes:
            j, before = j + 1, before + made.changes
        return made

    @override
    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        # The estimate is set at step 1, then where the test says so.
        if state.round == 0:
            return np.asarray(steps == 1)
        instance = self.instance(state.round - 1)
        mu = instance.law(4).draw(noise.derive("mu"), noise.bind(steps.astype(np.uint64), sizes))
        tau = instance.law(2).draw(noise.derive("tau"), np.array([state.round], np.uint64))
        return np.asarray(np.abs(state.shown - sizes) + mu > self._thresholds(instance, steps) + tau)

    @override
    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        if self.rounds is not None and state.round >= self.rounds:
            return state.shown, state.round, True
        labels = noise.bind(np.array([state.round], np.uint64), np.array([size], np.int64))
        nu = self.instance(state.round).law(1).draw(noise.derive("nu"), labels)
        return size + int(nu[0]), state.round + 1, False

    @override
    def bounds(self, steps: Integers, rounds: int) -> Integers:
        # 4 alpha, and 1 for rounding.
        return self._error(self.instance(max(0, rounds - 1)), steps)

    @override
    def error(self, step: int, updates: int | None) -> int:
        # In the last instance that so many updates can reach.
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
