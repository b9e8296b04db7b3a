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
from privstream.mechanisms.accuracy import COMMON_STDDEV, OUTSIDE, Accuracy
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, calibrate
from privstream.mechanisms.keyed_counts.key_noise import KeyNoise, SharedNoise, ToeplitzNoise, TreeNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep, KeyTable
from privstream.mechanisms.keyed_counts.left_out import LeftOutLaw, Told, clips_of, limits_windows_alone
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import GaussianCurve, SlackCurve
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

ANSWERS = ("count", "sum")
NO_KEYS = np.zeros(0, np.uint64)
LARGEST_CONTRIBUTIONS = 1 << 30
LARGEST_VALUE = 1 << 40
MOST_SUM = 1 << 62
"""Two of these fit into 64 bits."""
LARGEST_DELTA = 0.1
LARGEST_FULL_SHARE = 0.5
USUAL_FULL_SHARE = 0.05
"""Of the budget, for what limits leave out."""
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
        contributions_per_window: of one person in one step at most, from 1 to `contributions`. None: as many. It makes
            no noise of counts smaller, but that of the totals that `full_share` pays for.
        contributions_per_key: of one person to one key in the whole run at most: 1 counts different people. None: one
            in each step. Changes nothing for "window".
        public_keys: whether the list of keys is public; it is then given to `initial_state`, and all are published.
        cells: number of keys on that list, of each stream: where a person may contribute to many of them in most steps,
            with delta > 0, counts of one window have a part of their noise in common. None: they never have.
        streams: of which each has that list.
        min_people: people that a key must have to be considered, >= 1: since the start, or for "window" in the window.
        max_value: None without sums, else the largest value of a contribution, >= 1; values are integers.
        signed: whether values are in [-max_value, max_value], and not in [0, max_value].
        value_share: part of the budget for sums, in (0, 1).
        full_share: part of the budget, a squared shift, for what limits leave out, in [0, 0.5]; 0 for none. Above 0 it
            needs a `horizon`, delta > 0, noise of one window, and the unit "person".
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
    contributions_per_window: int | None = None
    contributions_per_key: int | None = None
    public_keys: bool = False
    cells: int | None = None
    streams: int = 1
    min_people: int = 1
    max_value: int | None = None
    signed: bool = False
    value_share: float = 0.5
    full_share: float = 0.0
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
        self._check_full_share()
        checks.probability("beta", self.beta)
        checks.integer("bounded_keys", self.bounded_keys, minimum=1)
        _ = self.law, self.left_out  # noise that cannot be drawn is refused now, not in mid-stream

    def _check_full_share(self) -> None:
        if not self.full_share:
            return
        if checks.probability("full_share", self.full_share) > LARGEST_FULL_SHARE:
            raise ValueError(f"full_share must be <= {LARGEST_FULL_SHARE}, got {self.full_share}")
        if self.delta == 0 or self.horizon is None or self.bounds.span != 1 or self.unit != "person":
            raise ValueError(
                "full_share must be 0 without delta and a horizon, over more than a window, or for the unit of an "
                f"event, got {self.full_share}"
            )

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
        if self.contributions_per_key is not None:
            checks.integer("contributions_per_key", self.contributions_per_key, minimum=1)
        if checks.integer("min_people", self.min_people, minimum=1) > 1 and self.public_keys:
            raise ValueError(f"min_people must be 1 if the list of items is public, got {self.min_people}")
        checks.integer("streams", self.streams, minimum=1)
        if self.cells is not None and not self.public_keys:
            raise ValueError(f"cells must be None unless the list of items is public, got {self.cells}")
        if self.cells is not None:
            checks.integer("cells", self.cells, minimum=1)

    @cached_property
    def bounds(self) -> Bounds:
        """All that noise depends on beside epsilon and delta."""
        steps = self.horizon or 1
        return Bounds(
            span={"window": 1, "start": None}.get(self.over) if isinstance(self.over, str) else self.over,
            horizon=self.horizon,
            contributions=self.contributions,
            per_key=min(self.contributions, steps, self.contributions_per_key or steps),
            people=2 if self.neighbouring == "replace_one" else 1,
            largest=self.max_value,
            signed=self.signed,
            value_share=self.value_share,
            min_people=None if self.public_keys else self.min_people,
            full_share=float(self.full_share),
            per_window=self.contributions_per_window,
            cells=self.cells or 0,
            streams=self.streams,
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

    @cached_property
    def left_out(self) -> LeftOutLaw | None:
        """How what limits leave out is told, if it is."""
        return LeftOutLaw.of(self.law) if self.full_share else None

    def with_full_share(self) -> Self:
        """Return this mechanism with `USUAL_FULL_SHARE` for what limits leave out, where its noise is Gaussian.

        There noise of counts is 3% larger; where it is Laplace noise, it would be several times as large.

        Privacy: a function of public parameters.
        """
        curve = self.law.curve
        gaussian = isinstance(curve.curve if isinstance(curve, SlackCurve) else curve, GaussianCurve)
        return replace(self, full_share=USUAL_FULL_SHARE) if gaussian else self

    def tell(self, step: int, sums: Integers, told: Told, noise: NoiseSource) -> Told:
        """Return what has been told after a step of what limits leave out; see `LeftOutLaw.publish`."""
        assert self.left_out is not None
        return self.left_out.publish(self._step_number(step), sums, told, self._source(noise).derive("left out"))

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        theorem = 8 if self.common_stddev else 5 if self.full_share else 1 if self.public_keys else 2
        return PrivacyGuarantee(
            unit=PrivacyUnit(what=self.unit),
            neighbouring=self.neighbouring,
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

    @property
    def common_stddev(self) -> float:
        """Standard deviation of the part of the noise that all counts of a window of a stream have in common."""
        noise = self.law.noises[0]
        return math.sqrt(noise.common_variance(1)) if isinstance(noise, SharedNoise) else 0.0

    def threshold(self, step: int) -> int | None:
        """Return the least noisy count with which a key is published at `step`; None if the list of keys is public."""
        return self.law.threshold(self._step_number(step))

    def error(self, step: int, beta: float, keys: int = 1, answer: str = "count") -> int:
        """Return z such that the answers about so many keys are within z at all of steps 1 .. `step`, but with beta."""
        tests = 2 * checks.integer("keys", keys, minimum=1) * self._step_number(step)
        noise = self._noise(answer)
        return noise.tail_bound(noise.largest_step(step), checks.probability("beta", beta) / tests)

    def detection(self, step: int, beta: float, tests: int = 1) -> int:
        """Return the least count that is published, in so many tests at once, with probability 1 - beta."""
        tail = checks.probability("beta", beta) / checks.integer("tests", tests, minimum=1)
        return (self.threshold(step) or 0) + self._noise("count").tail_bound(step, tail)

    @property
    def accuracy(self) -> Accuracy:
        """What holds, from public parameters alone.

        Its numbers are `stddev`, `threshold` and `detection_threshold` at the last step, `error_bound`, the largest one
        of counts in any row, `sum_stddev` if there are sums, and `common_stddev` of noise in common.
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
        claim = accuracy_told(
            self.unit,
            self.beta,
            self.bounded_keys,
            self.horizon,
            numbers,
            steady=self.bounds.span == 1,
            windows=self.over if isinstance(self.over, int) and self.bounds.span == 1 else None,
        )
        if common := self.common_stddev:
            numbers[COMMON_STDDEV] = common
            where = "one window" if self.streams == 1 else "one window of a stream"
            claim += (
                f" Counts of {where} have a part of their noise in common, with a standard deviation of "
                f"{_written(common)}: no difference between items has it, but all counts there are too high by it, or "
                "too low, and a sum over items has it once for each."
            )
        if self.max_value is not None:
            low = -self.max_value if self.signed else 0
            claim += (
                f" Sums and means are of values clipped to {low:,} and {self.max_value:,}: what lies beyond is in none "
                "of them, and no interval holds it."
            )
        if self.left_out is not None:
            kept, left_out = self.left_out.stddevs
            numbers |= {"kept_stddev": kept, "left_out_stddev": left_out}
            claim += (
                f" The contributions of all people in a window that count are told with a standard deviation of "
                f"{_written(kept)}, those that limits leave out with one of {_written(left_out)}"
            )
            if (counter := self.left_out.counter) is not None:
                numbers |= {"used_up_stddev": (used_up := math.sqrt(counter.variance(last)))}
                claim += (
                    ", and the number of people who have used up their limit with one of "
                    f"{_written(used_up)} in the last window"
                )
            claim += "."
        return Accuracy(
            error=float(numbers["detection_threshold"] or numbers["error_bound"] or 0),
            failure_probability=self.beta,
            claim=claim,
            numbers=numbers,
        )

    def _row_bound(self, noise: KeyNoise, step: int) -> int:
        """Return the bound in rows of a step: but with beta, all of `bounded_keys` keys at all steps are within it."""
        tests = 2 * len(self.law.noises) * self.bounded_keys * (self.horizon or 1)
        return noise.tail_bound(step, self.beta / tests)

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

    def _fields(self, state: KeyedState) -> dict[str, Any]:
        return {"step": state.step} | state.waiting.fields("waiting") | state.counted.fields("counted")

    def _state(self, fields: dict[str, Any]) -> KeyedState:
        tables = (KeyTable.from_fields(prefix, fields) for prefix in ("waiting", "counted"))
        return KeyedState(fields["step"], *tables)

    def _described(self) -> Any:
        kind, values = super()._described()
        if self.contributions_per_window is None:  # as in runs of earlier versions
            del values["contributions_per_window"]
        if isinstance(self.law.noises[0], SharedNoise):
            values["noise"] = [f"{part:.6g}" for part in (self.stddev(1), self.common_stddev)]  # alike on every machine
        else:  # as in runs of earlier versions
            del values["cells"], values["streams"]
        if not self.full_share:
            return [kind, {name: value for name, value in values.items() if name not in (*WORDINGS, "full_share")}]
        totals: list[str] = []
        if self.left_out is not None:
            counter = self.left_out.counter
            people = [] if counter is None else [math.sqrt(counter.variance(self.horizon or 1))]
            totals = [f"{deviation:.6g}" for deviation in (*self.left_out.stddevs, *people)]
        return [kind, {name: value for name, value in values.items() if name not in WORDINGS} | {"totals": totals}]

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
        of_each[0].append(noises[0].tail_bound(step, OUTSIDE / 2))
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

    def summed(self, step: int, keys: Words, answers: Integers, windows: Integers) -> KeyedRows:
        """Return rows about several windows, of counts that are of one window each.

        Privacy: post-processing.

        Args:
            step: the last of these windows.
            keys: uint64 (n,).
            answers: sums of what was published of the windows, int64 (answers, n): counts, and perhaps sums of values.
            windows: how many they are, int64 (n,), at least 1.
        """
        most = int(windows.max(initial=1))
        noises = [self._summed_noise(answer, most) for answer in ANSWERS[: len(self.law.noises)]]
        distinct, place = np.unique(windows, return_inverse=True)
        errors = zip(*(self._errors(noises, number) for number in distinct.tolist()), strict=True)
        return self._with_errors(step, keys, answers, [np.array(column)[place] for column in errors])

    def _summed_noise(self, answer: str, windows: int) -> KeyNoise:
        """Return the noise of a sum of so many windows, or, in the first ones, of all; counts are of one window."""
        noise = KeyedCounts._noise(self, answer)
        assert isinstance(noise, ToeplitzNoise | SharedNoise)
        return noise.summed(windows) if windows > 1 else noise

    def _noise(self, answer: str) -> KeyNoise:
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
        people = given.counts if given.people is None else given.people
        index, here = counted.positions(given.keys)
        counted.add(index[here], people[here], values[:, here], slot)
        rest = np.flatnonzero(~here) if self._public else np.flatnonzero(~here & (given.counts > 0))
        if not len(rest):
            return waiting, counted
        if self._public:
            raise ValueError("keys must be on the public list that the state was made with")
        _, here = waiting.positions(given.keys[rest])
        unseen = np.sort(given.keys[rest[~here]])
        waiting = waiting.joined(KeyTable.empty(unseen, len(values), len(counted.recent), 0))
        index, _ = waiting.positions(given.keys[rest])
        waiting.add(index, people[rest], values[:, rest], slot)
        ready = waiting.people >= (self.law.bounds.min_people or 1)
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


def means_with_bounds(
    sums: Integers,
    counts: Integers,
    *,
    sum_bound: float | Integers,
    count_bound: float | Integers,
    low: float,
    high: float,
) -> tuple[Floats, Floats]:
    """Return means, and how far each is from the true one at most, both float64 (n,).

    Privacy: post-processing.

    Accuracy: if a true sum S and a true count N >= 1 are within the bounds of what is given, and the values were within
    [low, high], then S / N lies between the least and the largest quotient that these allow. The mean is the quotient
    of what is given, moved into that interval; its bound reaches to the farther end.

    Args:
        sums: noisy sums, shape (n,).
        counts: noisy counts, shape (n,).
        sum_bound: most by which a sum is off, one for all or one for each.
        count_bound: the same of counts.
        low: least value.
        high: largest value.

    Example:
        >>> means, bounds = means_with_bounds(
        ...     np.array([500, 30]), np.array([100, 2]), sum_bound=50, count_bound=10, low=0, high=10
        ... )
        >>> means.tolist(), [round(bound, 2) for bound in bounds.tolist()]
        ([5.0, 10.0], [1.11, 10.0])
    """
    counted = counts.astype(np.float64)
    fewest, most = np.maximum(counted - count_bound, 1.0), np.maximum(counted + count_bound, 1.0)
    least, largest = sums - sum_bound, sums + sum_bound
    lower = np.clip(np.where(least >= 0, least / most, least / fewest), low, high)
    upper = np.clip(np.where(largest >= 0, largest / fewest, largest / most), low, high)
    means = np.clip(sums / np.maximum(counted, 1.0), lower, upper)
    return means, np.maximum(upper - means, means - lower)


def list_told(bounds: Bounds) -> tuple[str, ...]:
    """Return what a person is limited to on the list of different people, as a sentence; nothing without one."""
    if not bounds.listed:
        return ()
    most = f"at most {bounds.listed:,} items in the whole run, once for each"
    return (f"On the list of different people a person counts for {most}.",)


def left_out_told(bounds: Bounds) -> tuple[str, ...]:
    """Return what a person is limited to in what is told of contributions that are left out; nothing without it."""
    if not bounds.full_share:
        return ()
    clips = clips_of(bounds)
    if limits_windows_alone(bounds):
        return (
            f"In the total of what counts a person counts at most {clips.kept:,} times in a window, and in that of "
            f"what limits leave out at most {clips.left_out:,} times.",
        )
    return (
        f"In the totals of what counts and of what limits leave out a person counts at most {clips.kept:,} times in a "
        f"window, and at most {clips.in_all:,} times in the whole run in the second one. A person uses up the limit at "
        "most once in the whole run.",
    )


def limits_told(bounds: Bounds, unit: str, *, lasting: bool = False) -> tuple[str, ...]:
    """Return sentences that say what a unit is limited to, and which items are considered; `lasting`: stay found."""
    if unit == "event":
        found = ["An event counts for one item in one window."]
    else:
        times = "once" if bounds.contributions == 1 else f"{bounds.contributions:,} times"
        window = ""
        if bounds.per_window is not None:
            window = f" at most {'once' if bounds.per_window == 1 else f'{bounds.per_window:,} times'} in a window,"
        found = [
            f"A person counts at most {times} in the whole run,{window} and at most once for an item in a window of a "
            "stream."
        ]
        if bounds.span != 1 and bounds.per_key < bounds.contributions:
            found.append(f"At most {bounds.per_key:,} of these {'are' if bounds.per_key > 1 else 'is'} for one item.")
    found += [*list_told(bounds), *left_out_told(bounds)]
    if bounds.largest is not None:
        low = -bounds.largest if bounds.signed else 0
        found.append(f"The value that is added for one of them is an integer from {low:,} to {bounds.largest:,}.")
    if bounds.min_people is not None and bounds.min_people > 1:
        where = "since the start" if bounds.span != 1 else "in one window" if lasting else "in the window"
        if bounds.listed:
            where += ", or in all windows up to a test of the list of people,"
        what = "found" if lasting else "published"
        found.append(f"Items with fewer than {bounds.min_people:,} {_plural(unit)} {where} are never {what}.")
    return tuple(found)


def accuracy_told(
    unit: str,
    beta: float,
    items: int,
    horizon: int | None,
    numbers: Mapping[str, float | None],
    *,
    steady: bool,
    windows: int | None = None,
) -> str:
    """Return what holds, as sentences: of so many items, with the numbers of `KeyedCounts.accuracy`.

    `steady`: they are the same in every window. `windows`: counts are sums over so many, and items are found by others.
    """
    last, there = ("", " in a window") if steady else (" in the last window",) * 2
    several = "" if windows is None else f" over {windows:,} windows"
    text = f"Counts{several} have a standard deviation of {_written(numbers['stddev'])}{last}"
    if "sum_stddev" in numbers:
        text += f", and sums one of {_written(numbers['sum_stddev'])}"
    together = "in one window" if horizon is None else f"in {horizon:,} window{'s' * (horizon > 1)}"
    text += (
        f". With probability {1 - beta:g}, all error bounds of {items:,} items {together} hold; those of counts are at "
        f"most {numbers['error_bound']:,}"
    )
    if (found := numbers["detection_threshold"]) is not None:
        text += f". With the same probability, each of {items:,} items is published that at least {found:,} "
        text += f"{_plural(unit)} have{there}"
    return f"{text}."


def _written(stddev: float | None) -> str:
    """Write a standard deviation, which is there, without an exponent where it is large."""
    assert stddev is not None
    return f"{stddev:.3g}" if stddev < 1000 else f"{stddev:,.0f}"


def _plural(unit: str) -> str:
    return "events" if unit == "event" else "people"
