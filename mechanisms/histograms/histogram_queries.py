"""HistogramQueries: live column sums, extremes, quantiles and top-k, published after every step."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import ContinualCounter
from privstream.mechanisms.histograms.mechanism import HistogramMechanism, paper_delta
from privstream.mechanisms.histograms.partition import (
    AnchoredPartition,
    HenzingerSricharanSteinerPartition,
    Partition,
    PartitionState,
    advance,
    early_bound,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import GIVEN_FUNCTIONS, KEYED_NOISE
from typing_extensions import override


@dataclass(frozen=True)
class HistogramQuery(ABC):
    """One or more numbers that depend on the column sums alone."""

    def check(self, columns: int) -> None:  # noqa: B027 (most queries fit any number)
        """Raise ValueError if the query does not fit so many columns."""

    def describe(self) -> list[Any]:
        """Return the query as plain values."""
        return [type(self).__name__, *(getattr(self, field.name) for field in fields(self))]

    @abstractmethod
    def values(self, sums: Integers) -> Integers:
        """Return the values of the query's monotone 1-Lipschitz parts, (n, k), for sums (n, columns)."""


@dataclass(frozen=True)
class Histogram(HistogramQuery):
    """All column sums."""

    @override
    def values(self, sums: Integers) -> Integers:
        return sums


@dataclass(frozen=True)
class TopK(HistogramQuery):
    """The k largest column sums, largest first."""

    k: int

    def __post_init__(self) -> None:
        checks.integer("k", self.k, minimum=1)

    @override
    def check(self, columns: int) -> None:
        if self.k > columns:
            raise ValueError(f"k must be <= columns {columns}, got {self.k}")

    @override
    def values(self, sums: Integers) -> Integers:
        largest = np.partition(sums, sums.shape[1] - self.k, axis=1)[:, sums.shape[1] - self.k :]
        return np.sort(largest, axis=1)[:, ::-1]


@dataclass(frozen=True)
class Quantile(HistogramQuery):
    """The ceil(q columns)-th smallest column sum, q in (0, 1]."""

    q: float

    def __post_init__(self) -> None:
        if not 0 < checks.real("q", self.q) <= 1:
            raise ValueError(f"q must be in (0, 1], got {self.q}")

    @override
    def values(self, sums: Integers) -> Integers:
        rank = max(1, math.ceil(self.q * sums.shape[1] - 1e-9))
        return np.partition(sums, rank - 1, axis=1)[:, rank - 1 : rank]


@dataclass(frozen=True)
class MaxSum(Quantile):
    """The largest column sum."""

    q: float = 1.0


@dataclass(frozen=True)
class MinSum(HistogramQuery):
    """The smallest column sum."""

    @override
    def values(self, sums: Integers) -> Integers:
        return np.asarray(sums.min(axis=1, keepdims=True))


@dataclass(frozen=True)
class Monotone(HistogramQuery):
    """A query of the caller's: `function` maps int64 sums (n, columns), possibly negative, to numbers (n,).

    It must not decrease when a sum grows, change by at most 1 when no sum changes by more than 1, and be 0 at 0: the
    guarantee rests on it. Results are rounded down to integers, which keeps all this true.
    """

    function: Callable[[Integers], NDArray[np.generic]]
    name: str = "function"

    @override
    def describe(self) -> list[Any]:
        # Of the function only its name, which must differ between functions.
        return [type(self).__name__, self.name]

    @override
    def check(self, columns: int) -> None:
        # The function is tried at 0 and at the unit vectors.
        points = np.concatenate([np.zeros((1, columns), np.int64), np.eye(columns, dtype=np.int64)])
        found = self.values(points)[:, 0]
        if found[0] != 0 or found.min() < 0 or found.max() > 1:
            raise ValueError(f"{self.name} must be 0 at 0 and from 0 to 1 where one sum is 1")

    @override
    def values(self, sums: Integers) -> Integers:
        found = np.asarray(self.function(sums))
        if found.shape != (len(sums),):
            raise ValueError(f"{self.name} must return shape ({len(sums)},), got {found.shape}")
        return np.floor(found).astype(np.int64)[:, None]


