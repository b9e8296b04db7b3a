"""OnlineMultiplicativeWeights: linear queries answered in order from a hypothesis that learns from its errors."""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PrivacyCurve
from privstream.mechanisms.selection.sparse_vector import (
    LARGEST,
    VALUES,
    Progress,
    QueryMechanism,
    SparseVector,
    integers,
)
from scipy import special
from typing_extensions import override

_LARGEST_DOMAIN = 2**24
_LARGEST_GUESS = 2**53  # of the number of records: the answers expected are floating-point numbers
_BLOCK = 2**22  # entries of queries that are multiplied at once
_ALPHAS = sorted({float(f"{alpha:.2g}") for alpha in np.geomspace(0.002, 0.99, 200).tolist()})
_LEAST_ALPHA = 1e-12  # noise grows with 1 / alpha^2: below, it has no bound that can be computed
_MARGIN = 9 / 16  # of alpha: errors above it lower the relative entropy by alpha^2 / 4 in each update


class LinearQueries(NamedTuple):
    """Input of a step: how many records there are of each kind, shape (domain_size,), private; and public queries.

    A query is a row of shape (domain_size,) with values 0 and 1: its answer is how many records it is 1 for.
    """

    counts: NDArray[np.int64]
    queries: NDArray[Any]


class LinearAnswers(NamedTuple):
    """Answers to the first queries of a step, in order, and which of them were measured and taught the hypothesis."""

    values: Floats
    measured: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """State of a run: a law over the domain in logarithms, and the tests made. A function of published answers."""

    tests: Progress
    log_law: Floats

    def __post_init__(self) -> None:
        self.log_law.setflags(write=False)


