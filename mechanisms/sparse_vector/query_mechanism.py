"""What mechanisms on queries of sensitivity 1 share: tests of a hidden threshold, parameters and guarantees."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.mechanism import Mechanism, packed_parameters
from privstream.mechanisms.noise.continuous import Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.gaps import IntegersOrReals
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PrivacyCurve, PureDp
from privstream.mechanisms.privacy.guarantee import (
    COMPARED_FLOATS,
    NEIGHBOURING,
    PUBLISHED_FLOATS,
    PrivacyGuarantee,
    noise_caveats,
)
from privstream.mechanisms.privacy.units import PrivacyUnit
from typing_extensions import override

State = TypeVar("State")
Answered = TypeVar("Answered")
Selected = TypeVar("Selected")

LARGEST = 2**60  # of integer values and thresholds: their sums with noise stay within 64 bits
_CHUNK = 2**16  # queries whose noise is drawn at once
_ROUNDS = 256  # threshold noises drawn at once


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a run: queries asked and hits so far. A function of the published answers, so it is no secret."""

    asked: int = 0
    hits: int = 0


@dataclass(frozen=True, kw_only=True)
class HiddenThreshold:
    """Hit iff value + Lap(2 scale) >= threshold + Lap(scale), the latter redrawn after each hit, until `max_hits`.

    The noise of the i-th query is a function of the source and i, that of the threshold after j hits of the source and
    j. So nothing secret is stored, and a vector is answered in pieces as it is at once.
    """

    scale: float
    max_hits: int
    integer: bool

    def test(self, state: Progress, gaps: IntegersOrReals, noise: NoiseSource) -> tuple[Progress, NDArray[np.bool_]]:
        """Return the next state and hit or miss for each of `gaps` = values - thresholds up to the halt."""
        if len(gaps) and state.hits >= self.max_hits:
            raise BudgetSpent(f"hits must stay <= {self.max_hits}; the run has halted and answers no more")
        found: list[int] = []
        query_noise, threshold_noise = noise.derive("query"), noise.derive("threshold")
        for start in range(0, len(gaps), _CHUNK):
            chunk = gaps[start : start + _CHUNK]
            noisy = chunk + self._law(2 * self.scale).draw(query_noise, query_labels(state.asked + start, len(chunk)))
            found += [start + i for i in self._hits(noisy, state.hits + len(found), threshold_noise)]
            if state.hits + len(found) >= self.max_hits:
                break
        halted = state.hits + len(found) >= self.max_hits
        hits = np.zeros(found[-1] + 1 if halted and found else len(gaps), dtype=np.bool_)
        hits[found] = True
        return Progress(asked=state.asked + len(hits), hits=state.hits + len(found)), hits

    def _hits(self, noisy: IntegersOrReals, lives: int, noise: NoiseSource) -> list[int]:
        """Return the indices of the hits among noisy gaps, the threshold being redrawn `lives` times before."""
        found: list[int] = []
        start = 0
        while start < len(noisy) and lives + len(found) < self.max_hits:
            rounds = min(_ROUNDS, len(noisy) - start, self.max_hits - lives - len(found))
            barriers = self._law(self.scale).draw(noise, query_labels(lives + len(found), rounds))
            candidates = start + np.flatnonzero(noisy[start:] >= barriers.min())
            ahead, end = iter(barriers.tolist()), len(found) + rounds
            barrier = next(ahead)
            start = len(noisy)
            for index, value in zip(candidates.tolist(), noisy[candidates].tolist(), strict=True):
                if value >= barrier:
                    found.append(index)
                    if len(found) == end:
                        start = index + 1
                        break
                    barrier = next(ahead)
        return found

    def _law(self, scale: float) -> Laplace | DiscreteLaplace:
        """Return the noise law of this kind of data."""
        return DiscreteLaplace(scale) if self.integer else Laplace(scale)

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha up to which every answer is right with probability 1 - beta.

        A union over queries of their noise plus the largest noise of all thresholds, of which there are no more than
        queries: docs/proofs/sparse_vector.md, section Accuracy. A discrete Laplace variable exceeds x + 1/2 with no
        more probability than a continuous one exceeds x, so integers add twice 1/2.
        """
        number = min(self.max_hits, checks.integer("queries", queries, minimum=1))
        thresholds = math.lgamma(number + 1) + math.lgamma(0.5) - math.lgamma(number + 0.5)
        logs = math.log(queries / (2 * checks.probability("beta", beta))) + thresholds
        return 2 * self.scale * logs + (1 if self.integer else 0)


def query_labels(first: int, count: int) -> NDArray[np.uint64]:
    """Return the noise labels first, first + 1, .."""
    return np.uint64(first) + np.arange(count, dtype=np.uint64)


def _integers(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Return an array of integers within range as int64."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers with integer=True, got {array.dtype}")
    if array.size and (array.max() > LARGEST or array.min() < -LARGEST):
        raise ValueError(f"{name} must be between -2**60 and 2**60 with integer=True")
    return array.astype(np.int64)


def _reals(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array of finite numbers as float64."""
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    numbers = array.astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"{name} must be finite")
    return numbers


