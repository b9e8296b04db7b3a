"""Counters with correlated Gaussian noise, and for streams of unknown length: one counter after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.counters.continual_counter import (
    LARGEST_HORIZON,
    ContinualCounter,
    CounterState,
    TreeCounter,
    bound_noise,
)
from privstream.mechanisms.noise.correlated import (
    DEVIATIONS,
    ROUNDING_VARIANCE,
    SUMS,
    correct,
    whole_counts,
    zolotarev,
)
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import normal_spread, sum_spread
from privstream.mechanisms.privacy.accounting import SMALLEST_SIGMA, largest_shift, sensitivity_sigma, smallest
from scipy import special
from typing_extensions import override

_PIECES = 4096


LONGEST = 1 << 24  # steps of a counter with buffers
_MOST_BUFFERS = 7
_SPARE_BITS = 8  # of the grid beyond sqrt(horizon)
LARGEST_EXACT = 2.0**53  # whole numbers up to it are floats


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitzCounter(ContinualCounter):
    """Continual column sums with noise correlated over time, from a few numbers per column.

    What is published are the prefix sums of x + w, rounded to whole counts, where R w = z and z is Gaussian. R is the
    Toeplitz matrix of c(x), the rational function of degree `buffers` that is nearest to (1 - x)^(-1/2) in Zolotarev's
    sense, so that w_t = z_t - sum of weights_j b_j with `buffers` decaying sums b_j of earlier w.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. z is discrete Gaussian on a grid of 2^-fraction counts. The
        buffers are floating-point numbers, and the noise pays for all their rounding: the sensitivity is that of exact
        arithmetic, in closed form, plus a bound on what rounding can add. The noise z of a step is bound to the true
        sum.

    Accuracy:
        `variance(t)` in closed form, plus 1/12 for publishing integers; with 4 buffers its mean is within 1.01 of the
        square root's up to horizon 2^20, with 3 within 1.08. `error(t, beta)` is about 5% above the quantile. Time per
        step and state: O(buffers columns).

    Attributes: see `ContinualCounter`; delta > 0, horizon up to 2^24; `buffers`: 1 to 7.

    Example:
        >>> counter = BufferedToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=1 << 20)
        >>> counter.initial_state().memory.shape
        (5, 1)

    Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, Efficient and Near-Optimal Noise Generation for Streaming
    Differential Privacy (2024); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 4"
    buffers: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("delta", self.delta)
        if self.horizon > LONGEST:
            raise ValueError(f"horizon must be <= {LONGEST} for this counter, got {self.horizon}")
        checks.integer("buffers", self.buffers, minimum=1, maximum=_MOST_BUFFERS)
        self._check_noise(self._check_floats)

    @property
    def fraction(self) -> int:
        """Fractional bits of the grid."""
        # As fine as keeps what is rounded below half a percent of what a unit moves: coarser for many rows.
        return max(0, _SPARE_BITS + math.ceil(math.log2(self.horizon / (self.rows_per_unit or 1)) / 2))

    @cached_property
    def sensitivity(self) -> float:
        """How far, in counts, one unit moves what z hides, in L2 norm, with all that is rounded."""
        return self._exact_sensitivity + self._rounded

    @property
    def _unit_norm(self) -> float:
        """The L2 norm of what one unit adds, when all of it is at one step."""
        return (self.rows_per_unit or 1) * math.sqrt(self.touched)

    @property
    def _exact_sensitivity(self) -> float:
        """What `sensitivity` would be without rounding, for a unit with all its rows at one step."""
        return math.sqrt(_column_square(self.horizon, self.buffers)) * (1 + SUMS) * self._unit_norm

    @property
    def _rounded(self) -> float:
        """Bound, in counts, on what rounding adds: docs/proofs/counters.md, Theorems 4 and 5."""
        columns = (self.rows_per_unit or 1) * self.touched
        return 2 * math.sqrt(self.horizon * columns) * math.ldexp(self._rounding, -self.fraction)

    def _check_floats(self) -> None:
        """Raise unless what the bounds on rounding assume is so: a small part is rounded, and sums are exact."""
        largest = DEVIATIONS * 2 * self.law.sigma * math.sqrt(float(self._squares(np.array([float(self.horizon)]))[0]))
        if self._rounded > self._exact_sensitivity or largest > LARGEST_EXACT:
            raise ValueError("noise must be small enough for floats")

    @cached_property
    def law(self) -> DiscreteGaussian:
        """The noise z, in units of the grid."""
        return DiscreteGaussian(
            sensitivity_sigma(self.epsilon, self.delta, math.ldexp(self.sensitivity * (1 + 1e-12), self.fraction))
        )

    @override
    def variance(self, step: int) -> float:
        sigma = math.ldexp(self.law.sigma, -self.fraction)
        squares = float(self._squares(np.array([float(self._step_number(step))]))[0])
        return sigma**2 * squares + ROUNDING_VARIANCE

    @override
    def spread(self, step: int, beta: float) -> int:
        return normal_spread(self.variance(step), beta)

    @override
    def error(self, step: int, beta: float) -> int:
        # A union bound with normal tails; about 5% above the quantile, since steps far apart are nearly independent.
        return self.error_after(0.0, step, beta)

    def error_after(self, past: float, step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and normal noise of variance `past`."""
        step = self._step_number(step)
        goal = checks.probability("beta", beta) / self.columns
        ends = np.unique(np.rint(np.geomspace(1, step, _PIECES)))  # the noise grows: each piece counts as its last step
        weights = np.diff(ends, prepend=0.0)
        deviations = np.sqrt(past + math.ldexp(self.law.sigma, -self.fraction) ** 2 * self._squares(ends))

        def accept(bound: float) -> bool:
            return float(weights @ (2 * special.ndtr(-bound / deviations))) <= goal

        high = float(deviations[-1]) * 40
        return math.ceil(smallest(accept, 0.0, high, precision=1e-6) + 0.5)

    @property
    def _rounding(self) -> float:
        """Bound, in units of the grid, on what a step's correction differs from exact arithmetic."""
        poles, _, weights = zolotarev(self.horizon, self.buffers)
        square = _column_square(self.horizon, self.buffers)
        norm = math.ldexp(math.sqrt(square) * self._unit_norm + 1, self.fraction)
        sigma = 2 * (norm / largest_shift(self.epsilon, self.delta) + SMALLEST_SIGMA)
        unit = math.ldexp(self.rows_per_unit or 1, self.fraction)
        largest = DEVIATIONS * 2 * sigma / np.sqrt(1 - poles**2) + unit
        lasting = np.minimum(1 / (1 - poles), self.horizon) + self.buffers + 2
        return 0.5 + float(weights @ (2.0**-52 * largest * lasting))

    @cached_property
    def _published(self) -> tuple[Floats, Floats]:
        """Rates and weights of 1 / ((1 - x) c(x)), the coefficients of the noise on the published sums."""
        poles, zeros, _ = zolotarev(self.horizon, self.buffers)
        rates = np.append(zeros, 1.0)
        weights = [np.prod(1 - poles / rate) / np.prod(1 - np.delete(rates, j) / rate) for j, rate in enumerate(rates)]
        return rates, np.array(weights)

    def _squares(self, steps: Floats) -> Floats:
        """Return the sum of the first `steps` squared coefficients of the noise on the published sums, increasing."""
        return _squared_sums(*self._published, steps)

    @override
    def _initial_memory(self) -> Floats:
        # The buffers, float64 (buffers, columns), below one row of the sums of w.
        return np.zeros((self.buffers + 1, self.columns))

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Floats, Integers]:
        steps = np.arange(state.step + 1, state.step + 1 + len(sums))
        values = bound_noise(self.law, source, steps, sums).astype(np.float64)
        poles, _, weights = zolotarev(self.horizon, self.buffers)
        buffers = state.memory[1:].copy()
        scratch = np.empty_like(buffers)
        for row in values:
            correct(row, poles[:, None], weights[:, None], buffers, scratch)
        cumulated = state.memory[:1] + np.cumsum(values, axis=0)
        return np.concatenate([cumulated[-1:], buffers]), whole_counts(cumulated, self.fraction)


