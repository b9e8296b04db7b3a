"""Closing intervals of a stream when some query has grown enough: what the partitions of histogram queries share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.counters.continual_counter import ContinualCounter, CounterState, Integers
from privstream.mechanisms.noise.sources import NoiseSource

Floats = NDArray[np.float64]

_FIRST_WINDOW, _LARGEST_WINDOW = 16, 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionState:
    """What outlives a step.

    `anchor` is what the counter published last, `counts` the true sums since (private), `base` what each query is
    compared with, and `interval` the number of intervals closed.
    """

    step: int
    interval: int
    counter: CounterState
    anchor: Integers
    counts: Integers
    base: Floats


class Partition(ABC):
    """When to close an interval, and what to compare with in the next one."""

    @abstractmethod
    def error_at(self, step: int, interval: int) -> int:
        """Return how far answers are off at most at step 1, 2, .., in interval 0, 1, .."""

    @abstractmethod
    def first_base(self, values: Integers) -> Floats:
        """Return what the queries are compared with at the start, given their values at 0."""

    @abstractmethod
    def levels(self, steps: Integers, interval: int, gaps: Floats, noise: NoiseSource) -> Floats:
        """Return what `gaps`, the largest of values - base, must exceed at each step to close the interval, with noise.

        The noise of a step is bound to its gap; `noise` is that of the interval alone, and of the anchor.
        """

    @abstractmethod
    def next_base(
        self, base: Floats, values: Integers, anchored: Integers, step: int, interval: int, noise: NoiseSource
    ) -> Floats:
        """Return the base after an interval, from the values at its end, true ones (private) and `anchored` ones."""


def advance(
    partition: Partition,
    values: Callable[[Integers], Integers],
    counter: ContinualCounter,
    state: PartitionState,
    rows: Integers,
    noise: NoiseSource,
) -> tuple[PartitionState, list[tuple[int, PartitionState]]]:
    """Add rows (n, columns) as one step each. Return the state after them, and all (index, state) that closed one."""
    closed: list[tuple[int, PartitionState]] = []
    start, window = 0, _FIRST_WINDOW
    while start < len(rows):
        counts = state.counts + np.cumsum(rows[start : start + window], axis=0)
        current = values(state.anchor + counts)
        steps = state.step + 1 + np.arange(len(counts))
        gaps = (current - state.base).max(axis=1)
        source = noise.derive("interval", state.interval, state.anchor.astype("<i8").tobytes())
        hits = np.flatnonzero(gaps > partition.levels(steps, state.interval, gaps, source))
        if not len(hits):
            state = replace(state, step=int(steps[-1]), counts=counts[-1].copy())
            start += len(counts)
            window = min(2 * window, _LARGEST_WINDOW)
            continue
        end = int(hits[0])
        memory, anchor = counter.step(state.counter, counts[end], noise)
        base = partition.next_base(
            state.base, current[end], values(anchor[None, :])[0], int(steps[end]), state.interval, source
        )
        state = PartitionState(
            step=int(steps[end]),
            interval=state.interval + 1,
            counter=memory,
            anchor=anchor,
            counts=np.zeros_like(anchor),
            base=base,
        )
        start, window = start + end + 1, _FIRST_WINDOW
        closed.append((start - 1, state))
    return state, closed


def bound_labels(noise: NoiseSource, labels: Integers, values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return labels that depend on 64-bit numbers too, of any kind."""
    return noise.bind(labels.astype(np.uint64), np.ascontiguousarray(values).view(np.int64))
