"""Column sums of a stream, published after every step, with noise that grows like log T; from a tree of them."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.running import best_arity, most_digits, plain_digits
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import sum_quantile, sum_spread
from privstream.mechanisms.privacy.accounting import (
    PrivacyCurve,
    counting_sigma,
    noise_curve,
    sensitivity_sigma,
)
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit
from typing_extensions import override

State = TypeVar("State")

LARGEST_HORIZON = 1 << 40
LARGEST_COLUMNS = 1 << 24
LARGEST_ENTRY = 1 << 40
LARGEST_TOTAL = 1 << 60
_CHUNK = 1 << 18  # noise variables drawn at once
_LONGEST_CHUNK = 1 << 16  # steps


@dataclass(frozen=True, eq=False, kw_only=True)
class CounterState:
    """What outlives a step: steps done, true column sums (private), and what the counter remembers of its noise."""

    step: int
    totals: Integers
    memory: NDArray[Any]


class RowMechanism(Mechanism[State]):
    """A mechanism on rows of zeros and ones, of which it is given the sums at every step."""

    epsilon: float
    delta: float
    horizon: int | None
    columns: int
    row_columns: int | None
    rows_per_unit: int | None

    @property
    @abstractmethod
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of the run."""

    @property
    @abstractmethod
    def proof(self) -> str:
        """Where the guarantee is proved."""

    @property
    def _caveats(self) -> tuple[str, ...]:
        return (KEYED_NOISE,)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=PrivacyUnit(what="row") if self.rows_per_unit is None else PERSON,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=row_limits(self.columns, self.row_columns, self.rows_per_unit),
            public=("all parameters", "the number of steps"),
            proof=self.proof,
            caveats=self._caveats,
            horizon=self.horizon,
            curve=self.curve,
        )

    @abstractmethod
    def run(self, state: State, matrix: ArrayLike, noise: NoiseSource) -> tuple[State, NDArray[Any]]:
        """Add many steps at once: int (n, columns) to answers (n, k), bit for bit what n calls of `step` give."""

    def step(self, state: State, vector: ArrayLike, noise: NoiseSource) -> tuple[State, NDArray[Any]]:
        """Add one step's column sums, int (columns,), and return all answers in order, (k,).

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: the vector has another shape or type, or sums are out of range.
        """
        values = np.asarray(vector)
        if values.shape != (self.columns,):
            raise ValueError(f"vector must have shape ({self.columns},), got {values.shape}")
        state, published = self.run(state, values[None, :], noise)
        return state, published[0]


