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
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON, ContinualCounter, CounterState
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.counters.trees import TreeCounter
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import normal_spread, sum_spread
from typing_extensions import override

_LENGTHS = (1 << 4, 1 << 8, 1 << 16, 1 << 24)  # of epochs; the last one is repeated
_EARLY = 0.1  # share of a failure probability for all epochs but the last, if that is better than even shares

Epoch = TreeCounter | BufferedToeplitzCounter


@dataclass(frozen=True, kw_only=True)
class UnknownHorizonCounter(ContinualCounter):
    """Continual column sums for as long as the stream runs: noise grows with the steps done, not with a horizon.

    Epochs have 16, 256, 65,536 and then 2^24 steps, and with delta = 0 all others in one. They have trees of complete
    nodes for delta = 0 and buffered Toeplitz counters for delta > 0, so that all noise is bound to the data. Past
    epochs count with the sums published at their ends. With `first_epoch` the first epoch is that long, with the best
    tree for it, and those that are no longer are left out.

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

    @functools.cached_property
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
