"""What mechanisms on column sums with a partition share: parameters, checks, the guarantee."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.counters.continual_counter import ContinualCounter, Integers, row_limits, unit_protected
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PointCurve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee

LARGEST_ENTRY = 1 << 31
LARGEST_PAPER_EPSILON = 3.0  # the Gaussian mechanism of the paper's Appendix D is analysed below epsilon / 3 = 1


@dataclass(frozen=True, kw_only=True)
class HistogramMechanism(Mechanism[PartitionState]):
    """A mechanism that takes the column sums of every step, and feeds some of them to a continual counter."""

    epsilon: float
    delta: float = 0.0
    columns: int
    horizon: int | None = None
    row_columns: int | None = None
    neighbouring: str = "add_remove"
    rows_per_unit: int | None = None
    beta: float = 0.05
    repeatable: bool = False
    noise_label = "histogram mechanism"

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon, largest=1e5)
        checks.probability("beta", self.beta)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)
        if not isinstance(self.repeatable, bool):
            raise TypeError(f"repeatable must be true or false, got {type(self.repeatable).__name__}")
        self.interval_counter(1.0, self.delta)  # checks the rest

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        return PrivacyGuarantee(
            unit=unit_protected(self.rows_per_unit),
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=row_limits(self.columns, self.row_columns, self.rows_per_unit, self.neighbouring),
            public=("all parameters", "the number of steps"),
            proof=self.proof,
            caveats=self._caveats,
            horizon=self.horizon,
            curve=PointCurve(at_epsilon=self.epsilon, at_delta=self.delta),
        )

    @property
    @abstractmethod
    def proof(self) -> str:
        """Where the guarantee is proved."""

    @property
    @abstractmethod
    def counter(self) -> ContinualCounter:
        """The counter of the published sums."""

    @abstractmethod
    def run(self, state: PartitionState, matrix: ArrayLike, noise: NoiseSource) -> tuple[PartitionState, NDArray[Any]]:
        """Add many steps at once: int (n, columns) to answers (n, k), bit for bit what n calls of `step` give."""

    def step(self, state: PartitionState, vector: ArrayLike, noise: NoiseSource) -> tuple[PartitionState, NDArray[Any]]:
        """Add one step's column sums, int (columns,), and return all answers in order, (k,).

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: the vector has another shape or type.
        """
        values = np.asarray(vector)
        if values.shape != (self.columns,):
            raise ValueError(f"vector must have shape ({self.columns},), got {values.shape}")
        state, answers = self.run(state, values[None, :], noise)
        return state, answers[0]

    def interval_counter(self, share: float, delta: float, expected: int | None = None) -> ContinualCounter:
        """Return the counter that is fed at the ends of intervals, for a share of epsilon and so many of them."""
        budget: dict[str, Any] = {"epsilon": self.epsilon * share, "delta": delta, "repeatable": self.repeatable}
        return UnknownHorizonCounter(**budget, first_epoch=expected, **self._shape)

    @property
    def _caveats(self) -> tuple[str, ...]:
        return (KEYED_NOISE,)

    @property
    def _shape(self) -> dict[str, Any]:
        names = ("columns", "row_columns", "neighbouring", "rows_per_unit")
        return {name: getattr(self, name) for name in names}

    @property
    def _moves(self) -> int:
        """How far all comparisons of the paper's partition can move in all, when one unit changes."""
        if self.rows_per_unit is None:
            return 1
        return self.rows_per_unit * (1 if self.neighbouring == "add_remove" else 2)

    def _start(self, base: NDArray[np.float64]) -> PartitionState:
        zeros = np.zeros(self.columns, np.int64)
        counter = self.counter.initial_state()
        return PartitionState(step=0, interval=0, counter=counter, anchor=zeros, counts=zeros.copy(), base=base)

    def _fields(self, state: PartitionState) -> dict[str, Any]:
        return vars(state) | {"counter": self.counter.snapshot(state.counter)}

    def _state(self, fields: dict[str, Any]) -> PartitionState:
        return PartitionState(**fields | {"counter": self.counter.restore(fields["counter"])})

    def _checked(self, state: PartitionState, matrix: NDArray[Any]) -> Integers:
        """Return the rows of a run as int64. Messages quote no value."""
        if matrix.ndim != 2 or matrix.shape[1] != self.columns:
            raise ValueError(f"matrix must have shape (n, {self.columns}), got {matrix.shape}")
        if matrix.dtype.kind not in "iu":
            raise TypeError(f"matrix must contain integers, got {matrix.dtype}")
        if self.horizon is not None and state.step + len(matrix) > self.horizon:
            raise HorizonExceeded(f"step must be <= horizon {self.horizon}, got {state.step + len(matrix)}")
        if matrix.size and (matrix.min() < 0 or matrix.max() > LARGEST_ENTRY):
            raise ValueError("matrix must contain integers between 0 and 2**31")
        return matrix.astype(np.int64)


def paper_delta(epsilon: float, delta: float) -> float:
    """Return the counter's share of delta in Appendix D of the paper, where epsilon must be below 3 then."""
    if delta > 0 and epsilon >= LARGEST_PAPER_EPSILON:
        raise ValueError(f"epsilon must be < 3 in mode paper with delta > 0, got {epsilon}")
    return delta / 2 * float(np.exp(-2 * epsilon / 3))