@dataclass(frozen=True, kw_only=True)
class ContinualCounter(RowMechanism[CounterState]):
    """What all continual counters have in common: parameters, the run, the guarantee.

    After each step the counter publishes true column sums plus integer noise. The noise of a step is a function of the
    noise source and labels, so that a state consists of sums and little else.

    Privacy:
        Unit: one row over the whole run, or one person who has at most `rows_per_unit` rows in the whole run. Rows
        have entries 0 or 1, at most `row_columns` ones; a step adds any number of rows, given as their sum. Neighbours:
        one row, or person, added or removed. Public: all fields, and the number of steps.

    Accuracy:
        `variance(t)` of each column's noise at step t, and `error(t, beta)`: with probability 1 - beta no column is off
        by more at any of the steps 1 .. t.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1); 0 gives discrete Laplace noise, more gives discrete Gaussian noise.
        horizon: steps of the whole run at most, 1 to 2^40.
        columns: number of columns, >= 1.
        row_columns: ones in a row at most, 1 to `columns`; None for no bound.
        rows_per_unit: rows of one person at most, at any steps, many at one step too. None: the unit is one row.
    """

    epsilon: float
    delta: float = 0.0
    horizon: int
    columns: int = 1
    row_columns: int | None = None
    rows_per_unit: int | None = None
    proved: ClassVar[str]
    noise_label = "continual counter"
    state_type = CounterState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        for name, largest in (("horizon", LARGEST_HORIZON), ("columns", LARGEST_COLUMNS)):
            checks.integer(name, getattr(self, name), minimum=1, maximum=largest)
        if self.row_columns is not None and checks.integer("row_columns", self.row_columns, minimum=1) > self.columns:
            raise ValueError(f"row_columns must be <= columns {self.columns}, got {self.row_columns}")
        if self.rows_per_unit is not None:
            checks.integer("rows_per_unit", self.rows_per_unit, minimum=1)

    def _check_noise(self, make_law: Callable[[], Any]) -> None:
        """Refuse a budget so small that noise cannot be drawn: now, not in mid-stream."""
        try:
            make_law()
        except ValueError:
            need = f"for {self.horizon:,} steps and rows of {self.touched:,} columns"
            raise ValueError(f"epsilon must be larger {need}, got {self.epsilon}") from None

    @property
    def touched(self) -> int:
        """Columns whose sums one row moves, each by 1, at most."""
        return self.columns if self.row_columns is None else self.row_columns

    @property
    @override
    def curve(self) -> PrivacyCurve:
        return noise_curve(self.epsilon, self.delta)

    @property
    @override
    def proof(self) -> str:
        return f"docs/proofs/counters.md, {self.proved}{'' if self.rows_per_unit is None else ', and Theorem 5'}"

    @abstractmethod
    def variance(self, step: int) -> float:
        """Return the variance of the noise on each column at `step` = 1, 2, .."""

    @abstractmethod
    def error(self, step: int, beta: float) -> int:
        """Return z such that all columns at all of steps 1 .. `step` are within z with probability 1 - beta."""

    def spread(self, step: int, beta: float) -> int:
        """Return z such that one column at `step` alone is within z with probability 1 - beta."""
        return self.error(step, beta)  # of all columns and steps: others know more

    @abstractmethod
    def _initial_memory(self) -> NDArray[Any]: ...

    @abstractmethod
    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[NDArray[Any], Integers]:
        """Return the next memory and the noise (n, columns) of the steps after `state`, true sums (n, columns)."""

    @override
    def initial_state(self) -> CounterState:
        return CounterState(step=0, totals=np.zeros(self.columns, np.int64), memory=self._initial_memory())

    @override
    def run(self, state: CounterState, matrix: ArrayLike, noise: NoiseSource) -> tuple[CounterState, Integers]:
        values = checked_rows(np.asarray(matrix), self.columns, LARGEST_ENTRY, negative=True)
        check_end(state.step + len(values), self.horizon)
        source = self._source(noise)
        published = np.empty(values.shape, np.int64)
        rows = max(1, min(_LONGEST_CHUNK, _CHUNK // self.columns))
        for start in range(0, len(values), rows):
            sums = np.cumsum(values[start : start + rows], axis=0, dtype=np.int64)
            sums += state.totals
            if np.any(np.abs(sums) > LARGEST_TOTAL):
                raise ValueError("matrix must keep all sums within +-2**60")
            memory, drawn = self._noise(state, sums, source)
            np.add(sums, drawn, out=published[start : start + rows])
            state = CounterState(step=state.step + len(sums), totals=sums[-1].copy(), memory=memory)
        return state, published

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        return checks.step(step, self.horizon)


def checked_rows(matrix: NDArray[Any], columns: int, largest: int, *, negative: bool) -> NDArray[Any]:
    """Return the rows of a run if they are integers of the right shape and range. Messages quote no value."""
    if matrix.ndim != 2 or matrix.shape[1] != columns:
        raise ValueError(f"matrix must have shape (n, {columns}), got {matrix.shape}")
    if matrix.dtype.kind not in "iu":
        raise TypeError(f"matrix must contain integers, got {matrix.dtype}")
    least = -largest if negative else 0
    if matrix.size and (matrix.max() > largest or matrix.min() < least):
        power = f"2**{largest.bit_length() - 1}"
        raise ValueError(f"matrix must contain integers between {f'-{power}' if negative else 0} and {power}")
    return matrix


def check_end(step: int, horizon: int | None) -> None:
    """Refuse to go beyond the horizon."""
    if horizon is not None and step > horizon:
        raise HorizonExceeded(f"step must be <= horizon {horizon}, got {step}")


def node_law(epsilon: float, delta: float, changes: int, rows_per_unit: int | None = None) -> SymmetricNoise:
    """Return the noise for integers of which one row moves at most `changes`, each by 1."""
    rows = rows_per_unit or 1
    if delta == 0:
        return DiscreteLaplace(math.nextafter(changes * rows / epsilon, math.inf))
    if rows_per_unit is None:
        return DiscreteGaussian(counting_sigma(epsilon, delta, changes))
    return DiscreteGaussian(sensitivity_sigma(epsilon, delta, rows * math.sqrt(changes) * (1 + 1e-12)))


def row_limits(columns: int, row_columns: int | None, rows_per_unit: int | None) -> tuple[str, ...]:
    """Return sentences that say what a row, and a person, is limited to."""
    ones = "any number of ones" if row_columns is None else f"at most {row_columns:,} one{'s' * (row_columns > 1)}"
    sentences = [f"A row is added at one step, has {columns:,} column{'s' * (columns > 1)} and {ones}."]
    if rows_per_unit is not None:
        rows = f"{rows_per_unit:,} row{'s' * (rows_per_unit > 1)}"
        sentences.append(f"A person has at most {rows} in the whole run, at any steps.")
    return tuple(sentences)


def bound_noise(law: Any, source: NoiseSource, nodes: NDArray[Any], sums: Integers) -> Integers:
    """Draw the noise of nodes, (n, columns), bound to the true sums (n, columns) when each is first used."""
    labels = np.empty((*sums.shape, 2), np.uint64)
    labels[:, :, 0], labels[:, :, 1] = nodes[:, None], np.arange(sums.shape[1])
    return cast(Integers, law.draw(source, source.bind(labels.reshape(-1, 2), sums.reshape(-1))).reshape(sums.shape))


def counter_error(counter: ContinualCounter, intervals: int, beta: float) -> int:
    """Return an error that the counter keeps within for all its steps with probability 1 - beta, at `intervals` steps.

    Steps are counted up to a power of two, each with its share of beta.
    """
    return _doubled_error(counter, max(0, intervals - 1).bit_length(), beta)


@functools.lru_cache(maxsize=4096)
def _doubled_error(counter: Any, doublings: int, beta: float) -> int:
    steps = min(1 << doublings, counter.horizon)
    return int(counter.error(steps, beta / ((doublings + 1) * (doublings + 2))))


def prefix_sums(base: int, first: int, nodes: Integers, path: Integers) -> tuple[Integers, Integers]:
    """Return f(t) = node(t) + f(t - u), f(0) = 0, u the largest power of `base` in t, after `first`; and the next path.

    `nodes` (n, columns) end at steps first + 1, ..; row h of `path` is f(first with its h lowest digits cleared).
    """
    sums, path = nodes.copy(), path.copy()
    for place in range(len(sums)):
        height = 0  # of the node that ends here
        while (first + 1 + place) % base ** (height + 1) == 0:
            height += 1
        sums[place] += path[height]
        path[: height + 1] = sums[place]
    return sums, path


@dataclass(frozen=True, kw_only=True)
class TreeCounter(ContinualCounter):
    """Continual column sums from a tree of noisy partial sums: the noise at a step is that of some complete nodes.

    A prefix is the sum of as many nodes as its number has in digits to base `arity`: with two children, of few nodes in
    a high tree; with many, of more nodes of less noise each. In short runs the tree has one level: each step has noise
    of its own.

    Privacy:
        Unit: one row over the whole run; see `guarantee`. A row enters at most `height` = h nodes, h the number of
        digits of the horizon; the noise of a node is discrete Laplace of scale h s / epsilon, or discrete Gaussian with
        sigma about sqrt(h s) times that of one count, s = columns touched by one row. It is a function of the node's
        label and of the true sum when the node is complete: a replay with other data from some step on draws fresh
        noise there.

    Accuracy:
        `variance(t)` = sum of digits of t times that of a node; `error(t, beta)` is a union bound. Time
        per step O(columns), amortised; the state has h + 1 numbers per column.

    Attributes:
        children: of a node; None for the number with the least variance at the worst step. The others are those of
            `ContinualCounter`.

    Example:
        >>> counter = TreeCounter(epsilon=1.0, horizon=1000)
        >>> counter.arity, counter.height
        (11, 3)
        >>> TreeCounter(epsilon=1.0, horizon=24).height
        1

    Source: Dwork, Naor, Pitassi, Rothblum (2010); Chan, Shi, Song (2011); Qardaji, Yang, Li, Understanding Hierarchical
    Methods for Differentially Private Histograms (2013); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 1"
    children: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.children is not None:
            checks.integer("children", self.children, minimum=2)
        self._check_noise(lambda: self.law)

    @cached_property
    def arity(self) -> int:
        """Children of a node."""
        return self.children or best_arity(self.horizon)

    @cached_property
    def height(self) -> int:
        """Nodes that contain one step."""
        return len(plain_digits(self.arity, self.horizon))

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a node."""
        return node_law(self.epsilon, self.delta, self.height * self.touched, self.rows_per_unit)

    def nodes(self, step: int) -> int:
        """Return the number of nodes whose noise is in the sums at `step`."""
        return sum(plain_digits(self.arity, step))

    @override
    def variance(self, step: int) -> float:
        return self.law.variance * self.nodes(self._step_number(step))

    @override
    def spread(self, step: int, beta: float) -> int:
        return sum_spread([(self.law, self.nodes(self._step_number(step)))], beta)

    @override
    def error(self, step: int, beta: float) -> int:
        return self.error_after((), step, beta)

    @property
    def end(self) -> tuple[SymmetricNoise, int]:
        """What the noise at the horizon is the sum of: a law, and how often."""
        return self.law, self.nodes(self.horizon)

    def error_after(self, ends: Sequence[tuple[SymmetricNoise, int]], step: int, beta: float) -> int:
        """Return the same for this counter's noise plus the given number of variables of each law in `ends`."""
        # Prefixes that differ in their last digit are partial sums of symmetric noises: of all together one is beyond
        # a bound with at most twice the probability of the last one (Levy). A union bound for the rest.
        parts = [(self.law, most_digits(self.arity, self._step_number(step))), *ends]
        walks = self.columns * min(step, 2 * (step // self.arity + 1))
        return sum_quantile(parts, math.log(checks.probability("beta", beta)) - math.log(walks))

    def _initial_memory(self) -> Integers:
        return np.zeros((self.height, self.columns), np.int64)

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Integers, Integers]:
        steps = np.arange(state.step + 1, state.step + 1 + len(sums))
        nodes = bound_noise(self.law, source, steps, sums)
        drawn, path = prefix_sums(self.arity, state.step, nodes, state.memory)
        return path, drawn
