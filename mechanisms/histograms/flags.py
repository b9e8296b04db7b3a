"""Flags of columns: which sums have passed a public threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.counters.continual_counter import ContinualCounter
from privstream.mechanisms.histograms.histogram_queries import Histogram, HistogramQueries
from privstream.mechanisms.histograms.mechanism import HistogramMechanism, paper_delta
from privstream.mechanisms.histograms.partition import FlagPartition, PartitionState, advance
from privstream.mechanisms.noise.sources import NoiseSource
from typing_extensions import override

LARGEST_THRESHOLD = 2**53
"""Larger ones are no numbers that sums can be compared with in floating point."""


def check_thresholds(thresholds: object, columns: int) -> None:
    """Raise unless there is a threshold for each column."""
    if not isinstance(thresholds, tuple) or len(thresholds) != columns:
        raise ValueError(f"thresholds must be a tuple of {columns} integers")
    for threshold in thresholds:
        if checks.integer("thresholds", threshold, minimum=1) > LARGEST_THRESHOLD:
            raise ValueError(f"thresholds must be <= 2**53, got {threshold}")


@dataclass(frozen=True, kw_only=True)
class ColumnFlags(HistogramMechanism):
    """Publishes after every step for every column whether its sum has passed its threshold; flags stay up.

    This is AboveThreshold in many dimensions: one test per step for all columns, and a look at the columns one by one
    only when it says that some flag should go up.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run; see
        `HistogramMechanism`. A third of epsilon each for the counter, for the tests
        and for the columns one by one.

    Accuracy:
        `error(step)`: with probability 1 - beta, at all steps up to `step`, a flag that is up has a sum above its
        threshold less `error(step)`, and one that is down has a sum below its threshold plus `error(step)`.

    Attributes:
        thresholds: one integer from 1 to 2**53 for each column; public.

    All other attributes are those of `HistogramMechanism`; epsilon is below 3 if delta > 0.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = ColumnFlags(epsilon=1.0, columns=2, thresholds=(2000, 2000))
        >>> state, flags = mechanism.run(mechanism.initial_state(), [[1, 0], [5000, 0], [0, 0]], SeededNoise(1))
        >>> flags.tolist()
        [[False, False], [True, False], [True, False]]

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 9; docs/proofs/anchored.md, section 5.
    """

    thresholds: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_thresholds(self.thresholds, self.columns)
        paper_delta(self.epsilon, self.delta)

    @override
    def initial_state(self) -> PartitionState:
        return self._start(np.array(self.thresholds, dtype=np.float64))

    def error(self, step: int) -> int:
        """Return the error of the class docstring, for steps 1 .. `step`."""
        return self.partition.error_at(checks.integer("step", step, minimum=1), self.columns)

    @property
    @override
    def proof(self) -> str:
        return "docs/proofs/anchored.md, section 5"

    @cached_property
    @override
    def counter(self) -> ContinualCounter:
        return self.interval_counter(1 / 3, paper_delta(self.epsilon, self.delta))

    @cached_property
    def partition(self) -> FlagPartition:
        """What closes intervals and raises flags."""
        return FlagPartition(
            epsilon=self.epsilon,
            delta=self.delta,
            beta=self.beta,
            queries=self.columns,
            moves=self._moves,
            counter=self.counter,
            thresholds=self.thresholds,
        )

    @override
    def run(
        self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource
    ) -> tuple[PartitionState, NDArray[np.bool_]]:
        rows = self._checked(state, matrix)
        flags = np.empty(rows.shape, np.bool_)
        flags[:] = np.isinf(state.base)
        state, closed = advance(self.partition, lambda sums: sums, self.counter, state, rows, self._source(noise))
        for index, after in closed:
            flags[index:] = np.isinf(after.base)
        return state, flags


@dataclass(frozen=True, eq=False, kw_only=True)
class FlagState(PartitionState):
    """What outlives a step; `raised`: which flags are up."""

    raised: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class AnchoredFlags(HistogramQueries):
    """Publishes after every step for every column whether its estimate has reached its threshold; flags stay up.

    Privacy:
        Unit: as of `HistogramQueries`; flags are a function of its answers.

    Accuracy:
        `error_bound(step, interval)`: with probability 1 - beta, at all steps, a flag that is up has a sum of at least
        its threshold less the bound, and one that is down has a sum below its threshold plus the bound.

    Attributes:
        thresholds: one integer from 1 to 2**53 for each column; public.

    All other attributes are those of `HistogramQueries`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = AnchoredFlags(epsilon=1.0, columns=2, thresholds=(2000, 2000), horizon=3)
        >>> state, flags = mechanism.run(mechanism.initial_state(), [[1, 0], [5000, 0], [0, 0]], SeededNoise(1))
        >>> flags.tolist()
        [[False, False], [True, False], [True, False]]

    Source: docs/proofs/anchored.md, Theorem 1; docs/proofs/live_histograms.md, section 4.
    """

    thresholds: tuple[int, ...]
    noise_label = "anchored flags"
    state_type = FlagState

    def __post_init__(self) -> None:
        super().__post_init__()
        check_thresholds(self.thresholds, self.columns)
        if self.queries != (Histogram(),):
            raise ValueError("queries must be the histogram alone")

    @override
    def initial_state(self) -> FlagState:
        return FlagState(**vars(super().initial_state()), raised=np.zeros(self.columns, np.bool_))

    @override
    def run(  # type: ignore[override]  # flags in place of sums
        self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource
    ) -> tuple[FlagState, NDArray[np.bool_]]:
        after, sums = super().run(state, matrix, noise)
        assert isinstance(state, FlagState) and isinstance(after, FlagState)
        raised = np.concatenate([state.raised[None, :], sums >= np.array(self.thresholds, np.int64)])
        np.logical_or.accumulate(raised, axis=0, out=raised)
        return replace(after, raised=raised[-1].copy()), raised[1:]
