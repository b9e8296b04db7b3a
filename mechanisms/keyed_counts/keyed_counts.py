"""KeyedCounts: how many people each key has, of keys that are public or that nobody knew before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, calibrate, limits_told, plural
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep, KeyTable
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.running import RunningNoise, ToeplitzNoise, TreeNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import GaussianCurve, SlackCurve
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

ANSWERS = ("count", "sum")
NO_KEYS = np.zeros(0, np.uint64)
LARGEST_CONTRIBUTIONS = 1 << 30
LARGEST_VALUE = 1 << 40
MOST_SUM = 1 << 62
"""Two of these fit into 64 bits."""
LARGEST_DELTA = 0.1


@dataclass(frozen=True, kw_only=True)
class KeyedCounts(Mechanism[KeyedState]):
    """Publishes after every step, for each key, how many people contributed to it; and perhaps a sum and a mean.

    Answers are about one window, about the last n windows, or about all since the start. Keys are a public list, or
    whatever the people name: then a key is considered as soon as `min_people` people have contributed to it, and
    published where its noisy count reaches a threshold. Keys that are not considered cost no noise. Shards of keys are
    independent: each has a state of its own.

    Privacy:
        Unit: one person over the whole run, who contributes at most `contributions` times in all and at most once to a
        key in a step; or one event, added or removed. The caller enforces the limits. (epsilon, delta)-DP with adaptive
        inputs. Public: the parameters, the steps, and the list of keys if it is public. The noise of a key is defined
        at all steps of the run, whenever the key was first seen.

    Accuracy:
        `stddev(step)` is exact. `detection(step, beta, tests)`: a key with at least so many people is published with
        probability 1 - beta, in so many tests at once.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1); in (0, 0.1] if keys are not public. With 0 noise is discrete Laplace; for counts since the
            start, if there are many steps, in a k-ary tree, whose noise is not bound to the data: such a run must not
            be repeated on other data.
        over: "window": each step alone; n >= 2: the last n steps, of public keys; "start": all steps, in which a person
            contributes to a key once.
        horizon: steps of the run, up to 2^20; may be None for "window" alone.
        contributions: of one person in the whole run at most, >= 1.
        contributions_per_window: of one person in one step at most, from 1 to `contributions`. None: as many. It makes
            no noise smaller.
        public_keys: whether the list of keys is public; it is then given to `initial_state`, and all are published.
        min_people: people that a key must have to be considered, >= 1: since the start, or for "window" in the window.
        max_value: None without sums, else the largest value of a contribution, >= 1; values are integers from 0 to it,
            and half of the budget is for their sums.
        unit: "person" or "event"; with "event", `contributions` is 1.
        dropped: whether the share of contributions that limits drop is released (`dropped_share`), for a twentieth of
            the budget; noise is Gaussian then, and delta > 0. Not for the unit of an event, or over "start".
        possible: contributions that a person can have, dropped ones too, by public parameters; None if there is no such
            number.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7)
        >>> round(counts.stddev(1), 1), counts.threshold(1)
        (11.3, 63)
        >>> given = KeyedStep(step=1, keys=np.array([7, 9], np.uint64), counts=np.array([500, 3]))
        >>> state, rows = counts.step(counts.initial_state(), given, SeededNoise(1))
        >>> rows.keys.tolist(), bool(abs(rows.counts[0] - 500) < 60)
        ([7], True)

    Source: derived here, docs/proofs/keyed_counts.md; thresholds on keys that nobody knew: Korolova et al. (2009), and
    for streams Zhang et al., Differentially Private Stream Processing at Scale (VLDB 2024).
    """

    epsilon: float
    delta: float = 0.0
    over: str | int = "window"
    horizon: int | None = None
    contributions: int = 1
    contributions_per_window: int | None = None
    public_keys: bool = False
    min_people: int = 1
    max_value: int | None = None
    unit: str = "person"
    dropped: bool = False
    possible: int | None = None

    noise_label = "keyed counts"
    state_type: ClassVar[type[Any]] = KeyedState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.boolean("public_keys", self.public_keys)
        if checks.probability("delta", self.delta, zero=True) == 0 and not self.public_keys:
            raise ValueError("delta must be > 0 unless the list of items is public, got 0")
        if self.delta > LARGEST_DELTA and not self.public_keys:
            raise ValueError(f"delta must be <= {LARGEST_DELTA} unless the list of items is public, got {self.delta}")
        self._check_over()
        self._check_limits()
        checks.boolean("dropped", self.dropped)
        if self.dropped and (self.delta == 0 or self.unit == "event" or self.over == "start"):
            raise ValueError("dropped must be false without delta, since the start, or for the unit of an event")
        if self.bounds.span not in (1, None) and not self.public_keys:
            raise ValueError(f"over must be window or start unless the list of items is public, got {self.over}")
        _ = self.law  # noise that cannot be drawn is refused now, not in mid-stream

    def _described(self) -> Any:
        kind, values = super()._described()
        return [kind, values | {"contributions_per_key": 1.0 if self.over == "start" else None}]

    def _check_over(self) -> None:
        if isinstance(self.over, str):
            checks.one_of("over", self.over, ("window", "start"))
        else:
            checks.integer("over", self.over, minimum=2)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)
        elif self.over != "window":
            raise ValueError(f"horizon must be given for counts over {self.over}, got None")

    def _check_limits(self) -> None:
        checks.one_of("unit", self.unit, ("person", "event"))
        for name, largest in (("contributions", LARGEST_CONTRIBUTIONS), ("max_value", LARGEST_VALUE)):
            value = getattr(self, name)
            if (value is not None or name == "contributions") and checks.integer(name, value, minimum=1) > largest:
                raise ValueError(f"{name} must be <= {largest:,}, got {value}")
        if self.unit == "event" and self.contributions != 1:
            raise ValueError(f"contributions must be 1 for the unit of an event, got {self.contributions}")
        if (most := self.contributions_per_window) is not None:
            if self.unit == "event":
                raise ValueError(f"contributions_per_window must be None for the unit of an event, got {most}")
            if checks.integer("contributions_per_window", most, minimum=1) > self.contributions:
                raise ValueError(f"contributions_per_window must be <= {self.contributions}, contributions, got {most}")
        if self.possible is not None:
            checks.integer("possible", self.possible, minimum=1)
        if checks.integer("min_people", self.min_people, minimum=1) > 1 and self.public_keys:
            raise ValueError(f"min_people must be 1 if the list of items is public, got {self.min_people}")

    @cached_property
    def bounds(self) -> Bounds:
        """All that noise depends on beside epsilon and delta."""
        steps = self.horizon or 1
        return Bounds(
            span={"window": 1, "start": None}.get(self.over) if isinstance(self.over, str) else self.over,
            horizon=self.horizon,
            contributions=self.contributions,
            per_key=1 if self.over == "start" else min(self.contributions, steps),
            largest=self.max_value,
            min_people=None if self.public_keys else self.min_people,
            per_window=self.contributions_per_window,
            dropped=self.dropped,
        )

    def lists(self, step: int) -> bool:
        """Whether a step must state `listed`: how many people a list of different people counts from this step on."""
        return False

    @property
    def keeps_noise_from_data(self) -> bool:
        """Whether noise is not bound to the data, so that a run must not be repeated on other data."""
        return any(isinstance(noise, TreeNoise) for noise in self.law.noises)

    @cached_property
    def law(self) -> KeyLaw:
        """Noise and thresholds."""
        return calibrate(float(self.epsilon), float(self.delta), self.bounds)

    @cached_property
    def dropped_share(self) -> DroppedShare | None:
        """What releases the share of contributions that limits drop; None where nothing is released."""
        curve = self.law.curve
        gaussian = curve.curve if isinstance(curve, SlackCurve) else curve
        if not self.dropped or not isinstance(gaussian, GaussianCurve):
            return None
        return DroppedShare.of(self.contributions, gaussian.shift, self.possible)

    def with_dropped_share(self, possible: float) -> Self:
        """Return this mechanism with that release, where its noise is Gaussian: noise of counts is 5% larger then.

        Privacy: a function of public parameters.

        Args:
            possible: as the field, or `math.inf`.
        """
        if isinstance(self.law.noises[0].law, DiscreteLaplace):
            return self
        return replace(self, dropped=True, possible=None if math.isinf(possible) else int(possible))

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        theorem = 1 if self.public_keys else 2
        return PrivacyGuarantee(
            unit=PrivacyUnit(what=self.unit),
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=limits_told(self.bounds, self.unit),
            public=("all parameters", "the number of windows", *(("the list of items",) if self.public_keys else ())),
            proof=f"docs/proofs/keyed_counts.md, Theorem {theorem}",
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
            horizon=self.horizon,
            curve=self.law.curve,
        )

    def stddev(self, step: int, answer: str = "count") -> float:
        """Return the standard deviation of the noise on counts, or on answers "sum", at `step`."""
        return math.sqrt(self._noise(answer).variance(self._step_number(step)))

    def threshold(self, step: int) -> int | None:
        """Return the least noisy count with which a key is published at `step`; None if the list of keys is public."""
        return self.law.threshold(self._step_number(step))

    def detection(self, step: int, beta: float, tests: int = 1) -> int:
        """Return the least count that is published, in so many tests at once, with probability 1 - beta."""
        tail = checks.probability("beta", beta) / checks.integer("tests", tests, minimum=1)
        return (self.threshold(step) or 0) + self._noise("count").tail_bound(step, tail)

    @property
    def accuracy(self) -> Accuracy:
        """What holds, from public parameters alone.

        Its numbers are `stddev`, `threshold`, `detection_threshold`, with which a key is published in 95 of 100 cases,
        and `margin`, half of the 95% interval of a count, at the last step; `sum_stddev` if there are sums.
        """
        last = self.horizon or 1
        numbers: dict[str, Any] = {
            "stddev": self.stddev(last),
            "threshold": self.threshold(last),
            "detection_threshold": None if self.public_keys else self.detection(last, OUTSIDE),
            "margin": self._noise("count").tail_bound(last, OUTSIDE / 2),
        }
        if self.max_value is not None:
            numbers["sum_stddev"] = self.stddev(last, "sum")
        return Accuracy(
            error=float(numbers["detection_threshold"] or numbers["margin"]),
            failure_probability=OUTSIDE,
            claim=accuracy_told(self.unit, numbers, self.max_value),
            numbers=numbers,
        )

    def initial_state(self, keys: Words | None = None) -> KeyedState:
        """Return the state before the first step; of a shard of a public list, `keys`, uint64 (n,), distinct."""
        if keys is not None and not self.public_keys:
            raise ValueError("keys must not be given unless their list is public")
        chosen = np.unique(np.zeros(0, np.uint64) if keys is None else keys)
        return ShardSteps(self.law).start(chosen)

    def step(self, state: KeyedState, given: KeyedStep, noise: NoiseSource) -> tuple[KeyedState, KeyedRows]:
        """Add what one step brought to a shard of keys, and return what is published about it.

        Every shard must have its step whenever one of its keys may be published: without new contributions too, unless
        answers are about one window and keys are not public.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: steps do not increase, sums are beyond their limits, a key has more than 2^62 / max_value
                contributions in all, or it is not on the public list.
        """
        shard, values = ShardSteps(self.law), self._checked(state, given)
        state, keys, answers = shard.step(state, given, values, self._source(noise))
        if self.max_value is not None:
            for table in (state.waiting, state.counted):
                self._check_sums_fit(table.totals[0])
        return state, self._rows(given.step, keys, answers)

    def _check_sums_fit(self, counts: Integers) -> None:
        """Refuse more contributions to a key than can be added up: before sums of 64 bits could be wrong."""
        most = MOST_SUM // (self.max_value or 1)
        if np.any(counts > most):
            raise ValueError(f"a key must have at most {most:,} contributions, since their values are up to max_value")

    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return noise of its own. What was Gaussian under one label, and is Laplace now, has another."""
        source = super()._source(noise)
        changed = self.delta > 0 and self.bounds.span != 1 and any(n.is_laplace for n in self.law.noises)
        return source.derive("laplace") if changed else source

    def _checked(self, state: KeyedState, given: KeyedStep) -> Integers:
        """Return what came, int64 (answers, n), if it can be right. Messages quote no number of it."""
        if given.step <= state.step:
            raise ValueError(f"step must be > {state.step}, got {given.step}")
        if self.horizon is not None and given.step > self.horizon:
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {given.step}")
        self._check_listed(given)
        if (given.sums is None) != (self.max_value is None):
            raise ValueError("sums must be given where max_value is, and only there")
        if given.sums is None or self.max_value is None:
            return given.counts[None, :]
        self._check_sums_fit(given.counts)
        largest = given.counts * self.max_value
        if np.any(given.sums > largest) or np.any(given.sums < 0):
            raise ValueError("sums must be within counts times the limits of values")
        return np.stack([given.counts, given.sums])

    def _check_listed(self, given: KeyedStep) -> None:
        if given.listed is not None and not self.lists(given.step):
            raise ValueError(f"listed must not be given at step {given.step}: no list of people is kept then")

    def _rows(self, step: int, keys: Words, answers: Integers) -> KeyedRows:
        """Return rows with their errors."""
        return self._with_errors(step, keys, answers, self._errors(self.law.noises, step))

    def _errors(self, noises: Sequence[RunningNoise], step: int) -> list[Any]:
        """Return the margin of counts, and of sums if there are any."""
        return [noise.tail_bound(step, OUTSIDE / 2) for noise in noises]

    def _with_errors(self, step: int, keys: Words, answers: Integers, errors: Sequence[Any]) -> KeyedRows:
        """Return rows with the errors that `_errors` gives, for all keys or for each."""
        rows = KeyedRows(step=step, keys=keys, counts=answers[0], count_margin=errors[0])
        return rows if self.max_value is None else replace(rows, sums=answers[1], sum_margin=errors[1])

    def summed(self, step: int, keys: Words, answers: Integers, windows: Integers) -> KeyedRows:
        """Return rows about several windows, of counts that are of one window each.

        Privacy: post-processing.

        Args:
            step: the last of these windows.
            keys: uint64 (n,).
            answers: sums of what was published of the windows, int64 (answers, n): counts, and perhaps sums of values.
            windows: how many they are, int64 (n,), at least 1.
        """
        if not len(keys):
            return self._rows(step, keys, answers)
        most = int(windows.max())
        noises = [self._summed_noise(answer, most) for answer in ANSWERS[: len(self.law.noises)]]
        distinct, place = np.unique(windows, return_inverse=True)
        errors = zip(*(self._errors(noises, number) for number in distinct.tolist()), strict=True)
        return self._with_errors(step, keys, answers, [np.array(column)[place] for column in errors])

    def _summed_noise(self, answer: str, windows: int) -> RunningNoise:
        """Return the noise of a sum of so many windows, or, in the first ones, of all; counts are of one window."""
        noise = KeyedCounts._noise(self, answer)
        assert isinstance(noise, ToeplitzNoise)
        return noise.summed(windows) if windows > 1 else noise

    def _noise(self, answer: str) -> RunningNoise:
        """Return the noise of an answer."""
        return self.law.noises[ANSWERS.index(checks.one_of("answer", answer, ANSWERS[: len(self.law.noises)]))]

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        if checks.integer("step", step, minimum=1) > (self.horizon or step):
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {step}")
        return int(step)


