"""SetCardinality: how many people are in a set now, after every step, while they come and go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.cardinality.algorithms import (
    Cardinalities,
    CardinalityAlgorithm,
    CardinalityState,
    FreshNoise,
    GapChanges,
    HenzingerSricharanSteinerChanges,
)
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from typing_extensions import override

COUNTS = "counts"
PROVED = {COUNTS: "section 3", "sparse": "Theorem 1", "paper": "section 4"}
LARGEST_SIZE = 1 << 40
LARGEST_CONTRIBUTIONS = 1 << 20
_TYPICAL_UPDATES = 1 << 20
_TYPICAL_STEPS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SetCardinality(Mechanism[CardinalityState]):
    """Publishes after every step how many people are in a set, of which any number come and go at a step.

    Modes:
      counts: fresh noise at each step, for people who are in the set after at most `contributions` steps.
      sparse: the estimate stays what it is until a private test says that it is far off; error about
        sqrt(max_updates / epsilon) up to logarithms, as good as possible without other limits and delta = 0.
      paper: the sparse changes as published, by doubling if `max_updates` is unknown.

    Privacy:
        Unit: all that one person ever does, added or removed. The person is in the set, or not, at each step, so moves
        each size by at most 1, however often they come and go. Of `contributions` the caller takes care. Public: all
        fields and the number of steps. `max_updates` must be chosen without looking at the data; privacy does not
        depend on whether it is kept.

    Accuracy:
        `error(step, updates)`: with probability 95% no estimate at steps 1 .. `step` is off by more, if people enter
        and leave at most `updates` times in all (by default `max_updates`). Published error bounds: all of them hold at
        once with probability 95%, if there are at most `max_updates` updates. When these are passed, the estimate may
        be `exhausted`: it stays what it is, which the flag in state and output says.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1); spent in mode counts alone.
        horizon: steps of the run at most; None if unbounded.
        contributions: steps after which one person is in the set, at most; None for all of them. In mode counts one of
            this and `horizon` must be given.
        max_updates: how often people enter or leave the set in the whole run, all together; None if unknown.
            Several changes of one person within a step count as what is left of them at its end.
        mode: "counts", "sparse" or "paper".

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

    epsilon: float
    delta: float = 0.0
    horizon: int | None = None
    contributions: int | None = None
    max_updates: int | None = None
    mode: str = COUNTS
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
        _ = self.algorithm  # checks the rest

    @cached_property
    def algorithm(self) -> CardinalityAlgorithm:
        """What decides on the estimates."""
        if self.mode == COUNTS:
            given = [each for each in (self.contributions, self.horizon) if each is not None]
            algorithm: CardinalityAlgorithm = FreshNoise(
                epsilon=self.epsilon, delta=self.delta, horizon=self.horizon, contributions=min(given)
            )
            _ = algorithm.spread  # makes the noise
            return algorithm
        kind = GapChanges if self.mode == "sparse" else HenzingerSricharanSteinerChanges
        return kind(epsilon=self.epsilon, horizon=self.horizon, max_updates=self.max_updates)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        limits = ["A person is in the set or not, as often as they like."]
        if self.mode == COUNTS and self.contributions is not None:
            limits = [f"A person is in the set after at most {self.contributions:,} steps."]
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=tuple(limits),
            public=("all parameters", "the number of steps"),
            proof=f"docs/proofs/cardinality.md, section 1 and {PROVED[self.mode]}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=self.algorithm.curve,
        )

    def error(self, step: int, updates: int | None = None) -> int:
        """Return the error of the class docstring; without `updates`, for `max_updates`, or for 2^20 if unknown."""
        checks.step(step, self.horizon or LARGEST_HORIZON)
        if updates is not None:
            checks.integer("updates", updates, minimum=0)
        return self.algorithm.error(step, self.expected_updates if updates is None else updates)

    @property
    def expected_updates(self) -> int:
        """`max_updates`, or what errors are predicted for where it is unknown."""
        return self.max_updates or _TYPICAL_UPDATES

    @property
    def expected_steps(self) -> int:
        """`horizon`, or for how many steps errors are predicted where that is unbounded."""
        return self.horizon or _TYPICAL_STEPS

    @override
    def initial_state(self) -> CardinalityState:
        return CardinalityState(step=0, size=0, shown=0, round=0, exhausted=False)

    def step(self, state: CardinalityState, change: int, noise: NoiseSource) -> tuple[CardinalityState, Cardinalities]:
        """Take by how much the set has grown (or, negative, shrunk) in one step; return one estimate.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: the change is no integer, or would leave fewer than no people in the set.
        """
        state, published = self.run(state, np.asarray(change)[None], noise)
        estimate, bound, exhausted = (column[0].item() for column in published)
        return state, Cardinalities(estimate, bound, exhausted)

    def run(
        self, state: CardinalityState, changes: ArrayLike, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take many steps at once, int (n,), bit for bit as n calls of `step`."""
        sizes = self._sizes(state, np.asarray(changes))
        if not len(sizes):
            return state, Cardinalities(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return self.algorithm.run(state, sizes, self._source(noise))

    def _sizes(self, state: CardinalityState, changes: NDArray[Any]) -> Integers:
        """Return the true sizes after the next steps. Messages quote no value."""
        if changes.ndim != 1:
            raise ValueError(f"changes must have shape (n,), got {changes.shape}")
        if changes.dtype.kind not in "iu" and len(changes):
            raise TypeError(f"changes must be integers, got {changes.dtype}")
        if state.step + len(changes) > (self.horizon or LARGEST_HORIZON):
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {state.step + len(changes)}")
        if len(changes) and (changes.max() > LARGEST_SIZE or changes.min() < -LARGEST_SIZE):
            raise ValueError("changes must be between -2**40 and 2**40")
        sizes = np.cumsum(changes, dtype=np.int64) + state.size
        if len(sizes) and (sizes.min() < 0 or sizes.max() > LARGEST_SIZE):
            raise ValueError("changes must keep the number of people between 0 and 2**40")
        return np.asarray(sizes)
