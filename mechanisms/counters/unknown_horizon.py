"""Continual counter for streams of unknown length: one counter after the other, each for a longer epoch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON, ContinualCounter, CounterState
from privstream.mechanisms.counters.toeplitz import LARGEST_HORIZON as BUFFERED_HORIZON
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter, rows_source, rows_state
from privstream.mechanisms.counters.trees import KaryTreeCounter, WideTreeCounter
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import normal_spread, sum_spread
from typing_extensions import override

# (k, h) of the k-ary trees, and lengths of the other counters; the last one is repeated.
PURE_EPOCHS = ((5, 2), (7, 3), (9, 4), (13, 5), (15, 6), (17, 7), (19, 8), (21, 9))
"""(k, h) of the trees of epochs, delta = 0."""
_LENGTHS = (1 << 4, 1 << 8, 1 << 16, 1 << 24)
_FAR = 2.0  # a counter of so many times the variance does not have the smaller error
_EARLY = 0.1  # share of a failure probability for all epochs but the last, if that is better than even shares

Epoch = KaryTreeCounter | WideTreeCounter | BufferedToeplitzCounter


@dataclass(frozen=True, kw_only=True)
class UnknownHorizonCounter(ContinualCounter):
    """Continual column sums for as long as the stream runs: noise grows with the steps done, not with a horizon.

    Epochs have k-ary trees for delta = 0, of (k - 1)/2 k^(h-1) steps with (k, h) = (5, 2), (7, 3), (9, 4), (13, 5), ..
    (10, 147, 2916, 171,366, .. steps), and buffered Toeplitz counters of 16, 256, 65,536 and then 2^24 steps for
    delta > 0. With `repeatable`, delta = 0 has trees of complete nodes (`WideTreeCounter`) of these lengths. Past
    epochs count with the sums published at their ends. With `first_epoch` the first epoch is that long,
    with the best tree for it, and those that are no longer are left out.

    Privacy:
        Unit: one row or person over the whole run; see `guarantee`. A row is in one epoch, whose counter has the whole
        budget; a person's rows share it. What is added up has been published. Replays: as for the counter of the epoch.

    Accuracy:
        `variance(t)`: that of the current epoch's counter plus those at the ends of all epochs before;
        `error(t, beta)` an upper bound, since epochs share beta.

    Attributes:
        horizon: 2^40; it need not be given. The others are those of `ContinualCounter`.
        first_epoch: steps that the run is expected to have, or None.
        repeatable: whether all noise is bound to the data, so that a run that is repeated with other data does not
            show by how much they differ (it shows that they do). So it is anyway if delta > 0.

    Example:
        >>> counter = UnknownHorizonCounter(epsilon=1.0)
        >>> [round(counter.variance(t)) for t in (1, 10, 1000, 10**6)]
        [8, 16, 356, 2004]

    Source: Chan, Shi, Song (2011), section 4.2 (doubling epochs); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "section 5"
    horizon: int = LARGEST_HORIZON
    first_epoch: int | None = None
    repeatable: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = LARGEST_HORIZON if self.delta == 0 else _LENGTHS[-1]
        if self.first_epoch is not None:
            checks.integer("first_epoch", self.first_epoch, minimum=1, maximum=longest)
        _ = self._epochs  # checks that all of them have noise

    @override
    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return noise of its own; what was drawn in binary trees under one label has another now."""
        source = super()._source(noise)
        if self.delta > 0:
            return rows_source(source, self.rows_per_unit)
        return source.derive("wide trees") if self.repeatable else source

    @property
    @override
    def _state_kind(self) -> str:
        kind = super()._state_kind
        return rows_state(kind, self.rows_per_unit) if self.delta > 0 else kind

    def epoch(self, number: int) -> Epoch:
        """Return the counter of epoch 0, 1, .."""
        return self._epochs[min(number, len(self._epochs) - 1)]

    @functools.cached_property
    def _epochs(self) -> tuple[Epoch, ...]:
        names = ("epsilon", "delta", "columns", "row_columns", "neighbouring", "rows_per_unit", "streams")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        kind = _kind(self.delta, self.repeatable)
        first = () if self.first_epoch is None else (kind(horizon=self.first_epoch, **shared),)
        later: tuple[Epoch, ...]
        if kind is not KaryTreeCounter:
            later = tuple(kind(horizon=length, **shared) for length in _LENGTHS)
        else:
            trees = ((base // 2 * base ** (height - 1), base) for base, height in PURE_EPOCHS)
            later = tuple(KaryTreeCounter(horizon=length, base=base, **shared) for length, base in trees)
        return (*first, *(counter for counter in later if counter.horizon > (self.first_epoch or 0))) or later[-1:]

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
            if len(memory) != 1 + len(counter._initial_memory()):
                raise SnapshotError("state must be of a run with the same counters, got that of another commit")
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


def best_counter(
    horizon: int | None, *, repeatable: bool = False, beta: float = 0.05, **budget: Any
) -> ContinualCounter:
    """Return a counter for so many steps, or for any number; `repeatable` as in `UnknownHorizonCounter`.

    Of those that fit it is the one that keeps within the smaller `error` with probability 1 - `beta`. In short runs
    that is a tree of many children, for delta > 0 too: pure privacy is more than is asked for.
    """
    if horizon is None or (budget["delta"] > 0 and horizon > BUFFERED_HORIZON):
        return UnknownHorizonCounter(**budget, repeatable=repeatable)
    pure = budget["delta"] == 0
    others = () if pure and repeatable else (KaryTreeCounter if pure else BufferedToeplitzCounter,)
    made: list[Any] = []
    refused: list[ValueError] = []  # more noise than can be drawn
    for kind, delta in ((WideTreeCounter, 0.0), *((other, budget["delta"]) for other in others)):
        try:
            made.append(kind(horizon=horizon, **budget | {"delta": delta}))
        except ValueError as error:
            refused.append(error)
    if not made:
        raise refused[-1]
    return made[0] if len(made) == 1 else _better(made[0], made[1], beta)


def _better(wide: WideTreeCounter, other: Epoch, beta: float) -> ContinualCounter:
    """Return the counter with the smaller error, which is not computed where variances are far apart."""
    last = wide.horizon
    if isinstance(other, BufferedToeplitzCounter) and wide.variance_up_to(last) > _FAR * other.variance(last):
        return other
    return min(wide, other, key=lambda counter: counter.error(last, beta))


def _kind(delta: float, repeatable: bool) -> type[Epoch]:
    """Return the counter of epochs."""
    if delta > 0:
        return BufferedToeplitzCounter
    return WideTreeCounter if repeatable else KaryTreeCounter