@dataclass(frozen=True)
class ShardSteps:
    """Steps of one shard. A key waits, without noise, until enough people have it; then it is counted for good.

    The noise of a counted key is that of all steps since the start: what it would remember of the steps before is drawn
    when the key starts to be counted, bound to totals of zero.
    """

    law: KeyLaw

    def start(self, keys: Words, step: int = 0) -> KeyedState:
        """Return a state after `step` in which nothing was contributed yet, with these keys counted."""
        windows, answers = self.law.bounds.span or 0, len(self.law.noises)
        waiting = KeyTable.empty(NO_KEYS, answers, windows, 0)
        return KeyedState(step, waiting, KeyTable.empty(keys, answers, windows, self._rows))

    def step(
        self, state: KeyedState, given: KeyedStep, values: Integers, source: NoiseSource
    ) -> tuple[KeyedState, Words, Integers]:
        """Return the next state, and the keys that are published with their noisy answers, (answers, keys).

        Args:
            state: before.
            given: what came.
            values: counts and perhaps sums of it, (answers, n).
            source: noise of this run.
        """
        waiting, counted = state.waiting.copy(), state.counted.copy()
        for step in range(state.step + 1, given.step if self._rows else 0):
            _forget_oldest(counted, step - 1, step)
            self._noises(counted, step, source)
        for table in (waiting, counted):
            _forget_oldest(table, state.step, given.step)
        waiting, counted = self._added(waiting, counted, given, values, source)
        answers = self._noises(counted, given.step, source)
        answers += counted.answers
        chosen = self._chosen(counted, answers[0], given.step)
        counted.published[:] |= chosen
        following = KeyedState(given.step, waiting, counted)
        if self.law.bounds.span == 1 and not self._public:  # nothing outlives a step
            following = self.start(NO_KEYS, given.step)
        return following, counted.keys[chosen], answers[:, chosen]

    @property
    def _rows(self) -> int:
        return sum(noise.rows for noise in self.law.noises)

    @property
    def _public(self) -> bool:
        return self.law.bounds.min_people is None

    def _added(
        self, waiting: KeyTable, counted: KeyTable, given: KeyedStep, values: Integers, source: NoiseSource
    ) -> tuple[KeyTable, KeyTable]:
        """Return the tables with what came: first to counted keys, then to those that wait, of which some are ready."""
        slot = given.step % max(1, len(counted.recent))
        index, here = counted.positions(given.keys)
        counted.add(index[here], values[:, here], slot)
        rest = np.flatnonzero(~here) if self._public else np.flatnonzero(~here & (given.counts > 0))
        if not len(rest):
            return waiting, counted
        if self._public:
            raise ValueError("keys must be on the public list that the state was made with")
        _, here = waiting.positions(given.keys[rest])
        unseen = np.sort(given.keys[rest[~here]])
        waiting = waiting.joined(KeyTable.empty(unseen, len(values), len(counted.recent), 0))
        index, _ = waiting.positions(given.keys[rest])
        waiting.add(index, values[:, rest], slot)
        ready = waiting.totals[0] >= (self.law.bounds.min_people or 1)  # a contribution each
        counted = counted.joined(self._remembering(waiting.take(ready), given.step, source))
        return waiting.take(~ready), counted

    def _remembering(self, table: KeyTable, step: int, source: NoiseSource) -> KeyTable:
        """Return keys that start to be counted at `step`, with the memory of the noise of all steps before."""
        memory, first = np.zeros((self._rows, len(table.keys))), 0
        for answer, noise in enumerate(self.law.noises):
            noise.remember(memory[first : first + noise.rows], step, table.keys, source.derive(ANSWERS[answer]))
            first += noise.rows
        return replace(table, memory=memory)

    def _noises(self, table: KeyTable, step: int, source: NoiseSource) -> Integers:
        """Return the noise of one step, int64 (answers, keys); the table's memory is brought up to date in place."""
        noises = np.empty(table.totals.shape, np.int64)
        first = 0
        for answer, noise in enumerate(self.law.noises):
            memory = table.memory[first : first + noise.rows]
            own = source.derive(ANSWERS[answer])
            facts = [table.answers[answer], *([table.totals[answer]] if len(table.recent) > 1 else [])]
            noises[answer] = noise.advance(memory, step, table.keys, facts, own)
            first += noise.rows
        return noises

    def _chosen(self, table: KeyTable, counts: Integers, step: int) -> NDArray[np.bool_]:
        """Return which keys are published: since the start, for good."""
        threshold = self.law.threshold(step)
        if threshold is None:
            return np.ones(len(table.keys), np.bool_)
        found = counts >= threshold
        return found | table.published if self.law.bounds.span is None else found


def _forget_oldest(table: KeyTable, before: int, now: int) -> None:
    """Empty the places of the ring that the steps after `before`, up to `now`, take."""
    windows = len(table.recent)
    for step in range(max(before + 1, now - windows + 1), now + 1):
        table.recent[step % windows] = 0


def accuracy_told(unit: str, numbers: Mapping[str, float | None], largest: int | None) -> str:
    """Say what holds, with the numbers of `KeyedCounts.accuracy`."""
    text = f"Counts have a standard deviation of {_written(numbers['stddev'])}"
    if "sum_stddev" in numbers:
        text += f", and sums of values, clipped to 0 and {largest:,}, one of {_written(numbers['sum_stddev'])}"
    if (found := numbers["detection_threshold"]) is not None:
        text += f". An item of {found:,} {plural(unit)} in a window is published with a probability of 95%"
    return f"{text}."


def _written(stddev: float | None) -> str:
    """Write a standard deviation, which is there, without an exponent where it is large."""
    assert stddev is not None
    return f"{stddev:.3g}" if stddev < 1000 else f"{stddev:,.0f}"
