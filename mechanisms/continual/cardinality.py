"""SetCardinality: how many people are in a set now, after every step, while they come and go."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric, SymmetricNoise, least_noise, series_share
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import noise_curve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from typing_extensions import override

BETA = 0.05
"""Probability with which error bounds may be wrong."""

TYPICAL = 1 << 20
"""Steps, and updates, that errors are predicted for where they are not known."""

COUNTS = "counts"
PROVED = {COUNTS: "section 3", "sparse": "Theorem 1"}
LARGEST_HORIZON = 1 << 40
LARGEST_SIZE = 1 << 40
LARGEST_CONTRIBUTIONS = 1 << 20
_TYPICAL_ROUNDS = 1 << 4
_LARGEST_BOUND = float(1 << 62)
_CANDIDATES = 400


class Cardinalities(NamedTuple):
    """What is published after a step."""

    estimates: int  # how many are in the set, with noise; perhaps below 0
    error_bounds: int  # with probability 95% no estimate of the run is off by more, while not `exhausted`
    exhausted: bool  # whether the estimate has no change left, and stays what it is


@dataclass(frozen=True, eq=False, kw_only=True)
class CardinalityState:
    """What outlives a step: public, but for the size."""

    step: int = 0
    size: int = 0  # how many are in the set; private
    shown: int = 0  # what was published last
    round: int = 0  # how often `shown` has been set
    exhausted: bool = False  # whether no change of `shown` is left


def _label(noise: NoiseSource, number: int, size: int) -> Any:
    """Return a label that depends on the size."""
    return noise.bind(np.array([number], np.uint64), np.array([size], np.int64))


@dataclass(frozen=True, kw_only=True)
class GapChanges:
    """At each step two tests, the second one only if the first is a miss; noise is bound to the step and the size:

        up:   size - shown + mu  >= K + tau        down:  shown - size + mu' >= K + tau'

    tau, tau' are drawn once, mu, mu' for each step, all geometric. After a hit the estimate is the noisy size that the
    test has looked at, size + mu - tau or size - mu' + tau', less the public middle of what that can be off by. The run
    costs 1 / b_tau, and each hit 1 / b_mu, with scales b.

    With `max_updates` there are `rounds` hits of equal cost, chosen to give the least error bound. Without, they are
    unbounded: hit r = 0, 1, .. costs series_share(s + 1) of what is for hits, s the last number that has the three
    leading binary digits of r: laws are costly to make. See docs/proofs/cardinality.md.
    """

    epsilon: float
    horizon: int | None
    max_updates: int | None
    beta: float = BETA

    @cached_property
    def rounds(self) -> int | None:
        """Hits that are paid for: those for which updates / (rounds + 1) and the noise sum to the least error bound."""
        if self.max_updates is None:
            return None
        numbers = np.unique(np.floor(np.geomspace(1, self.max_updates, _CANDIDATES)))
        noise = (np.sqrt(self._test_log(self.horizon or TYPICAL) * numbers) + math.sqrt(self._tau_log)) ** 2
        return int(numbers[np.argmin(self.max_updates / (numbers + 1) + 1.5 * noise / self.epsilon)])

    @property
    def tau(self) -> Geometric:
        """The noise of the two thresholds."""
        return Geometric((1 + 1e-12) / (self.epsilon * (1 - self._tests_share)))

    def mu(self, number: int) -> Geometric:
        """The noise of a test after a number of hits."""
        return Geometric((1 + 1e-12) / (self.epsilon * self._tests_share * self._share(number)))

    @property
    def tau_bound(self) -> float:
        """What neither tau exceeds."""
        return max(0.0, math.ceil(self.tau.scale * self._tau_log) - 1)

    def mu_bound(self, step: int, number: int) -> float:
        """Return what no mu exceeds at a step after a number of hits."""
        return max(0.0, math.ceil(self.mu(number).scale * self._test_log(step)) - 1)

    def middle(self, step: int, number: int) -> int:
        """Return the middle of what an up hit is off by; less that, all is off by at most half of both bounds."""
        return math.floor((self.mu_bound(step, number) - self.tau_bound) / 2)

    def slack(self, step: int, number: int) -> float:
        """Return by how much the size has changed at the next hit, at least."""
        if self.max_updates is not None and self.rounds is not None:
            return self.max_updates // (self.rounds + 1) + 1
        return max(1, math.ceil(1.5 * (self.mu_bound(step, number) + self.tau_bound)))

    def threshold(self, step: int, number: int) -> float:
        """Return K, a whole number."""
        mu = self.mu_bound(step, number)
        off = math.ceil((mu + self.tau_bound) / 2) if number else 0  # the set is empty at first, which is known
        return self.slack(step, number) + mu + off

    def published(self, state: CardinalityState, noise: NoiseSource) -> CardinalityState:
        """Return the state after a step with its true size."""
        step, done = state.step, state.round
        if state.exhausted:
            return state
        label, once = _label(noise, step, state.size), np.zeros(1, np.uint64)
        up, down = (
            int(self.mu(done).draw(noise.derive(name), label)[0])
            - int(self.tau.draw(noise.derive(f"{name} threshold"), once)[0])
            for name in ("up", "down")
        )
        level, moved, middle = self.threshold(step, done), state.size - state.shown, self.middle(step, done)
        if moved + up >= level:
            shown = state.size + up - middle
        elif down - moved >= level:
            shown = state.size - down + middle
        else:
            return state
        return replace(state, shown=shown, round=done + 1, exhausted=done + 1 == self.rounds)

    def bound(self, step: int, number: int) -> int:
        """Return the error bound after a number of hits; what is true before the last hit stays true after it."""
        last = number if self.rounds is None else min(number, self.rounds - 1)
        return math.ceil(min(self.threshold(step, last) + self.tau_bound, _LARGEST_BOUND))

    def error(self, step: int) -> int:
        """Return an error bound after as many hits as updates can bring."""
        number, left = self.rounds or 0, 0.0 if self.rounds else float(TYPICAL)
        while left >= (slack := self.slack(1, number)):
            number, left = number + 1, left - slack
        return self.bound(step, number)

    @cached_property
    def _tests_share(self) -> float:
        """The part of epsilon that is for hits: what gives the least sum of both bounds."""
        test = math.sqrt(self._test_log(self.horizon or TYPICAL) / self._share(_TYPICAL_ROUNDS))
        return test / (test + math.sqrt(self._tau_log))

    def _share(self, number: int) -> float:
        """Return which part of what is for hits pays for hit 0, 1, .."""
        if self.rounds is not None:
            return 1 / self.rounds
        rest = max(0, number.bit_length() - 3)
        return series_share((number | ((1 << rest) - 1)) + 1)

    def _test_log(self, step: int) -> float:
        """Return -ln of the failure probability of each of the two tests at a step; in all beta / 2."""
        share = 1 / self.horizon if self.horizon else series_share(step)
        return math.log(4 / (share * self.beta))

    @property
    def _tau_log(self) -> float:
        """-ln of the failure probability of each of the two thresholds; in all beta / 2."""
        return math.log(4 / self.beta)


@dataclass(frozen=True, kw_only=True)
class SetCardinality(Mechanism[CardinalityState]):
    """Publishes after every step how many people are in a set, of which any number come and go at a step.

    Modes:
      counts: fresh noise at each step, for people who are in the set after at most `contributions` steps.
      sparse: the estimate stays what it is until a private test says that it is far off; error about
        sqrt(max_updates / epsilon) up to logarithms, as good as possible without other limits and delta = 0.

    Privacy:
        Unit: all that one person ever does, added or removed. The person is in the set, or not, at each step, so moves
        each size by at most 1. Of `contributions` the caller takes care. Public: all fields and the number of steps.
        `max_updates` must be chosen without looking at the data; privacy does not depend on whether it is kept.

    Accuracy:
        `error(step)`: with probability 95% no estimate at steps 1 .. `step` is off by more, if people enter and leave
        at most `max_updates` times in all (2^20 where that is unknown). Published error bounds: all of them hold at
        once with probability 95% then; with more updates the estimate may be `exhausted`: it stays what it is.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = SetCardinality(epsilon=1.0, horizon=1000, max_updates=100_000, mode="sparse")
        >>> state, published = mechanism.step(mechanism.initial_state(), 9000, SeededNoise(1))
        >>> published.error_bounds
        2774
        >>> abs(published.estimates - 9000) <= 2774
        True

    Source: Henzinger, Sricharan, Steiner (2023), section 5, Algorithms 6 and 7; docs/proofs/cardinality.md.
    """

    epsilon: float  # finite and > 0
    delta: float = 0.0  # in [0, 1); spent in mode counts alone
    horizon: int | None = None  # steps of the run at most; in mode counts this or `contributions` must be given
    contributions: int | None = None  # steps after which one person is in the set, at most; None for all of them
    max_updates: int | None = None  # how often people enter or leave in the whole run, all together, if it is known
    mode: str = COUNTS  # or "sparse"
    noise_label = "set cardinality"
    state_type = CardinalityState

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.one_of("mode", self.mode, tuple(PROVED))
        limits = {"horizon": LARGEST_HORIZON, "max_updates": LARGEST_SIZE, "contributions": LARGEST_CONTRIBUTIONS}
        for name, largest in limits.items():
            value = getattr(self, name)
            if value is not None:
                checks.integer(name, value, minimum=1, maximum=largest)
        if self.mode == COUNTS and self.contributions is None and self.horizon is None:
            raise ValueError("horizon or contributions must be given in mode counts")
        _ = self.law  # refuses scales beyond what can be drawn

    @cached_property
    def law(self) -> SymmetricNoise | None:
        """The fresh noise of each size in mode counts, the one with the smaller variance of those that delta allows."""
        if self.mode != COUNTS:
            return None
        most = min(each for each in (self.contributions, self.horizon) if each is not None)
        return least_noise(self.epsilon, self.delta, most, math.sqrt(most), most)

    @cached_property
    def algorithm(self) -> GapChanges:
        """What decides on the estimates in mode sparse."""
        return GapChanges(epsilon=self.epsilon, horizon=self.horizon, max_updates=self.max_updates)

    @property
    def spread(self) -> int | None:
        """What a single estimate of mode counts is off by at most with probability 95%."""
        return None if self.law is None else max(0, self.law.tail_quantile(OUTSIDE / 2))

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        limit = "A person is in the set or not, as often as they like."
        if self.mode == COUNTS and self.contributions is not None:
            limit = f"A person is in the set after at most {self.contributions:,} steps."
        return PrivacyGuarantee(
            unit=PERSON,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(limit,),
            public=("all parameters", "the number of steps"),
            proof=f"docs/proofs/cardinality.md, section 1 and {PROVED[self.mode]}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=noise_curve(self.epsilon, 0.0 if isinstance(self.law, DiscreteLaplace | None) else self.delta),
        )

    def error(self, step: int) -> int:
        """Return the error of the class docstring, for `max_updates`, or for 2^20 where that is unknown."""
        checks.step(step, self.horizon or LARGEST_HORIZON)
        return self.algorithm.error(step) if self.law is None else self._all_steps(self.law)

    def _all_steps(self, law: SymmetricNoise) -> int:
        return max(0, law.tail_quantile(BETA / (2 * (self.horizon or TYPICAL))))

    def step(
        self, state: CardinalityState, change: ArrayLike, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take by how much the set has grown (or, negative, shrunk) in one step; return the estimate.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: the change is no integer, or would leave fewer than no people in the set.
        """
        changed = np.asarray(change)
        if changed.ndim or changed.dtype.kind not in "iu":
            raise TypeError(f"change must be an integer, got {changed.dtype} of shape {changed.shape}")
        step, size = checks.step(state.step + 1, self.horizon or LARGEST_HORIZON), state.size + int(changed)
        if not 0 <= size <= LARGEST_SIZE:
            raise ValueError("change must keep the number of people between 0 and 2**40")
        state, source = replace(state, step=step, size=size), self._source(noise)
        if self.law is None:
            state = self.algorithm.published(state, source)
            return state, Cardinalities(state.shown, self.algorithm.bound(step, state.round), state.exhausted)
        state = replace(state, shown=size + int(self.law.draw(source, _label(source, step, size))[0]))
        return state, Cardinalities(state.shown, self._all_steps(self.law), state.exhausted)