@lru_cache(maxsize=1024)
def _column_square(horizon: int, buffers: int) -> float:
    """Return the squared norm of the first column of R, which no budget changes: it is computed once."""
    poles, _, weights = zolotarev(horizon, buffers)
    return 1 + float(_squared_sums(poles, weights, np.array([float(horizon - 1)]))[0])


def _squared_sums(rates: Floats, weights: Floats, counts: Floats) -> Floats:
    """Return, for each count, the sum over n < count of (sum over j of weights_j rates_j^n)^2."""
    total = np.zeros(len(counts))
    for a, u in zip(rates.tolist(), weights.tolist(), strict=True):
        for b, v in zip(rates.tolist(), weights.tolist(), strict=True):
            rate = a * b
            powers = counts if rate == 1 else -np.expm1(counts * math.log(rate)) / (1 - rate)
            total += u * v * powers
    return total


_LENGTHS = (1 << 4, 1 << 8, 1 << 16, 1 << 24)  # of epochs; the last one is repeated
_EARLY = 0.1  # share of a failure probability for all epochs but the last, if that is better than even shares

Epoch = TreeCounter | BufferedToeplitzCounter


@dataclass(frozen=True, kw_only=True)
class UnknownHorizonCounter(ContinualCounter):
    """Continual column sums for as long as the stream runs: noise grows with the steps done, not with a horizon.

    Epochs have 16, 256, 65,536 and then 2^24 steps, and with delta = 0 all others in one. They have trees of complete
    nodes for delta = 0 and buffered Toeplitz counters for delta > 0, so that all noise is bound to the data. Past
    epochs count with the sums published at their ends. With `first_epoch` the first epoch is that long, with the best
    tree for it, and those that are no longer are omitted.

    Privacy:
        Unit: one row or person over the whole run; see `guarantee`. A row is in one epoch, whose counter has the whole
        budget; a person's rows share it. What is added up has been published. Replays: as for the counter of the epoch.

    Accuracy:
        `variance(t)`: that of the current epoch's counter plus those at the ends of all epochs before;
        `error(t, beta)` an upper bound, since epochs share beta.

    Attributes:
        horizon: 2^40; it need not be given. The others are those of `ContinualCounter`.
        first_epoch: steps that the run is expected to have, or None.

    Example:
        >>> counter = UnknownHorizonCounter(epsilon=1.0)
        >>> [round(counter.variance(t)) for t in (1, 10, 1000, 10**6)]
        [2, 18, 919, 3472]

    Source: Chan, Shi, Song (2011), section 4.2 (doubling epochs); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "section 5"
    horizon: int = LARGEST_HORIZON
    first_epoch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = LARGEST_HORIZON if self.delta == 0 else _LENGTHS[-1]
        if self.first_epoch is not None:
            checks.integer("first_epoch", self.first_epoch, minimum=1, maximum=longest)
        _ = self._epochs  # checks that all of them have noise

    def epoch(self, number: int) -> Epoch:
        """Return the counter of epoch 0, 1, .."""
        return self._epochs[min(number, len(self._epochs) - 1)]

    @cached_property
    def _epochs(self) -> tuple[Epoch, ...]:
        names = ("epsilon", "delta", "columns", "row_columns", "rows_per_unit")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        kind: type[Epoch] = BufferedToeplitzCounter if self.delta > 0 else TreeCounter
        first = () if self.first_epoch is None else (self.first_epoch,)
        lengths = _LENGTHS if self.delta > 0 else (*_LENGTHS, LARGEST_HORIZON)
        later = tuple(length for length in lengths if length > (self.first_epoch or 0))
        return tuple(kind(horizon=length, **shared) for length in (*first, *later) or lengths[-1:])

    def epochs(self, step: int) -> Iterator[tuple[int, Epoch, int]]:
        """Return number, counter and steps done of every epoch that has begun when `step` is done."""
        number, rest = 0, step
        while rest > 0:
            counter = self.epoch(number)
            yield number, counter, min(rest, counter.horizon)
            number, rest = number + 1, rest - counter.horizon

    @override
    def variance(self, step: int) -> float:
        return sum(counter.variance(done) for _, counter, done in self.epochs(self._step_number(step)))

    @override
    def error(self, step: int, beta: float) -> int:
        epochs = list(self.epochs(self._step_number(step)))
        before = len(epochs) - 1
        options = [[checks.probability("beta", beta) / len(epochs)] * len(epochs)]
        if before:
            options.append([beta * _EARLY / before] * before + [beta * (1 - _EARLY)])
        return min(
            max(self._epoch_error(number, done, share) for (number, _, done), share in zip(epochs, shares, strict=True))
            for shares in options
        )

    @override
    def spread(self, step: int, beta: float) -> int:
        if self.delta > 0:
            return normal_spread(self.variance(step), beta)
        epochs = [(counter, done) for _, counter, done in self.epochs(self._step_number(step))]
        trees = [(tree, done) for tree, done in epochs if not isinstance(tree, BufferedToeplitzCounter)]
        return sum_spread([(tree.law, tree.nodes(done)) for tree, done in trees], beta)

    def _epoch_error(self, number: int, done: int, beta: float) -> int:
        """Return the error of one epoch's steps, with the noise of all epochs before it."""
        counter, past = self.epoch(number), [self.epoch(before) for before in range(number)]
        if isinstance(counter, BufferedToeplitzCounter):
            return counter.error_after(sum(end.variance(end.horizon) for end in past), done, beta)
        ends = [tree.end for tree in past if not isinstance(tree, BufferedToeplitzCounter)]
        return counter.error_after(ends, done, beta)

    def _initial_memory(self) -> NDArray[Any]:
        return self._opened(0, np.zeros(self.columns, np.int64))

    def _opened(self, number: int, past: Integers) -> NDArray[Any]:
        """Return the memory at the start of an epoch: the noise of past epochs in row 0, then its counter's own."""
        own = self.epoch(number)._initial_memory()
        return np.concatenate([past[None, :].astype(own.dtype), own])

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[NDArray[Any], Integers]:
        drawn = np.empty_like(sums)
        memory, start, done = state.memory, 0, state.step
        number, before = self._position(done)
        while start < len(sums):
            counter = self.epoch(number)
            end = min(len(sums), start + counter.horizon - before)
            inner = CounterState(step=before, totals=state.totals, memory=memory[1:])
            own, part = counter._noise(inner, sums[start:end], source.derive("epoch", number))
            past = memory[0].astype(np.int64)
            drawn[start:end] = part + past
            memory = np.concatenate([memory[:1], own])
            before += end - start
            start = end
            if before == counter.horizon:
                number, before = number + 1, 0
                memory = self._opened(number, drawn[end - 1])
        return memory, drawn

    def _position(self, step: int) -> tuple[int, int]:
        """Return the number of the epoch that the step after `step` belongs to, and its steps done."""
        number = 0
        while step >= self.epoch(number).horizon:
            step -= self.epoch(number).horizon
            number += 1
        return number, step