WHOLE_RUN = "It covers the whole run"
ONE_SELECTION = "It covers one selection: those of several add up."
PUBLIC_ORDER: tuple[str, ...] = ("all parameters", "the number of queries and their order")
ONE_RELEASE = "The queries may depend on everything published before."
LAWS = ("exponential", "laplace")
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e11  # what the laws draw exactly, and fits into 64-bit integers


class QueryMechanism(ABC):
    """A mechanism on queries of sensitivity 1: parameters, checks and guarantee, which all of them share.

    If a subclass does not say otherwise, it tests queries one after the other, in a run.

    Attributes:
        epsilon: privacy loss of the whole run, or of one selection, > 0.
        threshold: public threshold of the queries that bring none of their own.
        integer: whether queries and thresholds are integers. All noise is then discrete, exactly as analysed. Otherwise
            it is floating-point noise, and the guarantee holds up to rounding; where noisy numbers are published, their
            low bits may betray more than the guarantee says (Mironov 2012): use it for quantities that are not counts,
            and round what you publish.
        monotone: whether one change of the data moves all queries in the same direction, as adding a person does with
            counts. Needs half the noise on queries. Not for "replace_one".
        noise_law: "exponential" (half the variance) or "laplace"; with `integer` geometric and discrete Laplace.
        neighbouring: "add_remove" or "replace_one", the relation under which the queries have sensitivity 1.

    A parameter that a subclass does not have is as it is here.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.
    """

    epsilon: float
    neighbouring: str
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "laplace"
    proof: ClassVar[str]
    floats: ClassVar[str] = PUBLISHED_FLOATS
    public: ClassVar[tuple[str, ...]] = ("all parameters", "the thresholds", "the number of queries")
    adaptivity: ClassVar[str] = "Queries and thresholds may depend on all earlier answers."

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run, or of one selection."""
        return PrivacyGuarantee(
            unit=self.unit,
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=getattr(self, "delta", 0.0),
            limits=self.limits,
            public=self.public,
            adaptivity=self.adaptivity,
            proof=self.proof,
            caveats=noise_caveats(self.integer, self.floats),
            curve=self.curve,
        )

    @property
    def unit(self) -> PrivacyUnit:
        """What the guarantee protects."""
        return PrivacyUnit(what="query", same_direction=self.monotone)

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of what the guarantee covers."""
        return PureDp(self.epsilon)

    def _check_queries(self, *scales: float) -> None:
        """Check the parameters that these mechanisms share, and the noise scales that they give."""
        checks.boolean("integer", self.integer)
        checks.real("threshold", self.threshold)
        if self.integer and checks.integer("threshold", self.threshold, minimum=-LARGEST) > LARGEST:
            raise ValueError(f"threshold must be <= 2**60, got {self.threshold}")
        checks.one_of("noise_law", self.noise_law, LAWS)
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))
        for scale in scales:
            if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
                raise ValueError(f"epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of {scale:g}")
        if checks.boolean("monotone", self.monotone) and self.neighbouring == "replace_one":
            raise ValueError("monotone must be False for replace_one: one count may grow while another one shrinks")

    def _vector(self, values: ArrayLike) -> IntegersOrReals:
        """Return the values of queries as a fresh array of integers or real numbers. Messages never quote a value."""
        queries: NDArray[Any] = np.asarray(values)
        if queries.ndim != 1:
            raise ValueError(f"values must be one-dimensional, got {queries.ndim} dimensions")
        return self._numbers("values", queries if len(queries) else np.zeros(0, dtype=np.int64))

    def _bars(self, thresholds: ArrayLike | None, queries: int) -> IntegersOrReals:
        """Return the thresholds of so many queries, one for all or one for each: those given, or `threshold`."""
        bars: NDArray[Any] = np.asarray(self.threshold if thresholds is None else thresholds)
        if bars.shape not in {(), (queries,)}:
            raise ValueError(f"thresholds must be one number or {queries} numbers, got shape {bars.shape}")
        return self._numbers("thresholds", bars)

    def _numbers(self, name: str, array: NDArray[Any]) -> IntegersOrReals:
        return _integers(name, array) if self.integer else _reals(name, array)


