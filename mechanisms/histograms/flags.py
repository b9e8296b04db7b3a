"""Flags of columns: which sums have passed a public threshold, from thresholds or from counters."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.counters.continual_counter import ContinualCounter, counter_error
from privstream.mechanisms.counters.unknown_horizon import best_counter
from privstream.mechanisms.histograms.mechanism import HistogramMechanism, paper_delta
from privstream.mechanisms.histograms.partition import FlagPartition, PartitionState, advance
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PrivacyCurve
from privstream.mechanisms.privacy.guarantee import COMPARED_FLOATS, noise_caveats
from typing_extensions import override

LARGEST_THRESHOLD = 2**53
"""Larger ones are no numbers that sums can be compared with in floating point."""


@dataclass(frozen=True, kw_only=True)
class FlagMechanism(HistogramMechanism):
    """What mechanisms share that publish after every step which column sums have passed their thresholds.

    A flag that is up is an infinite `base` in the state.
    """

    thresholds: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.thresholds, tuple) or len(self.thresholds) != self.columns:
            raise ValueError(f"thresholds must be a tuple of {self.columns} integers")
        for threshold in self.thresholds:
            if checks.integer("thresholds", threshold, minimum=1) > LARGEST_THRESHOLD:
                raise ValueError(f"thresholds must be <= 2**53, got {threshold}")

    @override
    def initial_state(self) -> PartitionState:
        return self._start(np.array(self.thresholds, dtype=np.float64))

    @abstractmethod
    def error(self, step: int) -> int:
        """Return the error of the class docstring, for steps 1 .. `step`."""


@dataclass(frozen=True, kw_only=True)
class ColumnFlags(FlagMechanism):
    """Publishes after every step for every column whether its sum has passed its threshold; flags stay up.

    This is AboveThreshold in many dimensions: one test per step for all columns, and a look at the columns one by one
    only when it says that some flag should go up.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run; see
        `HistogramMechanism`. A third of epsilon each for the counter, for the tests
        and for the columns one by one. The noise of tests and columns is floating-point noise that is compared in
        secret, so that the guarantee holds up to rounding.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        paper_delta(self.epsilon, self.delta)

    @override
    def error(self, step: int) -> int:
        return self.partition.error_at(checks.integer("step", step, minimum=1), self.columns)

    @property
    @override
    def proof(self) -> str:
        return "docs/proofs/anchored.md, section 5"

    @property
    def _caveats(self) -> tuple[str, ...]:
        return noise_caveats(False, COMPARED_FLOATS)

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


@dataclass(frozen=True, kw_only=True)
class CountedFlags(FlagMechanism):
    """Publishes after every step for every column whether its noisy sum has reached its threshold; flags stay up.

    A continual counter counts all columns in every step, and flags are a function of what it might have published. So
    its error is that of live counts, which grows slowly with the number of steps; that of `ColumnFlags` hardly grows,
    and is larger from the start.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run; see
        `HistogramMechanism`.

    Accuracy:
        `error(step)`: with probability 1 - beta, at all steps up to `step`, a flag that is up has a sum of at least its
        threshold less `error(step)`, and one that is down has a sum below its threshold plus `error(step)`.

    Attributes:
        thresholds: one integer from 1 to 2**53 for each column; public.

    All other attributes are those of `HistogramMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = CountedFlags(epsilon=1.0, columns=2, thresholds=(2000, 2000), horizon=3)
        >>> state, flags = mechanism.run(mechanism.initial_state(), [[1, 0], [5000, 0], [0, 0]], SeededNoise(1))
        >>> flags.tolist()
        [[False, False], [True, False], [True, False]]

    Source: docs/proofs/live_histograms.md, section 4; docs/proofs/counters.md.
    """

    noise_label = "counted flags"

    @property
    @override
    def proof(self) -> str:
        return self.counter.proof

    @property
    @override
    def curve(self) -> PrivacyCurve:
        return self.counter.curve

    @cached_property
    @override
    def counter(self) -> ContinualCounter:
        shape = self._step_shape | {"epsilon": self.epsilon, "delta": self.delta, "repeatable": self.repeatable}
        return best_counter(self.horizon, beta=self.beta, **shape)

    @override
    def error(self, step: int) -> int:
        checks.integer("step", step, minimum=1)
        return counter_error(self.counter, step, self.beta) if self.horizon is None else self._horizon_error

    @cached_property
    def _horizon_error(self) -> int:
        return self.counter.error(self.horizon or 1, self.beta)

    @override
    def run(
        self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource
    ) -> tuple[PartitionState, NDArray[np.bool_]]:
        rows = self._checked(state, matrix)
        counter, sums = self.counter.run(state.counter, rows, self._source(noise))
        flags = np.empty((len(rows) + 1, self.columns), np.bool_)
        flags[0] = np.isinf(state.base)
        flags[1:] = sums >= np.array(self.thresholds, np.int64)
        np.logical_or.accumulate(flags, axis=0, out=flags)
        base = np.where(flags[-1], np.inf, state.base)
        count = state.step + len(rows)
        return replace(state, step=count, interval=count, counter=counter, base=base), flags[1:]
