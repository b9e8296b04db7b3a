"""Live column sums, what depends on them, and flags of columns that have passed a threshold, after every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.continual.queries import Histogram, HistogramQuery, Monotone
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import (
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    SymmetricNoise,
    series_share,
)
from privstream.mechanisms.noise.running import EpochNoise, sums_noise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PointCurve, gaussian_sigma, largest_shift
from privstream.mechanisms.privacy.guarantee import GIVEN_FUNCTIONS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON
from typing_extensions import override

LARGEST_COLUMNS = 1 << 24
LARGEST_ENTRY = 1 << 31
LARGEST_TOTAL = 1 << 60
LARGEST_THRESHOLD = 1 << 53
"""Larger ones are no numbers that sums can be compared with in floating point."""

LARGEST_PAPER_EPSILON = 3.0  # the Gaussian mechanism of the paper's Appendix D is analysed below epsilon / 3 = 1
MODES = ("anchored", "paper")
_TYPICAL_STEPS = 1 << 20  # for the split of the budget between the two noises
_EARLY = 64.0  # intervals that may end before a query has grown, on average
_SUMS, _ENDS, _TAU = 0.8, 0.1, 0.1  # shares of a failure probability
_SUMS_SHARE = 0.65  # of epsilon, for the published sums
_SLACKS = 15  # that are compared
_MOST_INTERVALS = 1 << 20
_DEFAULT_LARGEST = 100_000


def bound_labels(noise: NoiseSource, labels: Integers, values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return labels that depend on 64-bit numbers too, of any kind."""
    return noise.bind(labels.astype(np.uint64), np.ascontiguousarray(values).view(np.int64))


def early_ends(beta: float) -> int:
    """Return how many intervals end early at most: Chernoff's bound for a sum of trials, `_EARLY` on average."""
    most = math.floor(_EARLY)
    while (most + 1) * math.log((most + 1) / _EARLY) - (most + 1 - _EARLY) < -math.log(_ENDS * beta):
        most += 1
    return most


