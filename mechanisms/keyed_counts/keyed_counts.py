"""KeyedCounts: how many people each key has, of keys that are public or that nobody knew before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.keyed_counts import sentences
from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, calibrate
from privstream.mechanisms.keyed_counts.key_noise import KeyNoise, TreeNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep, KeyTable
from privstream.mechanisms.keyed_counts.means import means_with_bounds
from privstream.mechanisms.keyed_counts.shard_steps import ANSWERS, ShardSteps
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

Integers = NDArray[np.int64]

LARGEST_CONTRIBUTIONS = 1 << 30
LARGEST_VALUE = 1 << 40
MOST_SUM = 1 << 62
"""Two of these fit into 64 bits."""
LARGEST_DELTA = 0.1
WORDINGS = ("beta", "bounded_keys")  # fields that shape no noise


@dataclass(frozen=True, kw_only=True)
class KeyedCounts(Mechanism[KeyedState]):
    """Publishes after every step, for each key, how many people contributed to it; and perhaps a sum and a mean.

    Answers are about one window, about the last n windows, or about all since the start. Keys are a public list, or
    whatever the people name: then a key is considered as soon as `min_people` people have contributed to it, and
    published where its noisy count reaches a threshold. Keys that are not considered cost no noise. Shards of keys are
    independent: each has a state of its own.

    Privacy:
        Unit: one person over the whole run, who contributes at most `contributions` times in all and at most once to a
        key in a step; or one event. Adding or removing, or replacing, as `neighbouring` says. The caller enforces the
        limits. (epsilon, delta)-DP with adaptive inputs. Public: the parameters, the steps, and the list of keys if it
        is public. The noise of a key is defined at all steps of the run, whenever the key was first seen.

    Accuracy:
        `stddev(step)` is exact. `error(step, beta, keys)`: with probability 1 - beta so many counts are within it at
        all of steps 1 .. `step`. `detection(step, beta, tests)`: a key with at least so many people is published with
        probability 1 - beta, in so many tests at once.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1); in (0, 0.1] if keys are not public. With 0 noise is discrete Laplace; for counts since the
            start, if there are many steps, in a k-ary tree, whose noise is not bound to the data: such a run must not
            be repeated on other data.
        over: "window": each step alone; n >= 2: the last n steps; "start": all steps.
        horizon: steps of the run, up to 2^20; may be None for "window" alone.
        contributions: of one person in the whole run at most, >= 1.
        contributions_per_key: of one person to one key in the whole run at most: 1 counts different people. None: one
            in each step. Changes nothing for "window".
        public_keys: whether the list of keys is public; it is then given to `initial_state`, and all are published.
        min_people: people that a key must have to be considered, >= 1: since the start, or for "window" in the window.
        max_value: None without sums, else the largest value of a contribution, >= 1; values are integers.
        signed: whether values are in [-max_value, max_value], and not in [0, max_value].
        value_share: part of the budget for sums, in (0, 1).
        unit: "person" or "event"; with "event", `contributions` is 1.
        neighbouring: "add_remove" or "replace_one".
        beta: probability that not all published error bounds hold.
        bounded_keys: of so many keys, at all steps; in each window by itself without a horizon.

    Raises:
        ValueError, TypeError: a field is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7)
        >>> round(counts.stddev(1), 1), counts.threshold(1)
        (11.3, 63)
        >>> given = KeyedStep(step=1, keys=np.array([7, 9], np.uint64), counts=np.array([500, 3]))
        >>> state, rows = counts.step(counts.initial_state(), given, SeededNoise(1))
        >>> rows.keys.tolist(), abs(rows.counts[0] - 500) < 60
        ([7], True)

    Source: derived here, docs/proofs/keyed_counts.md; thresholds on keys that nobody knew: Korolova et al. (2009), and
    for streams Zhang et al., Differentially Private Stream Processing at Scale (VLDB 2024).
    """

    epsilon: float
    delta: float = 0.0
    over: str | int = "window"
    horizon: int | None = None
    contributions: int = 1
    contributions_per_key: int | None = None
    public_keys: bool = False
    min_people: int = 1
    max_value: int | None = None
    signed: bool = False
    value_share: float = 0.5
    unit: str = "person"
    neighbouring: str = "add_remove"
    beta: float = 0.05
    bounded_keys: int = 10_000

    noise_label = "keyed counts"
    state_type: ClassVar[type[Any]] = KeyedState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        for name in ("public_keys", "signed"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, got {type(getattr(self, name)).__name__}")
        if checks.probability("delta", self.delta, zero=True) == 0 and not self.public_keys:
            raise ValueError("delta must be > 0 unless the list of items is public, got 0")
        if self.delta > LARGEST_DELTA and not self.public_keys:
            raise ValueError(f"delta must be <= {LARGEST_DELTA} unless the list of items is public, got {self.delta}")
        self._check_over()
        self._check_limits()
        checks.probability("value_share", self.value_share)
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))
        checks.probability("beta", self.beta)
        checks.integer("bounded_keys", self.bounded_keys, minimum=1)
        _ = self.law  # noise that cannot be drawn is refused now, not in mid-stream

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
        if self.contributions_per_key is not None:
            checks.integer("contributions_per_key", self.contributions_per_key, minimum=1)
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
            per_key=min(self.contributions, steps, self.contributions_per_key or steps),
            persons=2 if self.neighbouring == "replace_one" else 1,
            largest=self.max_value,
            signed=self.signed,
            value_share=self.value_share,
            min_people=None if self.public_keys else self.min_people,
        )

    @property
    def needs_people(self) -> bool:
        """Whether steps must state `people`: how many contribute to a key for the first time."""
        return self.bounds.span != 1 and self.bounds.per_key > 1 and (self.bounds.min_people or 1) > 1

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

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        return PrivacyGuarantee(
            unit=PrivacyUnit(what=self.unit),
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=sentences.limits(self.bounds, self.unit),
            public=("all parameters", "the number of windows", *(("the list of items",) if self.public_keys else ())),
            proof=f"docs/proofs/keyed_counts.md, Theorem {1 if self.public_keys else 2}",
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

    def error(self, step: int, beta: float, keys: int = 1, answer: str = "count") -> int:
        """Return z such that the answers about so many keys are within z at all of steps 1 .. `step`, but with beta."""
        tests = 2 * checks.integer("keys", keys, minimum=1) * self._step_number(step)
        noise = self._noise(answer)
        return noise.exceeded(noise.largest_step(step), checks.probability("beta", beta) / tests)

    def detection(self, step: int, beta: float, tests: int = 1) -> int:
        """Return the least count that is published, in so many tests at once, with probability 1 - beta."""
        tail = checks.probability("beta", beta) / checks.integer("tests", tests, minimum=1)
        return (self.threshold(step) or 0) + self._noise("count").exceeded(step, tail)

    @property
    def accuracy(self) -> Accuracy:
        """What holds, from public parameters alone.

        Its numbers are `stddev`, `threshold` and `detection_threshold` at the last step, `error_bound`, the largest one
        of counts in any row, and `sum_stddev` if there are sums.
        """
        last, noise = self.horizon or 1, self._noise("count")
        numbers = {
            "stddev": self.stddev(last),
            "threshold": self.threshold(last),
            "detection_threshold": None if self.public_keys else self.detection(last, self.beta, self.bounded_keys),
            "error_bound": self._row_bound(noise, noise.largest_step(last)),
        }
        if self.max_value is not None:
            numbers["sum_stddev"] = self.stddev(last, "sum")
        return Accuracy(
            error=float(numbers["detection_threshold"] or numbers["error_bound"] or 0),
            failure_probability=self.beta,
            claim=sentences.accuracy(
                self.unit,
                self.beta,
                self.bounded_keys,
                self.horizon,
                numbers,
                steady=self.bounds.span == 1,
                windows=self.over if isinstance(self.over, int) and self.bounds.span == 1 else None,
            ),
            numbers=numbers,
        )

    def _row_bound(self, noise: KeyNoise, step: int) -> int:
        """Return the bound in rows of a step: but with beta, all of `bounded_keys` keys at all steps are within it."""
        tests = 2 * len(self.law.noises) * self.bounded_keys * (self.horizon or 1)
        return noise.exceeded(step, self.beta / tests)

    def initial_state(self, keys: Words | None = None) -> KeyedState:
        """Return the state before the first step; of a shard of a public list, `keys`, uint64 (n,), distinct."""
        if keys is not None and not self.public_keys:
            raise ValueError("keys must not be given unless their list is public")
        chosen = np.unique(np.zeros(0, np.uint64) if keys is None else keys)
        return self._shard.start(chosen)

    def step(self, state: KeyedState, given: KeyedStep, noise: NoiseSource) -> tuple[KeyedState, KeyedRows]:
        """Add what one step brought to a shard of keys, and return what is published about it.

        Every shard must have its step whenever one of its keys may be published: without new contributions too, unless
        answers are about one window and keys are not public.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: steps do not increase, sums are beyond their limits, a key has more than 2^62 / max_value
                contributions in all, or it is not on the public list.
        """
        shard, values = self._shard, self._checked(state, given)
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

    def _fields(self, state: KeyedState) -> dict[str, Any]:
        return {"step": state.step} | state.waiting.fields("waiting") | state.counted.fields("counted")

    def _state(self, fields: dict[str, Any]) -> KeyedState:
        tables = (KeyTable.from_fields(prefix, fields) for prefix in ("waiting", "counted"))
        return KeyedState(fields["step"], *tables)

    def _described(self) -> Any:
        kind, values = super()._described()
        return [kind, {name: value for name, value in values.items() if name not in WORDINGS}]

    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return noise of its own. What was Gaussian under one label, and is Laplace now, has another."""
        source = super()._source(noise)
        changed = self.delta > 0 and self.bounds.span != 1 and any(n.is_laplace for n in self.law.noises)
        return source.derive("laplace") if changed else source

    @property
    def _shard(self) -> ShardSteps:
        return ShardSteps(self.law)

    def _checked(self, state: KeyedState, given: KeyedStep) -> Integers:
        """Return what came, int64 (answers, n), if it can be right. Messages quote no number of it."""
        if given.step <= state.step:
            raise ValueError(f"step must be > {state.step}, got {given.step}")
        if self.horizon is not None and given.step > self.horizon:
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {given.step}")
        self._check_people(given)
        if (given.sums is None) != (self.max_value is None):
            raise ValueError("sums must be given where max_value is, and only there")
        if given.sums is None or self.max_value is None:
            return given.counts[None, :]
        self._check_sums_fit(given.counts)
        largest = given.counts * self.max_value
        if np.any(given.sums > largest) or np.any(given.sums < (-largest if self.signed else 0)):
            raise ValueError("sums must be within counts times the limits of values")
        return np.stack([given.counts, given.sums])

    def _check_people(self, given: KeyedStep) -> None:
        """Refuse numbers of people that would let a key be considered with fewer people than are promised, or later."""
        if self.bounds.span == 1 and given.people is not None:
            raise ValueError("people must not be given for counts of one window: all of its contributions are theirs")
        if given.listed is not None and not self.lists(given.step):
            raise ValueError(f"listed must not be given at step {given.step}: no list of people is kept then")
        if self.needs_people and given.people is None:
            raise ValueError("people must be given where a person may contribute to a key again and min_people is > 1")

    def _rows(self, step: int, keys: Words, answers: Integers) -> KeyedRows:
        """Return rows with their error bounds."""
        return self._with_errors(step, keys, answers, self._errors(self.law.noises, step))

    def _errors(self, noises: Sequence[KeyNoise], step: int) -> list[Any]:
        """Return how far counts are off, `count_stddev`, `count_bound` and `count_spread`, and sums, the first two."""
        of_each = [[math.sqrt(noise.variance(step)), self._row_bound(noise, step)] for noise in noises]
        of_each[0].append(noises[0].exceeded(step, OUTSIDE / 2))
        return [error for errors in of_each for error in errors]

    def _with_errors(self, step: int, keys: Words, answers: Integers, errors: Sequence[Any]) -> KeyedRows:
        """Return rows with the errors that `_errors` gives, for all keys or for each."""
        deviation, bound, spread, *of_sums = errors
        counted = KeyedRows(
            step=step, keys=keys, counts=answers[0], count_stddev=deviation, count_bound=bound, count_spread=spread
        )
        if self.max_value is None:
            return counted
        means, mean_bounds = means_with_bounds(
            answers[1],
            answers[0],
            sum_bound=of_sums[1],
            count_bound=bound,
            low=-self.max_value if self.signed else 0,
            high=self.max_value,
        )
        return replace(
            counted,
            sums=answers[1],
            sum_stddev=of_sums[0],
            sum_bound=of_sums[1],
            means=means,
            mean_bounds=mean_bounds,
        )

    def _noise(self, answer: str) -> KeyNoise:
        """Return the noise of an answer."""
        return self.law.noises[ANSWERS.index(checks.one_of("answer", answer, ANSWERS[: len(self.law.noises)]))]

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        if checks.integer("step", step, minimum=1) > (self.horizon or step):
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {step}")
        return int(step)