@dataclass(frozen=True, kw_only=True)
class OnlineMultiplicativeWeights(QueryMechanism, Mechanism[Hypothesis]):
    """Answers any number of linear queries over a finite domain, and pays only when its hypothesis is wrong.

    The hypothesis starts uniform. A query is answered from it, for free, unless a `SparseVector` with values finds that
    this answer is wrong by about alpha `records`: then the noisy true answer is published and the hypothesis updated.

    Privacy:
        Unit: one record added or removed. (epsilon, delta)-DP however many queries are asked; queries may depend on all
        earlier answers. The data must be the same in all steps. Public: the parameters, the queries and their number.

    Accuracy:
        With probability 1 - beta, all answers are within `accuracy(queries, beta)` of the truth;
        and, if there are exactly `records` records and at least `records_needed(queries, beta)` of them, the run does
        not halt before all these queries are answered.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=4, records=10**6, alpha=0.1)
        >>> given = LinearQueries(np.array([7, 1, 1, 1]) * 100_000, np.array([[1, 0, 0, 0], [0, 1, 1, 0]]))
        >>> _, answers = mechanism.step(mechanism.initial_state(), given, SeededNoise(1))
        >>> answers.measured.tolist(), answers.values.round(-5).tolist()
        ([True, True], [700000.0, 200000.0])

    Source: Hardt and Rothblum (2010); Dwork and Roth (2014), Algorithms 5 and 6; docs/proofs/multiplicative_weights.md.
    """

    epsilon: float
    delta: float = 0.0  # in [0, 1); > 0 pays for many updates
    domain_size: int  # kinds of records, from 2 to 2^24
    records: int  # how many, public, from 1 to 2^53, exact or estimated: a wrong one costs accuracy, not privacy
    alpha: float  # error, as a part of `records`, from which the hypothesis is corrected, in (0, 1)
    noise_label = "multiplicative weights"
    state_type = Hypothesis
    proof = "docs/proofs/multiplicative_weights.md, section Privacy"
    public = ("all parameters", "the queries and their number")
    adaptivity = "Queries may depend on all earlier answers."

    def __post_init__(self) -> None:
        checks.integer("domain_size", self.domain_size, minimum=2, maximum=_LARGEST_DOMAIN)
        checks.integer("records", self.records, minimum=1, maximum=_LARGEST_GUESS)
        if checks.probability("alpha", self.alpha) < _LEAST_ALPHA:
            raise ValueError(f"alpha must be >= {_LEAST_ALPHA:g}, got {self.alpha}")
        _ = self.tests  # checks the other parameters

    @classmethod
    def most_accurate(cls, *, queries: int, beta: float, **parameters: Any) -> Self:
        """Return the mechanism whose alpha, of two digits, gives the least error among those that answer all queries.

        The error is for a number of queries, and larger with probability `beta`; parameters are all but alpha.
        """
        checks.integer("queries", queries, minimum=1)
        checks.probability("beta", beta)
        found: list[tuple[bool, float, Self]] = []
        for alpha in _ALPHAS:
            with suppress(ValueError):
                made = cls(alpha=alpha, **parameters)
                found.append((made.records_needed(queries, beta) > made.records, made.accuracy(queries, beta), made))
        if not found:
            return cls(alpha=_ALPHAS[-1], **parameters)  # raises what is wrong
        return min(found, key=itemgetter(0, 1))[2]

    @property
    def max_updates(self) -> int:
        """Number of updates after which the run halts, just above 4 ln(domain_size) / alpha^2."""
        return math.floor(4 * math.log(self.domain_size) / self.alpha**2) + 1

    @cached_property
    def tests(self) -> SparseVector:
        """The mechanism that finds wrong answers; nothing else sees the data."""
        return SparseVector(epsilon=self.epsilon, delta=self.delta, max_hits=self.max_updates, publish=VALUES)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        halts = f"It covers the whole run, which halts after {self.max_updates} measured answers."
        return (halts, "All steps see the same data.")

    @property
    @override
    def curve(self) -> PrivacyCurve:
        return self.tests.curve

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the error of the class docstring for a number of queries, as a number of records."""
        return self.alpha * self.records + self._test_error(queries, beta)

    def records_needed(self, queries: int, beta: float) -> int:
        """Return from how many records on the run answers a number of queries with probability 1 - beta.

        Any number is enough if there are no more queries than answers that may be measured.
        """
        if checks.integer("queries", queries, minimum=1) <= self.max_updates:
            return 1
        return math.ceil(self._test_error(queries, beta) / ((1 - _MARGIN) * self.alpha))

    def _test_error(self, queries: int, beta: float) -> float:
        # Two tests for each query. Thresholds that are no integers are rounded up, by less than 1.
        return self.tests.accuracy(2 * checks.integer("queries", queries, minimum=1), beta) + 1

    @override
    def initial_state(self) -> Hypothesis:
        return Hypothesis(tests=Progress(), log_law=np.full(self.domain_size, -math.log(self.domain_size)))

    def updates(self, state: Hypothesis) -> int:
        """Return how many answers were measured so far: those are what the budget of `max_updates` is for."""
        return state.tests.hits

    def step(self, state: Hypothesis, given: LinearQueries, noise: NoiseSource) -> tuple[Hypothesis, LinearAnswers]:
        """Answer queries in order, up to and including the last that is paid for.

        There are fewer answers than queries if the run halts before. Every run needs noise of its own.

        Raises:
            BudgetSpent: the run had halted before.
        """
        counts, queries = self._checked(given)
        if len(queries) and state.tests.hits >= self.max_updates:
            raise BudgetSpent(f"updates must stay <= {self.max_updates}; the run has halted and answers no more")
        truths = _products(queries, counts)
        source = self._source(noise)
        values, measured = np.zeros(len(queries)), np.zeros(len(queries), dtype=np.bool_)
        done = 0
        while done < len(queries) and state.tests.hits < self.max_updates:
            expected = self.records * _products(queries[done:], np.exp(state.log_law))
            tests, row, value, sign = self._first_error(state.tests, truths[done:], expected, source)
            values[done : done + row] = expected[:row]
            state = Hypothesis(tests=tests, log_law=state.log_law)
            if sign:
                values[done + row], measured[done + row] = value, True
                moved = state.log_law + self.alpha / 2 * sign * queries[done + row]
                state = Hypothesis(tests=tests, log_law=np.asarray(moved - special.logsumexp(moved)))
            done += row + abs(sign)
        return state, LinearAnswers(values[:done], measured[:done])

    def _first_error(
        self, tests: Progress, truths: Integers, expected: Floats, noise: NoiseSource
    ) -> tuple[Progress, int, float, int]:
        """Return the tests made, how many answers come before the first wrong one, its value, and the error's sign.

        The sign is 0 if none is wrong.
        """
        values = np.stack([truths, -truths], axis=1).ravel()
        bars = np.stack([expected, -expected], axis=1).ravel() + self.alpha * self.records
        thresholds = np.ceil(bars).astype(np.int64)
        after, answers = self.tests.step(tests, values, noise, thresholds=thresholds)
        if not answers.hits.any():
            return after, len(truths), 0.0, 0
        end = int(answers.hits.argmax()) + 1
        # What the tests found after the first hit is about an outdated hypothesis; it is asked anew.
        after, answers = self.tests.step(tests, values[:end], noise, thresholds=thresholds[:end])
        sign = 1 if end % 2 else -1
        return after, (end - 1) // 2, sign * float(answers.numbers[0]), sign

    def _checked(self, given: LinearQueries) -> tuple[Integers, Integers]:
        counts = integers("counts", given.counts)
        queries = np.asarray(given.queries)
        if counts.shape != (self.domain_size,) or (counts < 0).any():
            raise ValueError(f"counts must be {self.domain_size} numbers >= 0, got shape {counts.shape}")
        if counts.sum(dtype=np.float64) > LARGEST:
            raise ValueError("counts must sum to at most 2**60")
        if queries.dtype.kind not in "biu" or not np.all((queries >= 0) & (queries <= 1)):
            raise ValueError("queries must be integers, 0 or 1")
        if queries.ndim != 2 or queries.shape[1] != self.domain_size:
            raise ValueError(f"queries must have shape (n, {self.domain_size}), got {queries.shape}")
        return counts, queries.astype(np.int64)


def _products(queries: NDArray[Any], weights: NDArray[Any]) -> Any:
    """Return the sum of weights over each query, summed row by row so that no row depends on its company."""
    rows = max(1, _BLOCK // len(weights))
    sums = [(queries[i : i + rows] * weights).sum(axis=1) for i in range(0, len(queries), rows)]
    return np.concatenate([np.zeros(0, dtype=np.result_type(queries, weights)), *sums])