class Answers(NamedTuple):
    """Hit or miss for the first queries of a step, in order; fewer than asked if the mechanism halted among them."""

    hits: NDArray[np.bool_]

    @property
    def answered(self) -> int:
        """Number of queries answered."""
        return len(self.hits)


class QuerySelection(QueryMechanism, Generic[Selected]):
    """A mechanism that looks at all queries at once, and selects some of them."""

    public = PUBLIC_ORDER
    adaptivity = ONE_RELEASE

    @abstractmethod
    def select(self, values: ArrayLike, noise: NoiseSource) -> Selected:
        """Select queries.

        The noise of a query depends on its index and its true value: a replay repeats the answer, a replay with other
        data does not repeat the noise.

        Args:
            values: true values of the queries, shape (n,); private.
            noise: the noise of this selection; give every selection a source of its own.

        Returns:
            The indices of what was selected, the largest first, their gaps, and what it cost.

        Raises:
            ValueError: there are too few queries to select from.
        """


class QueryRun(QueryMechanism, Mechanism[State], Generic[State, Answered]):
    """A mechanism that answers queries in order, in steps. Its state is a function of published answers."""

    @abstractmethod
    def step(
        self, state: State, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[State, Answered]:
        """Answer queries in order, up to and including the last hit that is paid for.

        A vector is answered in pieces as it is at once. The noise of what is published depends on a query's position
        and on its true value: a replay repeats the answer, a replay with other data does not repeat the noise.

        Args:
            state: where the run stands.
            values: true values of the queries, shape (n,); private.
            noise: the noise of this run; give every run a source of its own.
            thresholds: one threshold or n, in place of `threshold`; public.

        Returns:
            The next state, and the answers: fewer than n if the run halted before the last query.

        Raises:
            BudgetSpent: the run had halted before.
        """


class HitMechanism(QueryRun[Progress, Answers]):
    """A mechanism that answers hit or miss."""

    floats = COMPARED_FLOATS
    noise_label = "sparse vector"
    state_type = Progress
    parameters = cached_property(packed_parameters)

    @property
    @abstractmethod
    def tests(self) -> HiddenThreshold:
        """The tests, with their noise."""

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return self.tests.accuracy(queries, beta)

    @override
    def step(
        self, state: Progress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[Progress, Answers]:
        queries = self._vector(values)
        gaps: IntegersOrReals = np.subtract(queries, self._bars(thresholds, len(queries)))
        state, hits = self.tests.test(state, gaps, self._source(noise))
        return state, Answers(hits)
