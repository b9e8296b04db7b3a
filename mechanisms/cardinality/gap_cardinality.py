"""Set cardinality by sparse changes, tight: one-sided tests with geometric noise whose gap is the new estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.cardinality.sparse_changes import SparseChanges, whole_bounds
from privstream.mechanisms.cardinality.state import CardinalityState, Integers
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.failure_shares import SERIES, series_share
from privstream.mechanisms.noise.sources import NoiseSource

_TYPICAL_STEPS, _TYPICAL_ROUNDS = 1 << 20, 1 << 4  # for the split of the budget where these are unknown
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

    With `max_updates` there are `rounds` hits of equal cost, chosen to give the least error bound. Without, there is no
    end of them: hit r = 0, 1, .. costs series_share(s + 1) of what is for hits, s the last number that has the three
    leading binary digits of r: laws are costly to make. See docs/proofs/cardinality.md.
    """

    epsilon: float
    beta: float
    horizon: int | None
    max_updates: int | None

    @cached_property
    def rounds(self) -> int | None:
        """Hits that are paid for; None for no end."""
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

    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return at which of the next steps one of the tests is a hit."""
        up, down = self._excess(state, steps, sizes, noise)
        return (up >= 0) | (down >= 0)

    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        """Return the noisy size, the hits so far, and whether that was the last one."""
        steps, sizes = np.array([step]), np.array([size])
        up, down = self._excess(state, steps, sizes, noise)
        passed, middle = self.thresholds(steps, state.round)[0], self.middle(steps, state.round)[0]
        moved = passed + up[0] - middle if up[0] >= 0 else middle - passed - down[0]
        done = state.round + 1
        return state.shown + int(moved), done, self.rounds is not None and done >= self.rounds

    def bounds(self, steps: Integers, rounds: int) -> Integers:
        """Return K and the bound of tau; what is true before the last hit stays true when all are used up."""
        number = rounds if self.rounds is None else min(rounds, self.rounds - 1)
        return whole_bounds(self.thresholds(steps, number) + self.tau_bound)

    def error(self, step: int, updates: int | None) -> int:
        """Return the bound at `step` after as many hits as so many updates can bring."""
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
