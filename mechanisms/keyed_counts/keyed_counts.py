"""KeyedCounts: how many people each key has, of keys that are public or that nobody knew before."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, RUN, Accuracy, Limit
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, calibrate
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.running import IndependentNoise, RunningNoise
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

ANSWERS = ("count", "sum")
LARGEST_CONTRIBUTIONS = 1 << 30
LARGEST_VALUE = 1 << 40
MOST_SUM = 1 << 62
"""Two of these fit into 64 bits."""
LARGEST_ENTRY = 1 << 40
LARGEST_DELTA = 0.1
_NONE = np.zeros(0, np.int64)

MOST_SUMMED = 1024
"""Windows of a sum."""

LARGEST_SUMMED = 1 << 29
"""Largest value times windows of a sum: with 2^33 contributions to a key in each of them, sums are below 2^62."""


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedStep:
    """What came in one step for the keys of a shard, each key at most once; a key without a row has nothing new.

    Columns have shape (n,). `listed` is how many contributions are by people who count for the key on the list of
    different people from this step on: each at most once for a key, and for a limited number of keys in the whole run.
    """

    step: int  # public, >= 1; steps come in increasing order, and steps without news may be missing
    keys: Words  # their numbers, such as rows of a table or positions in a public list
    counts: Integers  # contributions of this step, >= 0; at most one of each person
    sums: Integers | None = None  # of the values of these contributions, each within its limits
    listed: Integers | None = None
    names: Words | None = None  # distinct, of all keys so far, by number: labels of their noise; else the numbers are


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """What is published about one step, in the order of keys."""

    step: int
    keys: Words  # (n,)
    answers: Integers  # noisy, (answers, n): counts, and sums of values if there are any
    earlier: tuple[KeyedRows, ...] = ()  # of earlier steps, in their order, of keys that were found at this one

    @property
    def counts(self) -> Integers:
        """The noisy counts, (n,)."""
        return np.asarray(self.answers[0])

    @property
    def sums(self) -> Integers | None:
        """The noisy sums, (n,), or None."""
        return np.asarray(self.answers[1]) if len(self.answers) > 1 else None


@dataclass(frozen=True, eq=False)
class KeyedState:
    """What outlives a step, in columns of keys by number. Private."""

    step: int  # the last one
    totals: Integers  # (answers, keys): true counts and perhaps sums, of the window or since the start
    counted: NDArray[np.bool_]  # whether a key has noise: it is public, or enough people have it
    published: NDArray[np.bool_]  # whether it has been published
    memory: Floats  # (rows, keys): what the noise remembers


@dataclass(frozen=True, kw_only=True)
class KeyedCounts(Mechanism[KeyedState]):
    """Publishes after every step, for each key, how many people contributed to it; and perhaps a sum.

    Keys are a public list; or, since the start, whatever the people name: then a key is considered as soon as
    `min_people` people have contributed to it, and published from where its noisy count reaches a threshold on. Keys
    that are not considered cost no noise. Keys are numbers that the caller gives, from 0 on, perhaps with names that
    noise depends on instead. Shards of keys are independent: each has a state of its own.

    Privacy:
        Unit: one person over the whole run, who contributes at most `contributions` times in all and at most once to a
        key in a step; or one event, added or removed. The caller enforces the limits. (epsilon, delta)-DP with adaptive
        inputs. Public: the parameters, the steps, and the list of keys if it is public.

    Accuracy:
        `stddev(step)` is exact. `detection(step, beta)`: a key with at least this number of people is published with
        probability 1 - beta.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, over="start", horizon=24, contributions=7)
        >>> given = KeyedStep(step=1, keys=np.array([7, 9], np.uint64), counts=np.array([500, 3]))
        >>> state, rows = counts.step(counts.initial_state(), given, SeededNoise(1))
        >>> rows.keys.tolist(), bool(abs(rows.counts[0] - 500) < 100)
        ([7], True)

    Source: derived here, docs/proofs/keyed_counts.md; thresholds on unknown keys: Korolova et al. (2009).
    """

    epsilon: float
    delta: float = 0.0  # in [0, 1); in (0, 0.1] if keys are not public; with 0 noise is discrete Laplace
    over: str | int = "window"  # or "start": all steps; or n in 2 .. 1024: errors are of sums of the last n windows
    horizon: int = 1  # steps of the run, up to 2^20 since the start
    contributions: int = 1  # of one person in the whole run at most; 1 for events
    contributions_per_window: int | None = None  # of one person in one step at most; it makes no noise smaller
    public_keys: bool = False  # whether the list of keys, given to `initial_state`, is public: all are published
    min_people: int = 1  # that a key must have to be considered
    max_value: int | None = None  # with sums: values are integers from 0 to it, and half of the budget is for them
    unit: str = "person"  # or "event"
    dropped: bool = False  # whether a tenth of the budget is for `dropped_share`; not for events
    possible: int | None = None  # contributions that a person can have, dropped ones too, by public parameters
    noise_label = "keyed counts"
    state_type: ClassVar[type[Any]] = KeyedState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.boolean("public_keys", self.public_keys)
        if checks.probability("delta", self.delta, zero=True) == 0 and not self.public_keys:
            raise ValueError("delta must be > 0 unless the list of items is public, got 0")
        if self.delta > LARGEST_DELTA and not self.public_keys:
            raise ValueError(f"delta must be <= {LARGEST_DELTA} unless the list of items is public, got {self.delta}")
        if isinstance(self.over, str):
            checks.one_of("over", self.over, ("window", "start"))
        else:
            checks.integer("over", self.over, minimum=2, maximum=MOST_SUMMED)
        self._check_keys()
        checks.integer("horizon", self.horizon, minimum=1)
        checks.one_of("unit", self.unit, ("person", "event"))
        checks.integer("contributions", self.contributions, minimum=1, maximum=LARGEST_CONTRIBUTIONS)
        largest = LARGEST_VALUE if self.windows == 1 else LARGEST_SUMMED // self.windows
        limits = {"contributions_per_window": self.contributions, "max_value": largest, "possible": None}
        for name, most in limits.items():
            if (value := getattr(self, name)) is not None:
                checks.integer(name, value, minimum=1, maximum=most)
        if self.unit == "event" and (self.contributions != 1 or self.contributions_per_window is not None):
            raise ValueError(f"contributions must be 1 for the unit of an event, got {self.contributions}")
        if checks.integer("min_people", self.min_people, minimum=1) > 1 and self.public_keys:
            raise ValueError(f"min_people must be 1 if the list of items is public, got {self.min_people}")
        checks.boolean("dropped", self.dropped)
        if self.dropped and self.unit == "event":
            raise ValueError("dropped must be false for the unit of an event")
        _ = self.law, self.parameters  # noise that cannot be drawn is refused now, not in mid-stream

    def _check_keys(self) -> None:
        """Refuse a kind of keys that this mechanism does not have."""
        if not self.public_keys and self.over != "start":
            raise ValueError(f"over must be start unless the list of items is public, got {self.over}: see FoundKeys")

    def _described(self) -> Any:
        kind, values = super()._described()
        values["over"] = "start" if self.over == "start" else "window"  # sums shape no noise
        if any(getattr(noise, "combined", False) for noise in self.law.noises):
            values["combined"] = True
        return [kind, values, [repr(noise.law) for noise in self.law.noises]]

    @property
    def windows(self) -> int:
        """Windows of which a count is the sum at most."""
        return self.over if isinstance(self.over, int) else 1

    @cached_property
    def bounds(self) -> Bounds:
        """All that noise depends on apart from epsilon and delta."""
        return Bounds(
            since_start=self.over == "start",
            horizon=self.horizon,
            contributions=self.contributions,
            largest=self.max_value,
            min_people=None if self.public_keys else self.min_people,
            listed=self.listed,
            dropped=self.dropped,
        )

    @property
    def listed(self) -> int:
        """Keys for which a person counts on a list of different people; 0 without one, and then steps have none."""
        return 0

    @cached_property
    def law(self) -> KeyLaw:
        """Noise and thresholds."""
        return calibrate(float(self.epsilon), float(self.delta), self.bounds)

    @cached_property
    def dropped_share(self) -> DroppedShare | None:
        """What releases the share of contributions that limits drop; None where nothing is released."""
        return DroppedShare.of(self.contributions, self.law.curve, self.possible) if self.dropped else None

    def with_dropped_share(self, possible: float) -> Self:
        """Return this mechanism with that release: noise of counts is 5% larger then, and 11% if it is Laplace noise.

        `possible` is as the field, or `math.inf`; no more than can count releases nothing. Privacy: a function of
        public parameters.
        """
        if possible <= self.contributions:
            return self
        return replace(self, dropped=True, possible=None if math.isinf(possible) else int(possible))

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences that say what a unit is limited to, and which items are published."""
        window = f", {self.contributions_per_window:,} in a window" if self.contributions_per_window else ""
        once = "1 per item" if self.over == "start" else "1 per item and window"
        most = Limit("", self.contributions, "contribution", RUN)
        found = [f"A person has at most {most}{window}, {once}."]
        if self.unit == "event":
            found = ["An event counts for one item in one window."]
        if self.bounds.listed:
            found.append(f"On the list of different people a person has at most {self.bounds.listed:,} items in all.")
        if self.dropped_share is not None:
            found.append(f"At most {self.dropped_share.clip:,} dropped contributions per person are counted.")
        if self.max_value is not None:
            found.append(f"The value of a contribution is an integer from 0 to {self.max_value:,}.")
        if self.min_people > 1:
            found.append(f"An item needs {self.min_people:,} {self._units} to be published for the first time.")
        return tuple(found)

    @property
    def _units(self) -> str:
        return "events" if self.unit == "event" else "people"

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        theorem = 1 if self.public_keys else 2
        return PrivacyGuarantee(
            unit=PrivacyUnit(what=self.unit),
            epsilon=self.epsilon,
            delta=self.delta,
            limits=self.limits,
            public=("all parameters", "the number of windows", *(("the list of items",) if self.public_keys else ())),
            proof=f"docs/proofs/keyed_counts.md, Theorem {theorem}",
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
            horizon=self.horizon,
            curve=self.law.whole_curve,
        )

    def stddev(self, step: int, answer: str = "count") -> float:
        """Return the standard deviation of the noise on counts, or on answers "sum", at `step`."""
        return math.sqrt(self._noise(answer, self.windows).variance(checks.step(step, self.horizon)))

    def threshold(self, step: int) -> int | None:
        """Return the least noisy count with which a key is published at `step`; None if the list of keys is public."""
        return self.law.threshold(checks.step(step, self.horizon))

    def detection(self, step: int, beta: float) -> int:
        """Return the least count that is published with probability 1 - beta."""
        return (self.threshold(step) or 0) + self.law.noises[0].tail_bound(step, checks.probability("beta", beta))

    @property
    def accuracy(self) -> Accuracy:
        """What holds, from public parameters alone.

        Its numbers are `stddev`, `threshold`, `detection_threshold`, with which a key is published in 95 of 100 cases,
        and `margin`, half of the 95% interval of a count, at the last step; `sum_stddev` if there are sums.
        """
        last, sums = self.horizon, {} if self.max_value is None else {"sum_stddev": self.stddev(self.horizon, "sum")}
        numbers: dict[str, Any] = {
            "stddev": self.stddev(last),
            "threshold": self.threshold(last),
            "detection_threshold": None if self.public_keys else self.detection(last, OUTSIDE),
            "margin": self._noise("count", self.windows).tail_bound(last, OUTSIDE / 2),
        }
        deviation = numbers["stddev"]
        claim = f"Counts have a standard deviation of {deviation:,{'.0f' if deviation >= 1000 else '.3g'}}."
        if (found := numbers["detection_threshold"]) is not None:
            claim += f" An item of {found:,} {self._units} in a window is published with a probability of 95%."
        error = float(found or numbers["margin"])
        return Accuracy(error=error, failure_probability=OUTSIDE, claim=claim, numbers=numbers | sums)

    def initial_state(self, keys: Words | None = None) -> KeyedState:
        """Return the state before the first step; of a shard of a public list, `keys`, uint64 (n,), distinct."""
        if keys is not None and not self.public_keys:
            raise ValueError("keys must not be given unless their list is public")
        public = np.zeros(0, np.int64) if keys is None else keys.astype(np.int64)
        number, rows = 1 + int(public.max(initial=-1)), sum(noise.rows for noise in self.law.noises)
        totals = np.zeros((len(self.law.noises), number), np.int64)
        state = KeyedState(0, totals, np.zeros(number, np.bool_), np.zeros(number, np.bool_), np.zeros((rows, number)))
        state.counted[public] = True
        return state

    def step(self, state: KeyedState, given: KeyedStep, noise: NoiseSource) -> tuple[KeyedState, KeyedRows]:
        """Add what one step brought to a shard of keys, and return what is published about it.

        Every shard must have its step whenever one of its keys may be published, without new contributions too.

        A key waits, without noise, until enough people have it; then it is counted for good. Its noise is that of all
        steps since the start: what it would remember of the steps before is drawn when it starts to be counted.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: steps do not increase, a column has another shape, type or range, a key has more than
                2^62 / max_value contributions in all, or it is not on the public list. No message has a key or a
                number of it.
        """
        keys, values, names = self._checked(given, state.step, len(state.counted))
        more, source = len(names) - len(state.counted), self._source(noise)
        after = KeyedState(
            given.step,
            np.pad(state.totals, ((0, 0), (0, more))),
            np.pad(state.counted, (0, more)),
            np.pad(state.published, (0, more)),
            np.pad(state.memory, ((0, 0), (0, more))),
        )
        totals, counted, published = after.totals, after.counted, after.published
        if self.public_keys and not counted[keys].all():
            raise ValueError("keys must be on the public list that the state was made with")
        for step in range(state.step + 1, given.step if len(after.memory) else 0):
            self._noises(after, step, names, source)
        if self.over != "start":
            totals[:] = 0
        totals[:, keys] += values
        most = MOST_SUM // (self.max_value or 1)
        if np.any(totals[0] > most):  # before sums of 64 bits could be wrong
            raise ValueError(f"a key must have at most {most:,} contributions, since their values are up to max_value")
        ready = totals[0] >= self.min_people  # a contribution each
        fresh = np.flatnonzero(ready & ~counted)
        counted |= ready
        some = np.flatnonzero(counted)
        answers = totals[:, some] + self._noises(after, given.step, names, source, fresh)
        published[some] |= self.public_keys or answers[0] >= self.law.threshold(given.step)
        chosen = published[some]
        return after, KeyedRows(given.step, some[chosen].astype(np.uint64), answers[:, chosen])

    def _noises(
        self, state: KeyedState, step: int, names: Words, source: NoiseSource, fresh: Integers = _NONE
    ) -> Integers:
        """Return the noise of one step, int64 (answers, keys considered), and bring memory up to date.

        `fresh` keys, considered from this step on, first get the memory of noise that they had all the time.
        """
        keys, noises, first = np.flatnonzero(state.counted), [], 0
        for answer, noise, totals in zip(ANSWERS, self.law.noises, state.totals, strict=False):
            rows, own = state.memory[first : first + noise.rows], source.derive(answer)
            first += noise.rows
            if len(fresh):
                rows[:, fresh] = noise.remember(rows[:, fresh], step, names[fresh], own)
            memory = rows[:, keys]
            noises.append(noise.advance(memory, step, names[keys], totals[keys], own))
            rows[:, keys] = memory
        return np.stack(noises)

    def _checked(self, given: KeyedStep, last: int, known: int) -> tuple[Integers, Integers, Words]:
        """Return keys and what came to them, int64 (n,) and (answers, n), and names of all keys, if they can be right.

        `last` is the step before, `known` how many keys there were. Messages quote no number of what came.
        """
        if given.step <= last:
            raise ValueError(f"step must be > {last}, got {given.step}")
        if given.step > self.horizon:
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {given.step}")
        if (given.sums is None) != (self.max_value is None):
            raise ValueError("sums must be given where max_value is, and only there")
        if (given.listed is None) != (self.bounds.listed == 0):
            raise ValueError("listed must be given if there is a list of different people, and only then")
        for name in ("keys", "counts", "sums", "listed"):
            column, dtype = getattr(given, name), np.dtype(np.uint64 if name == "keys" else np.int64)
            if column is None and name in ("sums", "listed"):
                continue
            if not isinstance(column, np.ndarray) or column.dtype != dtype or column.shape != (np.size(given.keys),):
                found = f"{column.dtype} {column.shape}" if isinstance(column, np.ndarray) else type(column).__name__
                raise TypeError(f"{name} must be an array of {dtype}, one for each key, got {found}")
        keys, counts, sums = given.keys.astype(np.int64), given.counts, given.sums
        most = min(LARGEST_ENTRY, MOST_SUM // (self.max_value or 1))
        if np.any(counts < 0) or np.any(counts > most):
            raise ValueError(f"counts must be from 0 to {most:,}")
        if sums is not None and (np.any(sums < 0) or np.any(sums > counts * (self.max_value or 0))):
            raise ValueError("sums must be within counts times the limits of values")
        if given.listed is not None and (np.any(given.listed < 0) or np.any(given.listed > counts)):
            raise ValueError("listed must be from 0 to counts")
        if len(np.unique(keys)) < len(keys):
            raise ValueError("keys must be distinct")
        number = max(known, 1 + int(keys.max(initial=-1)))
        names = np.arange(number, dtype=np.uint64) if given.names is None else given.names
        if names.dtype != np.uint64 or len(names) < number:
            raise ValueError("names must be uint64, one for each key")
        return keys, np.stack([counts] if sums is None else [counts, sums]), names

    def margins(self, windows: Integers) -> Integers:
        """Return how far counts, and sums of values, are off at most, with probability 0.95 each, int64 (answers, n).

        They are sums over numbers of windows, at least 1: since the start of noise that knows of it.
        """
        distinct, place = np.unique(windows, return_inverse=True)
        found = np.empty((len(self.law.noises), len(distinct)), np.int64)
        for column, number in enumerate(distinct.tolist()):
            for row, answer in enumerate(ANSWERS[: len(found)]):
                noise = self._noise(answer, 1 if self.over == "start" else number)
                found[row, column] = noise.tail_bound(number, OUTSIDE / 2)
        return found[:, place]

    def _noise(self, answer: str, windows: int) -> RunningNoise:
        """Return the noise of an answer, of a sum over a number of windows."""
        noise = self.law.noises[ANSWERS.index(checks.one_of("answer", answer, ANSWERS[: len(self.law.noises)]))]
        if windows == 1:
            return noise
        assert isinstance(noise, IndependentNoise)
        return noise.summed(windows)
