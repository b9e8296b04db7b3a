"""What mechanisms on column sums with a partition share: parameters, checks, the guarantee."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import (
    ContinualCounter,
    RowMechanism,
    check_end,
    checked_rows,
)
from privstream.mechanisms.counters.toeplitz import UnknownHorizonCounter
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.privacy.accounting import PointCurve, PrivacyCurve
from typing_extensions import override

LARGEST_ENTRY = 1 << 31
LARGEST_PAPER_EPSILON = 3.0  # the Gaussian mechanism of the paper's Appendix D is analysed below epsilon / 3 = 1


# Hundreds of partitions are compared that have few different counters, each time that a mechanism is made.
_counter = lru_cache(maxsize=64, typed=True)(UnknownHorizonCounter)


@dataclass(frozen=True, kw_only=True)
class HistogramMechanism(RowMechanism[PartitionState]):
    """What mechanisms on column sums share, which feed them, or some of them, to a continual counter.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run. Rows
        have entries 0 or 1, at most `row_columns` ones; a step adds any number of them, given as their sum. Neighbours:
        one row, or person, added or removed. Public: all fields, the number of steps. The inputs may depend on all
        answers. All noise is bound to the data.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1).
        columns: number of columns, >= 1.
        horizon: steps of the whole run at most, or None.
        row_columns: ones in a row at most; None for no bound.
        rows_per_unit: rows of one person at most, at any steps, many at one step too. None: the unit is one row.
        beta: failure probability of the accuracy.
    """

    epsilon: float
    delta: float = 0.0
    columns: int
    horizon: int | None = None
    row_columns: int | None = None
    rows_per_unit: int | None = None
    beta: float = 0.05
    noise_label = "histogram mechanism"
    state_type: ClassVar[type[Any]] = PartitionState

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon, largest=1e5)
        checks.probability("beta", self.beta)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)
        UnknownHorizonCounter(**self._budget(1.0, self.delta), **self._shape)  # checks the rest

    @property
    @override
    def curve(self) -> PrivacyCurve:
        return PointCurve(at_epsilon=self.epsilon, at_delta=self.delta)

    @property
    @abstractmethod
    def counter(self) -> ContinualCounter:
        """The counter of the published sums."""

    def interval_counter(self, share: float, delta: float, expected: int | None = None) -> ContinualCounter:
        """Return the counter that is fed at the ends of intervals, for a share of epsilon and so many of them."""
        return _counter(**self._budget(share, delta), first_epoch=expected, **self._shape)

    def _budget(self, share: float, delta: float) -> dict[str, Any]:
        return {"epsilon": self.epsilon * share, "delta": delta}

    @property
    def _shape(self) -> dict[str, Any]:
        names = ("columns", "row_columns", "rows_per_unit")
        return {name: getattr(self, name) for name in names}

    @property
    def _moves(self) -> int:
        """How far all comparisons of the paper's partition can move in all, when one unit changes."""
        return self.rows_per_unit or 1

    def _start(self, base: NDArray[np.float64]) -> PartitionState:
        zeros = np.zeros(self.columns, np.int64)
        counter = self.counter.initial_state()
        return PartitionState(step=0, interval=0, counter=counter, anchor=zeros, counts=zeros.copy(), base=base)

    def _checked(self, state: PartitionState, matrix: ArrayLike) -> Integers:
        """Return the rows of a run as int64."""
        rows = checked_rows(np.asarray(matrix), self.columns, LARGEST_ENTRY, negative=False)
        check_end(state.step + len(rows), self.horizon)
        return rows.astype(np.int64)


def paper_delta(epsilon: float, delta: float) -> float:
    """Return the counter's share of delta in Appendix D of the paper, where epsilon must be below 3 then."""
    if delta > 0 and epsilon >= LARGEST_PAPER_EPSILON:
        raise ValueError(f"epsilon must be < 3 in mode paper with delta > 0, got {epsilon}")
    return delta / 2 * float(np.exp(-2 * epsilon / 3))
