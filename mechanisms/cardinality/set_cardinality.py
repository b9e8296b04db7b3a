"""SetCardinality: how many people are in a set now, after every step, while they come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    CountedChanges,
    FreshNoise,
    GapChanges,
    HenzingerSricharanSteinerChanges,
)
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.counters.toeplitz import rows_state
from privstream.mechanisms.counters.trees import WideTreeCounter
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import GaussianCurve, PrivacyCurve, PureDp
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON
from privstream.mechanisms.smoothing import Smoothed
from typing_extensions import override

UNITS = ("user", "event")
MODES = ("auto", "sparse", "direct", "counter", "paper")
PROVED = {"sparse": "Theorem 1", "direct": "section 3", "counter": "section 3", "paper": "section 4"}
LARGEST_SIZE = 1 << 40
LARGEST_VISITS = 1 << 20
_TYPICAL_UPDATES = 1 << 20
_TYPICAL_STEPS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SetCardinality(Mechanism[CardinalityState]):
    """Publishes after every step how many people are in a set, of which any number come and go at a step.

    Modes, for unit "user":
      sparse: the estimate stays what it is until a private test says that it is far off; error about
        sqrt(max_updates / epsilon) up to logarithms, as good as possible without other limits and delta = 0.
      direct: fresh noise at each of `horizon` steps, and with delta > 0 for people who are added or removed also one
        that all of them have in common; best for short runs, and with delta > 0.
      counter: a continual counter of the changes, where each person enters at most `visits_per_person` times.
      paper: the sparse changes as published, by doubling if `max_updates` is unknown.
    Unit "event" always uses a continual counter.

    Privacy:
        Unit "user": all that one person ever does, in at most `streams_per_person` runs of this mechanism on
        different streams. The person is in the set, or not, at each step, so moves each size by at most 1, however
        often they come and go: no limit on a person is needed, but in mode counter, where the caller must see to
        `visits_per_person`. Unit "event": one event that moves the size by 1 from some step on until, perhaps, a later
        one moves it back: what a single event of a person can do when those that change nothing are ignored.
        Public: all fields and the number of steps. `max_updates` must be chosen without looking at the data; privacy
        does not depend on whether it is kept.

    Accuracy:
        `error(step, updates)`: with probability 1 - beta no estimate at steps 1 .. `step` is off by more, if people
        enter and leave at most `updates` times in all (by default `max_updates`). Published error bounds: all of them
        hold at once with probability 1 - beta, if there are at most `max_updates` updates. When these are passed, the
        estimate may be `exhausted`: it stays what it is, which the flag in state and output says.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1); spent in mode direct and by counters.
        unit: "user" or "event".
        horizon: steps of the run at most; None if unbounded.
        max_updates: how often people enter or leave the set in the whole run, all together; None if unknown.
            Several changes of one person within a step count as what is left of them at its end. Unit "user".
        visits_per_person: how often one person enters the set at most, or None for no limit. Unit "user".
        mode: "auto" (the least predicted error), "sparse", "direct", "counter" or "paper".
        streams_per_person: streams that one person takes part in at most; the guarantee is for all. Unit "user".
        streams: streams that there are, each with a run of this mechanism; None: one if `streams_per_person` is 1, else
            any number. Whoever is replaced may have been in other streams than the one who comes instead.
        neighbouring: "add_remove" or "replace_one" unit.
        beta: failure probability.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = SetCardinality(epsilon=1.0, horizon=1000, max_updates=100_000)
        >>> state, published = mechanism.step(mechanism.initial_state(), 9000, SeededNoise(1))
        >>> published.error_bounds
        2774
        >>> abs(published.estimates - 9000) <= 2774
        True

    Source: Henzinger, Sricharan, Steiner (2023), section 5, Algorithms 6 and 7; docs/proofs/cardinality.md.
    """

    epsilon: float
    delta: float = 0.0
    unit: str = "user"
    horizon: int | None = None
    max_updates: int | None = None
    visits_per_person: int | None = None
    mode: str = "auto"
    streams_per_person: int = 1
    streams: int | None = None
    neighbouring: str = "add_remove"
    beta: float = 0.05
    noise_label = "set cardinality"

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.probability("beta", self.beta)
        for name, choices in {"unit": UNITS, "mode": MODES, "neighbouring": tuple(NEIGHBOURING)}.items():
            checks.one_of(name, getattr(self, name), choices)
        checks.integer("streams_per_person", self.streams_per_person, minimum=1)
        if self.streams is not None and checks.integer("streams", self.streams, minimum=1) < self.streams_per_person:
            raise ValueError(f"streams must be >= streams_per_person {self.streams_per_person}, got {self.streams}")
        limits = {"horizon": LARGEST_HORIZON, "max_updates": LARGEST_SIZE, "visits_per_person": LARGEST_VISITS}
        for name, largest in limits.items():
            value = getattr(self, name)
            if value is not None:
                checks.integer(name, value, minimum=1, maximum=largest)
        if self.unit == "event":
            for name in ("max_updates", "visits_per_person"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} must not be given with unit event")
            if self.streams_per_person != 1:
                raise ValueError(f"streams_per_person must be 1 with unit event, got {self.streams_per_person}")
            if self.mode not in ("auto", "counter"):
                raise ValueError(f"mode must be auto or counter with unit event, got {self.mode!r}")
        if self.unit == "user" and self.mode == "counter" and self.visits_per_person is None:
            raise ValueError("visits_per_person must be given in mode counter with unit user")
        if self.mode == "direct" and self.horizon is None:
            raise ValueError("horizon must be given in mode direct")
        _ = self.algorithm  # checks the rest

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that `auto` chooses from."""
        if self.unit == "event":
            return ("counter",)
        counted = ("counter",) if self.visits_per_person is not None else ()
        return ("sparse", *(("direct",) if self.horizon is not None else ()), *counted)

    @cached_property
    def chosen_mode(self) -> str:
        """The mode, `auto` being decided by public parameters alone."""
        if self.mode != "auto":
            return self.mode
        return min(self.modes, key=lambda mode: replace(self, mode=mode).error(self.expected_steps))

    @cached_property
    def algorithm(self) -> CardinalityAlgorithm:
        """What decides on the estimates."""
        return self._algorithm(self.chosen_mode)

    @cached_property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of all streams of one unit together: docs/proofs/cardinality.md, section 5."""
        made = self.algorithm
        if isinstance(made, FreshNoise):
            return made.curve
        if isinstance(made, CountedChanges) and isinstance(made.counter.curve, GaussianCurve):
            return made.counter.curve
        return PureDp(self.epsilon)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        if self.unit == "event":
            unit, limits = EVENT, ["An event changes whether one person is in the set over one stretch of steps."]
        else:
            unit, limits = PERSON, ["A person is in the set or not, as often as they like."]
            if self.chosen_mode == "counter":
                most = self.visits_per_person or 1
                limits = [f"A person enters the set at most {most:,} time{'s' * (most > 1)}."]
            if self.streams_per_person > 1:
                limits.append(f"A person takes part in at most {self.streams_per_person:,} streams.")
        return PrivacyGuarantee(
            unit=unit,
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=tuple(limits),
            public=("all parameters", "the number of steps"),
            proof=f"docs/proofs/cardinality.md, section 1 and {PROVED[self.chosen_mode]}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=self.curve,
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
        memory = self.algorithm.initial_memory()
        return CardinalityState(step=0, size=0, shown=0, round=0, exhausted=False, memory=memory)

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
        self, state: CardinalityState, changes: ArrayLike, noise: NoiseSource, *, signed: bool = False
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take many steps at once, int (n,), bit for bit as n calls of `step`.

        Args:
            state: the state before them.
            changes: by how much the set has grown in each.
            noise: the noise of all steps.
            signed: whether estimates stay below 0 where noise is, as `smooth` needs them.
        """
        sizes = self._sizes(state, np.asarray(changes))
        if not len(sizes):
            return state, Cardinalities(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        state, published = self.algorithm.run(state, sizes, self._source(noise))
        return state, published if signed else published._replace(estimates=np.maximum(published.estimates, 0))

    @property
    def stddevs(self) -> tuple[float, float]:
        """Standard deviations of the noise of a size by itself, and of that which all have in common; if `smooths`."""
        assert isinstance(self.algorithm, FreshNoise)
        return self.algorithm.stddevs

    @property
    def smooths(self) -> bool:
        """Whether sizes can be smoothed: each has noise of its own."""
        return isinstance(self.algorithm, FreshNoise)

    def smooth(self, estimates: ArrayLike, factors: ArrayLike = 1.0, unsure: ArrayLike = 0.0) -> Smoothed:
        """Return the sizes of all steps of a run that is over, each from the estimates before and after it.

        Noise that all sizes of a stream have in common does not become smaller, and widens all intervals.

        Privacy: post-processing of sizes that have their noise.

        Accuracy: intervals of 95% rest on a model, in which sizes stay near a level that moves (`LocalLevel`). They are
        no narrower than those of a size by itself where it is off those beside it. What holds is in
        docs/decisions/0068-smoothed-set-sizes.md.

        Args:
            estimates: of `run` with `signed`, shape (steps, streams), at least one step.
            factors: by which sizes of each step are known to be multiplied, as on a weekday; > 0.
            unsure: standard deviations of these factors, relative to them.

        Raises:
            ValueError: `estimates` has another shape or an infinite number, or sizes have no noise of their own.
        """
        if not isinstance(self.algorithm, FreshNoise):
            raise ValueError(f"mode must be direct where sizes are smoothed, got {self.chosen_mode}")
        parts = (np.asarray(part, np.float64) for part in (estimates, factors, unsure))
        return self.algorithm.smooth(*parts)

    def _fields(self, state: CardinalityState) -> dict[str, Any]:
        return vars(state) | {"exhausted": int(state.exhausted)}

    def _state(self, fields: dict[str, Any]) -> CardinalityState:
        return CardinalityState(**(fields | {"exhausted": bool(fields["exhausted"])}))

    def _algorithm(self, mode: str) -> CardinalityAlgorithm:
        """Return the algorithm for one stream's share of the budget."""
        shared: dict[str, Any] = {"beta": self.beta, "horizon": self.horizon}
        replaced = 1 if self.neighbouring == "add_remove" else 2
        if self.unit == "event":
            return CountedChanges(epsilon=self.epsilon, delta=self.delta, moves=replaced, people=replaced, **shared)
        epsilon = self.epsilon / self.streams_per_person
        if mode == "counter":
            shared |= {"moves": replaced * (self.visits_per_person or 1), "people": replaced}
            if self.delta == 0:  # plain sums: each stream's part, as noise labels have it
                return CountedChanges(epsilon=epsilon, delta=0.0, **shared)
            together = self.streams_per_person
            return CountedChanges(epsilon=self.epsilon, delta=self.delta, streams=together, **shared)
        if mode == "sparse":
            return GapChanges(epsilon=epsilon / replaced, max_updates=self.max_updates, **shared)
        # Here whoever is added or removed costs as much as whoever is replaced: docs/proofs/cardinality.md, section 1.
        if mode == "direct":
            one_way = self.neighbouring == "add_remove"
            budget: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, "streams": self._streams_changed}
            return FreshNoise(one_way=one_way, **budget, **shared)
        epsilon = self.epsilon / self._streams_changed
        return HenzingerSricharanSteinerChanges(epsilon=epsilon, max_updates=self.max_updates, **shared)

    @property
    def _streams_changed(self) -> int:
        """Streams in which two neighbouring inputs differ at most."""
        alone = self.streams_per_person == 1 and self.streams is None
        if self.neighbouring == "add_remove" or alone:
            return self.streams_per_person
        return min(2 * self.streams_per_person, self.streams or 2 * self.streams_per_person)

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

    @property
    def _state_kind(self) -> str:
        """What snapshots are of. Where a tree of many children is the counter, earlier commits had another one.

        With what that one remembers, noise would be seen at another scale, and so what it hid. So it would with what
        counters with correlated noise remembered on their former grid. Where sizes have noise in common, earlier
        commits had other noise in each, with which a person would be seen by more than either promises. Counters of
        several streams had a part of the budget each, and other noise, where now all streams have one together.
        """
        kind, algorithm = "set cardinality state", self.algorithm
        if not isinstance(algorithm, CountedChanges):
            return kind
        if self._is_of_streams_together:
            return f"{kind} of several streams together"
        if isinstance(algorithm.counter, WideTreeCounter):
            return f"{kind} of a wide tree"
        return rows_state(kind, algorithm.moves) if self.delta > 0 else kind

    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return the source of noise. Counters of several streams together have another label than those of parts had.

        A job that is begun anew after them is a release of its own, and its entry in a ledger has to say so.
        """
        source = super()._source(noise)
        return source.derive(self.streams_per_person) if self._is_of_streams_together else source

    @property
    def _is_of_streams_together(self) -> bool:
        """Whether one counter's budget is for all streams of a person."""
        return isinstance(self.algorithm, CountedChanges) and self.algorithm.streams > 1

    def _described(self) -> Any:
        _, values = super()._described()
        return {name: value for name, value in values.items() if name != "streams" or value is not None}