@dataclass(frozen=True, kw_only=True)
class AnchoredPartition:
    """End an interval iff max_i [q_i(s + c) - q_i(s)] + mu_t > K + tau_j: geometric noises, tau for each interval.

    epsilon = 1 / b_tau + 1 / b_mu, the cost of one row, with scales b: docs/proofs/anchored.md. All other parameters
    are for accuracy.
    """

    epsilon: float  # of the tests
    beta: float  # failure probability of all bounds
    noise: EpochNoise  # of the published sums
    columns: int  # of the sums
    horizon: int | None
    slack: int  # growth of each interval that does not end early
    intervals: int  # how many are expected
    columnwise: bool  # whether growth of the values is growth of column sums, whatever the sums are

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scales of mu and tau for which the sum of their bounds is least."""
        test = math.sqrt(-math.log(self._early_at(_TYPICAL_STEPS)))
        interval = math.sqrt(-math.log(_TAU * self.beta * self._share(self.intervals)))
        total = (test + interval) / self.epsilon * (1 + 1e-12)
        return total / test, total / interval

    def _early_at(self, step: int) -> float:
        """Return the probability that a step ends an interval early; all together at most `_EARLY`."""
        return min(0.5, _EARLY / self.horizon if self.horizon else _EARLY * series_share(step))

    def _share(self, number: int) -> float:
        """Return the share of a failure probability for interval 1, 2, ..: half for the expected ones, evenly."""
        return (0.5 / self.intervals if number <= self.intervals else 0.0) + 0.5 * series_share(number)

    def anchor_bound(self, interval: int) -> int:
        """Return the largest error of the sums published after a number of intervals, of each set of sums."""
        tail = _SUMS * self.beta * self._share(interval) / (2 * self.columns) if interval else 0.0
        return self.noise.tail_bound(interval, tail) if interval else 0

    def threshold(self, step: int, interval: int) -> int:
        """Return K: intervals then have some growth of at least `slack`, each but few."""
        early = max(0, math.ceil(-self.scales[0] * math.log(self._early_at(step))) - 1)
        feigned = 0 if self.columnwise else 2 * self.anchor_bound(interval)  # growth that is the error of the sums
        return early + feigned + self.slack

    def unseen(self, step: int, interval: int) -> int:
        """Return how far a query can have grown within an interval that is open: K and a bound of tau - mu."""
        mu, tau = self.scales
        both = -math.expm1(-1 / mu) / -math.expm1(-1 / mu - 1 / tau)  # Pr[tau >= mu]
        passed = math.ceil(tau * math.log(both / (_TAU * self.beta * self._share(interval + 1)))) - 1
        return self.threshold(step, interval) + max(0, passed)

    def added(self, step: int, interval: int) -> int:
        """Return what is added to the last sums while an interval is open: half of what can be unseen."""
        return self.unseen(step, interval) // 2

    def error_at(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at step 1, 2, .., after a number of intervals, which answers show."""
        return self.anchor_bound(interval) + (self.unseen(step, interval) + 1) // 2

    def error(self, growth: int, step: int) -> int:
        """Return the error up to `step`, up to which all queries together have grown by `growth`."""
        most = growth // self.slack + early_ends(self.beta)
        most = max(1, most if self.horizon is None else min(most, self.horizon))
        sums = self.noise.tail_bound(most, _SUMS * self.beta / (2 * self.columns * most), so_far=True)
        feigned = 0 if self.columnwise else 2 * (sums - self.anchor_bound(most))
        return sums + (self.unseen(step, most) + feigned + 1) // 2

    def first_base(self, values: Integers) -> Floats:
        """Return what the queries are compared with at the start, given their values at 0."""
        return values.astype(np.float64)

    def level(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return what `gap`, the largest of values - base, must exceed to end the interval that has this noise."""
        mu, tau = map(Geometric, self.scales)
        level = tau.draw(noise.derive("anchored tau"), np.array([interval], np.uint64))[0]
        source = noise.derive("anchored mu")
        drawn = mu.draw(source, bound_labels(source, np.array([step]), np.array([gap])))[0]
        return float(self.threshold(step, interval) + level - drawn)

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the base after an interval, from the values at its end, true ones (private) and published ones."""
        return anchored.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class PaperPartition:
    """Algorithm 2 or, with thresholds, Algorithm 9; with delta > 0, of Appendix D. See `AnchoredPartition`.

    The listing has `moves` = 1; all its noise is scaled by `moves`. What it leaves open, or has wrong, is read as in
    docs/proofs/errata.md. All noise is of integers, which exceeds a bound of continuous noise by half of one.
    """

    epsilon: float  # of everything
    delta: float  # of the comparisons and the sums
    beta: float
    noise: EpochNoise
    columns: int
    queries: int  # k; with thresholds the number of columns
    moves: int  # rows of a unit
    fixed: tuple[int, ...] = ()  # thresholds, which become infinite when they are passed; those of Algorithm 2 rise

    def _beta(self, number: int) -> float:
        """Return beta_t, for t = 1, 2, .."""
        return 6 * self.beta / (math.pi * number) ** 2

    def mu_bound(self, step: int) -> float:
        """Return alpha_mu^t."""
        return 12 * self.moves / self.epsilon * math.log(2 / self._beta(step)) + 0.5

    def tau_bound(self, number: int) -> float:
        """Return alpha_tau^j, j = 1, 2, .."""
        return 6 * self.moves / self.epsilon * math.log(6 / self._beta(number)) + 0.5

    @property
    def gamma(self) -> SymmetricNoise:
        """The noise of the comparisons that decide which thresholds rise: docs/proofs/anchored.md, section 3."""
        if self.delta == 0:
            return _laplace(3 * self.queries * self.moves / self.epsilon)
        spent = math.log(4 / self.delta) + 2 * self.epsilon / 3
        published = self.moves * math.sqrt(18 * self.queries * spent / self.epsilon**2)
        share = 1.25 * math.exp(-spent)  # of delta, for which that is the classic Gaussian mechanism
        enough = gaussian_sigma(largest_shift(self.epsilon / 3, share), self.moves * math.sqrt(self.queries))
        return DiscreteGaussian(max(published, enough))

    def gamma_bound(self, number: int) -> float:
        """Return alpha_gamma^j."""
        gamma, rest = self.gamma, math.log(6 * self.queries / self._beta(number))
        if isinstance(gamma, DiscreteLaplace):
            return gamma.scale * rest + 0.5
        return gamma.sigma * math.sqrt(2 * (rest + math.log(2)))  # it is subgaussian

    def sums_bound(self, number: int) -> int:
        """Return alpha_H^j."""
        return self.noise.tail_bound(number, self._beta(number) / (12 * self.columns * number), so_far=True)

    def margin(self, step: int, number: int) -> float:
        """Return C_j^t."""
        return self.mu_bound(step) + self.tau_bound(number) + self.gamma_bound(number)

    def rise(self, step: int, number: int) -> float:
        """Return K_j^t; 0 for thresholds that are fixed."""
        return 0.0 if self.fixed else 3 * (self.margin(step, number) + self.sums_bound(number))

    def added(self, step: int, interval: int) -> int:
        """Return nothing: the last sums are published as they are."""
        return 0

    def error_at(self, step: int, interval: int) -> int:
        """Return the error; of flags: how far the sum of one that is up is below its threshold, and the reverse."""
        number = interval + 1
        margin, sums = self.margin(step, number), self.sums_bound(number)
        rising = 0.0 if self.fixed else self.rise(step, number) + margin + 2 * sums
        return math.ceil(rising + margin + self.gamma_bound(number) + sums) + 1

    def error(self, growth: int, step: int) -> int:
        """Return the error up to `step`, up to which all queries together have grown by `growth`."""
        return self.error_at(step, max(0, growth - 1))

    def first_base(self, values: Integers) -> Floats:
        """Return L - K at the start."""
        return np.array(self.fixed, np.float64) if self.fixed else np.zeros(values.shape)

    def level(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return K + tau - mu."""
        return self.rise(step, interval + 1) + self.test(step, interval, gap, noise)

    def test(self, step: int, interval: int, gap: float, noise: NoiseSource) -> float:
        """Return tau - mu."""
        tau = _laplace(6 * self.moves / self.epsilon).draw(noise.derive("paper tau"), np.array([interval], np.uint64))
        source = noise.derive("paper mu")
        labels = bound_labels(source, np.array([step]), np.array([gap]))
        return float(tau[0] - _laplace(12 * self.moves / self.epsilon).draw(source, labels)[0])

    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return higher thresholds, or none, of the queries that look close to theirs."""
        source, levels = noise.derive("paper gamma", step), base + self.rise(step, interval + 1)
        gamma = self.gamma.draw(source, bound_labels(source, np.arange(len(values)), values))
        crossed = values + gamma > levels - self.margin(step, interval + 1)
        return np.where(crossed, math.inf if self.fixed else levels, base)


def _laplace(scale: float) -> DiscreteLaplace:
    return DiscreteLaplace(math.nextafter(scale, math.inf))


@dataclass(frozen=True, eq=False, kw_only=True)
class HistogramState:
    """What outlives a step."""

    step: int
    interval: int  # intervals that have ended
    totals: Integers  # true sums at the end of the last one; private
    counts: Integers  # true sums since; private
    anchor: Integers  # the sums that were published then
    memory: Floats  # what their noise remembers; private
    base: Floats  # what each query is compared with
    raised: NDArray[np.bool_]  # which flags are up; empty without flags


@dataclass(frozen=True, kw_only=True)
class HistogramQueries(Mechanism[HistogramState]):
    """Answers queries on the column sums of a stream after every step, or raises flags, with one budget for the run.

    Sums are published only when some query has grown by about K since they last were; until then half of what can have
    been missed is added to them. The error depends on how large the answers are, hardly on the length of the stream.
    With `thresholds` it publishes a flag for each column in place of answers: whether its estimate has reached its
    threshold; flags stay up. In mode "paper" that is AboveThreshold in many dimensions.

    Privacy:
        Unit: one row over the whole run, or one person with at most `rows_per_unit` rows in it. Rows have entries 0
        or 1, at most `row_columns` ones; a step adds any number of them, given as their sum. Public: all fields, the
        number of steps. Inputs may depend on all answers. A query of the caller's (`Monotone`) must keep its promises.

    Accuracy:
        `error(largest, step)`: with probability 1 - beta no answer is off by more at any of the steps 1 .. `step` while
        no query exceeds `largest`. `error_bound(step, interval)`: no answer is off by more at that step; a flag that is
        up has a sum of at least its threshold less that, and one that is down has a sum below its threshold plus that.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = HistogramQueries(epsilon=1.0, columns=10, horizon=1 << 20, largest=1000)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [5] * 10, SeededNoise(1))
        >>> answers.shape
        (10,)

    Source: Henzinger, Sricharan, Steiner (2023), Algorithms 2 and 9, and Appendix D; docs/proofs/anchored.md.
    """

    epsilon: float  # finite and > 0; below 3 in mode "paper" with delta > 0
    delta: float = 0.0  # in [0, 1)
    columns: int
    horizon: int | None = None  # steps of the whole run at most
    row_columns: int | None = None  # ones in a row at most
    rows_per_unit: int | None = None  # rows of one person at most, many at one step too; None: the unit is one row
    beta: float = 0.05  # failure probability of the accuracy
    queries: tuple[HistogramQuery, ...] = (Histogram(),)
    mode: str = "anchored"  # or "paper" for the constants of the source
    largest: int | None = None  # value of a query that is expected, for the length of intervals alone
    thresholds: tuple[int, ...] | None = None  # for flags, one from 1 to 2**53 for each column; public
    noise_label = "histogram mechanism"
    state_type = HistogramState

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon, largest=1e5)
        checks.probability("delta", self.delta, zero=True)
        checks.probability("beta", self.beta)
        checks.integer("columns", self.columns, minimum=1, maximum=LARGEST_COLUMNS)
        for name in ("horizon", "rows_per_unit", "row_columns", "largest"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), minimum=1)
        if self.row_columns is not None and self.row_columns > self.columns:
            raise ValueError(f"row_columns must be <= columns {self.columns}, got {self.row_columns}")
        checks.one_of("mode", self.mode, MODES)
        if self.mode == "paper" and self.delta > 0 and self.epsilon >= LARGEST_PAPER_EPSILON:
            raise ValueError(f"epsilon must be < 3 in mode paper with delta > 0, got {self.epsilon}")
        if not isinstance(self.queries, tuple) or not self.queries:
            raise ValueError("queries must be a tuple of at least one query")
        for query in self.queries:
            query.check(self.columns)
        if self.thresholds is not None:
            if not isinstance(self.thresholds, tuple) or len(self.thresholds) != self.columns:
                raise ValueError(f"thresholds must be a tuple of {self.columns} integers")
            for threshold in self.thresholds:
                checks.integer("thresholds", threshold, minimum=1, maximum=LARGEST_THRESHOLD)
            if self.queries != (Histogram(),):
                raise ValueError("queries must be the histogram alone where there are thresholds")
        _ = self.partition  # checks that there is such noise

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        ones = "any number of ones" if self.row_columns is None else f"at most {self.row_columns:,} ones"
        limits = [f"A row is added at one step, has {self.columns:,} columns and {ones}."]
        if self.rows_per_unit is not None:
            limits.append(f"A person has at most {self.rows_per_unit:,} rows in the whole run, at any steps.")
        place = "Theorem 1" if self.mode == "anchored" else f"section {4 if self.thresholds else 3}"
        trusted = any(isinstance(query, Monotone) for query in self.queries)
        return PrivacyGuarantee(
            unit=EVENT if self.rows_per_unit is None else PERSON,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=tuple(limits),
            public=("all parameters", "the number of steps"),
            proof=f"docs/proofs/anchored.md, {place}",
            caveats=(KEYED_NOISE, GIVEN_FUNCTIONS) if trusted else (KEYED_NOISE,),
            horizon=self.horizon,
            curve=PointCurve(at_epsilon=self.epsilon, at_delta=self.delta),
        )

    @cached_property
    def partition(self) -> AnchoredPartition | PaperPartition:
        """What ends intervals."""
        if self.mode == "paper":  # a third of epsilon each for sums, tests and comparisons
            return PaperPartition(
                epsilon=self.epsilon,
                delta=self.delta,
                beta=self.beta,
                noise=self._noise(1 / 3, self.delta / 2 * math.exp(-2 * self.epsilon / 3)),
                columns=self.columns,
                queries=self._tracked,
                moves=self.rows_per_unit or 1,
                fixed=self.thresholds or (),
            )
        growth, step = self._tracked * self.expected, self.horizon or self.expected
        slacks = sorted({max(8, growth >> place) for place in range(_SLACKS)})
        return min(map(self._anchored, slacks), key=lambda partition: partition.error(growth, step))

    def _anchored(self, slack: int) -> AnchoredPartition:
        """Return the partition whose intervals have that much growth."""
        most = 1 + self._tracked * self.expected // slack + early_ends(self.beta)
        most = min(most, self.horizon or _MOST_INTERVALS)
        return AnchoredPartition(
            epsilon=self.epsilon * (1 - _SUMS_SHARE) / (self.rows_per_unit or 1),
            beta=self.beta,
            noise=self._noise(_SUMS_SHARE, self.delta, most),
            columns=self.columns,
            horizon=self.horizon,
            slack=slack,
            intervals=most,
            columnwise=all(isinstance(query, Histogram) for query in self.queries),
        )

    def _noise(self, share: float, delta: float, expected: int | None = None) -> EpochNoise:
        """Return the noise of the published sums, for a share of epsilon."""
        touched, rows = self.row_columns or self.columns, self.rows_per_unit or 1
        return sums_noise(self.epsilon * share, delta, touched, rows, expected, self.horizon)

    @property
    def expected(self) -> int:
        """The largest value of a query that is expected."""
        return self.largest or self.horizon or _DEFAULT_LARGEST

    @cached_property
    def _tracked(self) -> int:
        """How many numbers are published."""
        return len(self._values(np.zeros(self.columns, np.int64)))

    def _values(self, sums: Integers) -> Integers:
        """Return the values of all queries, (k,), for sums (columns,)."""
        return np.concatenate([query.values(sums[None, :])[0] for query in self.queries])

    def error(self, largest: int, step: int | None = None) -> int:
        """Return the error of the class docstring; without `step` at the horizon, or at step `largest`."""
        checks.integer("largest", largest, minimum=0)
        last = (self.horizon or max(1, largest)) if step is None else checks.step(step, self.horizon or step)
        return self.partition.error(self._tracked * largest, last)

    def error_bound(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at a step: with probability 1 - beta, all of them at all steps."""
        return self.partition.error_at(step, interval)

    @override
    def initial_state(self) -> HistogramState:
        zeros = np.zeros(self.columns, np.int64)
        return HistogramState(
            step=0,
            interval=0,
            totals=zeros,
            counts=zeros,
            anchor=zeros,
            memory=np.zeros((self.partition.noise.rows, self.columns)),
            base=self.partition.first_base(self._values(zeros)),
            raised=np.zeros(self.columns if self.thresholds else 0, np.bool_),
        )

    def step(self, state: HistogramState, vector: ArrayLike, noise: NoiseSource) -> tuple[HistogramState, NDArray[Any]]:
        """Add one step's column sums, int (columns,), and return all answers in order, (k,), or all flags.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: the vector has another shape or type, or sums are out of range.
        """
        step, interval, partition = state.step + 1, state.interval, self.partition
        counts = state.counts + self._checked(vector)
        if np.any(state.totals + counts > LARGEST_TOTAL):
            raise ValueError("vector must keep all sums up to 2**60")
        checks.step(step, self.horizon or step)
        values, source = self._values(state.anchor + counts), self._source(noise)
        own = source.derive("interval", interval, state.anchor.astype("<i8").tobytes())
        gap, added = float((values - state.base).max()), 0  # where an interval has just ended nothing has been missed
        if gap > partition.level(step, interval, gap, own):
            totals, memory = state.totals + counts, state.memory.copy()
            keys = np.arange(self.columns, dtype=np.uint64)
            anchor = totals + partition.noise.advance(memory, interval + 1, keys, totals, source.derive("sums"))
            base = partition.next_base(state.base, values, self._values(anchor), step, interval, own)
            state = replace(state, totals=totals, counts=np.zeros_like(totals), anchor=anchor, memory=memory)
            state = replace(state, step=step, interval=interval + 1, base=base)
        else:
            state, added = replace(state, step=step, counts=counts), partition.added(step, interval)
        answers = self._values(state.anchor) + added
        if self.thresholds is None:
            return state, answers
        passed = np.isinf(state.base) if self.mode == "paper" else answers >= np.array(self.thresholds, np.int64)
        raised = state.raised | passed
        return replace(state, raised=raised), raised.copy()

    def _checked(self, vector: ArrayLike) -> Integers:
        """Return the sums of a step as int64. Messages quote no value."""
        values = np.asarray(vector)
        if values.shape != (self.columns,):
            raise ValueError(f"vector must have shape ({self.columns},), got {values.shape}")
        if values.dtype.kind not in "iu":
            raise TypeError(f"vector must contain integers, got {values.dtype}")
        if values.max() > LARGEST_ENTRY or values.min() < 0:
            raise ValueError("vector must contain integers between 0 and 2**31")
        return values.astype(np.int64)