def all_values(queries: tuple[HistogramQuery, ...], sums: Integers) -> Integers:
    """Return the values of all queries side by side, (n, k)."""
    return np.concatenate([query.values(sums) for query in queries], axis=1)


def columnwise(queries: tuple[HistogramQuery, ...]) -> bool:
    """Return whether growth of the values is growth of column sums, whatever the sums are."""
    return all(isinstance(query, Histogram) for query in queries)


MODES = ("anchored", "paper")
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)  # of epsilon for the counter
_EARLY = (0.01, 1.0, 8.0, 64.0)  # intervals that end too early, on average
_MOST_INTERVALS = 1 << 24
_DEFAULT_LARGEST = 100_000


@dataclass(frozen=True, kw_only=True)
class HistogramQueries(HistogramMechanism):
    """Answers queries on the column sums of a stream after every step, with one budget for the whole run.

    A continual counter is fed only when some query has grown by about K since it was last fed. Then its sums are
    published; until it is fed again, half of what can have been missed is added to them. The error depends on how large
    the answers are, hardly on the length of the stream. Mode `paper` has the constants of the source, for reference.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run; see
        `HistogramMechanism`. A query of the caller's (`Monotone`) must keep its promises: the guarantee rests on them.

    Accuracy:
        `error(largest, step)`: with probability 1 - beta no answer is off by more at any of the steps 1 .. `step` while
        no query exceeds `largest`.

    Attributes:
        queries: a tuple of `Histogram()`, `MaxSum()`, `MinSum()`, `Quantile(q)`, `TopK(k)`,
            `Monotone(function)`.
        mode: "anchored" or "paper".
        largest: largest value of a query that is expected, for the split of the budget; None for the horizon, or
            100,000. Not used for privacy or accuracy.
        counter_share: share of epsilon for the counter in mode `anchored`; None for a good one.
        slack: growth that each interval has for certain, in mode `anchored`; None for a good one.

    All other attributes are those of `HistogramMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = HistogramQueries(epsilon=1.0, columns=10, horizon=1 << 20, largest=1000)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [5] * 10, SeededNoise(1))
        >>> answers.shape
        (10,)

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 2 and Appendix D for "paper"; docs/proofs/anchored.md.
    """

    queries: tuple[HistogramQuery, ...] = (Histogram(),)
    mode: str = "anchored"
    largest: int | None = None
    counter_share: float | None = None
    slack: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("mode", self.mode, MODES)
        for name in ("largest", "slack"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), minimum=1)
        if self.counter_share is not None:
            checks.probability("counter_share", self.counter_share)
        if not isinstance(self.queries, tuple) or not self.queries:
            raise ValueError("queries must be a tuple of at least one query")
        for query in self.queries:
            query.check(self.columns)
        if self.mode == "paper":
            paper_delta(self.epsilon, self.delta)

    @property
    @override
    def proof(self) -> str:
        return f"docs/proofs/anchored.md, {'Theorem 1' if self.mode == 'anchored' else 'section 4'}"

    def error(self, largest: int, step: int | None = None) -> int:
        """Return the error of the class docstring up to `step`, while no query exceeds `largest`.

        Without `step` it is the horizon, or, if that is unknown, `largest`: as if each step added something.
        """
        checks.integer("largest", largest, minimum=0)
        last = (self.horizon or max(1, largest)) if step is None else checks.step(step, self.horizon or step)
        if self.mode == "paper":
            return self._paper.error_at(last, max(0, self._paper.queries * largest - 1))
        return math.ceil(self._anchored(*self._split).error(len(self._tracked) * largest, last))

    def error_bound(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at step 1, 2, ..: with probability 1 - beta, all of them at all steps.

        The bound depends on the step and on how many intervals have been closed, which the answers show anyway. See
        docs/proofs/live_histograms.md.
        """
        return self.partition.error_at(step, interval)

    @override
    def initial_state(self) -> PartitionState:
        return self._start(self.partition.first_base(self._values(np.zeros((1, self.columns), np.int64))[0]))

    @override
    def run(self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource) -> tuple[PartitionState, Integers]:
        rows = self._checked(state, matrix)
        source = self._source(noise)
        first = state
        state, closed = advance(self.partition, self._values, self.counter, state, rows, source)
        edges = [(0, first), *closed, (len(rows), state)]
        published = np.empty((len(rows), len(self._tracked)), np.int64)
        for (start, held), (end, _) in itertools.pairwise(edges):
            steps = first.step + 1 + np.arange(start, end)
            added = self._centred(steps, held.interval)
            if held is not first:
                added[:1] = 0  # where an interval has just ended nothing has been missed
            published[start:end] = self._values(held.anchor[None, :]) + added
        return state, published

    @cached_property
    @override
    def counter(self) -> ContinualCounter:
        if self.mode == "paper":
            return self._paper.counter
        return self._anchored(*self._split).counter

    @cached_property
    def partition(self) -> Partition:
        """What closes intervals."""
        if self.mode == "paper":
            return self._paper
        return self._anchored(*self._split)

    @cached_property
    def _paper(self) -> HenzingerSricharanSteinerPartition:
        return HenzingerSricharanSteinerPartition(
            epsilon=self.epsilon,
            delta=self.delta,
            beta=self.beta,
            queries=len(self._tracked),
            moves=self._moves,
            counter=self.interval_counter(1 / 3, paper_delta(self.epsilon, self.delta)),
        )

    def _anchored(
        self, share: float, slack: int, early: float, counter: Callable[[int], ContinualCounter] | None = None
    ) -> AnchoredPartition:
        """Return the partition that leaves the counter a share of epsilon; predictions make the counter themselves."""
        most = 1 + len(self._tracked) * self._expected // slack + early_bound(early, self.beta)
        most = min(most, _MOST_INTERVALS if self.horizon is None else self.horizon)
        most = math.ceil(2 ** (math.ceil(2 * math.log2(most)) / 2))  # few different ones, whose errors are remembered
        return AnchoredPartition(
            epsilon=self.epsilon * (1 - share) / (self.rows_per_unit or 1),
            beta=self.beta,
            horizon=self.horizon,
            slack=slack,
            early=early,
            intervals=most,
            counter=self.interval_counter(share, self.delta, most) if counter is None else counter(most),
            columnwise=columnwise(self.queries),
        )

    @property
    def _caveats(self) -> tuple[str, ...]:
        trusted = any(isinstance(query, Monotone) for query in self.queries)
        return (KEYED_NOISE, GIVEN_FUNCTIONS) if trusted else (KEYED_NOISE,)

    @property
    def _expected(self) -> int:
        return self.largest or self.horizon or _DEFAULT_LARGEST

    @cached_property
    def _split(self) -> tuple[float, int, float]:
        """The counter's share of epsilon, slack and early ends: those given, or the best of some by predicted error.

        Predictions take the error of a counter with all of epsilon, as it scales.
        """
        shares = _SHARES if self.counter_share is None else (self.counter_share,)
        growth, step = len(self._tracked) * self._expected, self.horizon or max(1, self._expected)
        slacks = [max(8, growth >> i) for i in range(15)] if self.slack is None else [self.slack]

        @cache
        def counter(most: int) -> ContinualCounter:
            return self.interval_counter(1.0, self.delta, most)

        def predicted(option: tuple[float, int, float]) -> float:
            return self._anchored(*option, counter).error(growth, step, counter_share=option[0])

        return min(itertools.product(shares, slacks, _EARLY), key=predicted)

    @cached_property
    def _tracked(self) -> Integers:
        """The values, at 0, of all queries' parts that intervals are about."""
        return np.asarray(self._values(np.zeros((1, self.columns), np.int64))[0])

    def _centred(self, steps: Integers, interval: int) -> Integers:
        """Return what is added to answers (n, k): in mode `anchored` half of what a value can have grown unseen."""
        if self.mode == "paper":
            return np.zeros((len(steps), 1), np.int64)
        half = cast(AnchoredPartition, self.partition).unseen(steps, interval) // 2
        return half[:, None]

    def _values(self, sums: Integers) -> Integers:
        return all_values(self.queries, sums)
