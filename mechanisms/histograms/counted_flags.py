"""CountedFlags: which column sums have passed their thresholds, as live counts with noise have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.counters.continual_counter import ContinualCounter
from privstream.mechanisms.counters.counter_error import counter_error
from privstream.mechanisms.counters.unknown_horizon import best_counter
from privstream.mechanisms.histograms.column_flags import FlagMechanism
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.noise.sources import NoiseSource


@dataclass(frozen=True, kw_only=True)
class CountedFlags(FlagMechanism):
    """Publishes after every step for every column whether its noisy sum has reached its threshold; flags stay up.

    A continual counter counts all columns in every step, and flags are a function of what it might have published. So
    its error is that of live counts, which grows slowly with the number of steps; that of `ColumnFlags` hardly grows,
    and is larger from the start.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run. Rows
        have entries 0 or 1, at most `row_columns` ones; a step adds any number of them, given as their sum. Neighbours:
        `neighbouring`. Public: all fields, the number of steps. With delta = 0 noise does not depend on the data,
        unless `repeatable`: see `HistogramQueries`.

    Accuracy:
        `error(step)`: with probability 1 - beta, at all steps up to `step`, a flag that is up has a sum of at least its
        threshold less `error(step)`, and one that is down has a sum below its threshold plus `error(step)`.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1).
        columns: number of columns, >= 1.
        thresholds: one integer from 1 to 2**53 for each column; public.
        horizon: steps of the whole run at most, or None.
        row_columns: ones in a row at most; None for no bound.
        neighbouring: "add_remove" or "replace_one" row, or person.
        rows_per_unit: rows of one person at most, at any steps, many at one step too. None: the unit is one row, and a
            row that is replaced keeps its step.
        beta: failure probability.
        repeatable: see `HistogramQueries`.

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
    def proof(self) -> str:
        """Where the guarantee is proved."""
        return self.counter.proof

    @cached_property
    def counter(self) -> ContinualCounter:
        """The counter of all columns."""
        shape = self._shape | {"epsilon": self.epsilon, "delta": self.delta, "repeatable": self.repeatable}
        return best_counter(self.horizon, **shape)

    def error(self, step: int) -> int:
        """Return the error of the class docstring, for steps 1 .. `step`; with a horizon, for all steps."""
        checks.integer("step", step, minimum=1)
        return counter_error(self.counter, step, self.beta) if self.horizon is None else self._horizon_error

    @cached_property
    def _horizon_error(self) -> int:
        return self.counter.error(self.horizon or 1, self.beta)

    def run(
        self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource
    ) -> tuple[PartitionState, NDArray[np.bool_]]:
        """Add many steps at once: int (n, columns) to flags (n, columns), bit for bit what n calls of `step` give."""
        rows = self._checked(state, np.asarray(matrix))
        counter, sums = self.counter.run(state.counter, rows, self._source(noise))
        flags = np.empty((len(rows) + 1, self.columns), np.bool_)
        flags[0] = np.isinf(state.base)
        flags[1:] = sums >= np.array(self.thresholds, np.int64)
        np.logical_or.accumulate(flags, axis=0, out=flags)
        base = np.where(flags[-1], np.inf, state.base)
        count = state.step + len(rows)
        return replace(state, step=count, interval=count, counter=counter, base=base), flags[1:]
