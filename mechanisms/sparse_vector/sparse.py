"""Sparse and NumericSparse: the first c queries above a threshold, and their noisy values."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.continuous import Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.gaps import IntegersOrReals
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import (
    ComposedCurve,
    connect_dots,
    least_epsilon,
    losses,
    smallest,
)
from privstream.mechanisms.sparse_vector.query_mechanism import (
    WHOLE_RUN,
    HiddenThreshold,
    HitMechanism,
    Progress,
    QueryRun,
    query_labels,
)
from scipy import special
from typing_extensions import override

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_ROUNDING = 1e-12  # relative; losses within it of the largest one count as the largest


@dataclass(frozen=True, kw_only=True)
class PureComposition:
    """The adaptive composition of `rounds` mechanisms, each `round_epsilon`-DP; exact for the worst of them.

    Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3: nothing is worse than so many randomised responses.
    """

    rounds: int
    round_epsilon: float

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, minimum=1)
        checks.positive("round_epsilon", self.round_epsilon)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which the composition is (epsilon, delta)-DP."""
        return float(self._divergence(np.array([checks.non_negative("epsilon", epsilon)]))[0])

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, rounded up, for which the composition is (epsilon, delta)-DP."""
        return self.rounds * self.round_epsilon if delta == 0 else least_epsilon(self.delta, delta)

    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Return a pessimistic privacy loss distribution on multiples of `interval`."""
        divergences = connect_dots(lambda epsilon: (self._divergence(epsilon),) * 2, interval)
        return losses().PrivacyLossDistribution(divergences[0])

    def _divergence(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Pr[loss > epsilon] - e^epsilon Pr'[loss > epsilon] for the loss (2 B - rounds) round_epsilon.

        B counts the true answers among `rounds` randomised responses.
        """
        largest = self.rounds * self.round_epsilon * (1 - _ROUNDING)
        needed = np.minimum(np.floor((self.rounds + epsilon / self.round_epsilon) / 2), self.rounds)
        with np.errstate(divide="ignore"):
            likely, unlikely = (
                np.log(special.bdtrc(needed, self.rounds, special.expit(sign * self.round_epsilon))) for sign in (1, -1)
            )
        difference = np.exp(likely) - np.exp(np.minimum(epsilon + unlikely, likely))
        return np.where(epsilon >= largest, 0.0, difference)


@dataclass(frozen=True, kw_only=True)
class Sparse(HitMechanism):
    """Answers sensitivity-1 queries with hit or miss until the `max_hits`-th hit, then halts.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        (epsilon, delta)-DP however many queries are asked; queries and thresholds may depend on all earlier answers.
        Public: the parameters, the thresholds and the number of queries. The run composes `max_hits` AboveThresholds.
        For delta = 0 their epsilons add up. For delta > 0 noise is the least for which the exact composition theorem
        gives (epsilon, delta): never more than for delta = 0.

    Accuracy:
        Over k queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss
        value <= threshold + alpha, where alpha = `accuracy(k, beta)` is 2 `noise_scale` ln(k g / (2 beta)) with
        g = sqrt(pi) Gamma(c + 1) / Gamma(c + 1/2), about sqrt(pi c), c = max_hits, and 1 more on integers.

    Attributes:
        delta: in [0, 1).
        max_hits: number of hits after which the run halts, >= 1.

    All other attributes are those of `QueryMechanism`.

    Raises:
        ValueError, TypeError: a parameter breaks its rule.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = Sparse(epsilon=1.0, max_hits=2, threshold=500, integer=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))
        >>> answers.hits.tolist()
        [False, True, False, True]

    Source: Dwork and Roth, The Algorithmic Foundations of Differential Privacy (2014), Algorithm 2, Theorems 3.25
    and 3.26; docs/proofs/sparse_vector.md.
    """

    epsilon: float
    delta: float = 0.0
    max_hits: int = 1
    threshold: float = 0
    integer: bool = False
    neighbouring: str = "add_remove"
    proof = "docs/proofs/sparse_vector.md, section Sparse"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("max_hits", self.max_hits, minimum=1)
        self._check_queries(self.noise_scale)

    @property
    def noise_scale(self) -> float:
        """Scale of the threshold's noise; a query's is twice that."""
        return noise_scale(self.epsilon, self.delta, self.max_hits, 2)

    @property
    @override
    def curve(self) -> PureComposition:
        return PureComposition(rounds=self.max_hits, round_epsilon=2 / self.noise_scale)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return (f"{WHOLE_RUN}, which halts at hit number {self.max_hits}.",)

    @override
    def _source(self, noise: NoiseSource) -> NoiseSource:
        return super()._source(noise.derive("composed exactly") if self.delta > 0 else noise)

    @cached_property
    @override
    def tests(self) -> HiddenThreshold:
        return HiddenThreshold(scale=self.noise_scale, max_hits=self.max_hits, integer=self.integer)


@functools.lru_cache(maxsize=1024)
def noise_scale(epsilon: float, delta: float, max_hits: int, changes: int) -> float:
    """Return the least scale with which so many hits are (epsilon, delta)-DP together, each by `changes` / scale.

    For delta = 0 that is `changes` * `max_hits` / epsilon, and for delta > 0 never more.
    """
    pure = changes * max_hits / epsilon
    if delta == 0:
        return pure

    def private(scale: float) -> bool:
        return PureComposition(rounds=max_hits, round_epsilon=changes / scale).delta(epsilon) <= delta

    return smallest(private, pure / (_MOST_GAIN * max_hits), pure, precision=1e-9)


_MOST_GAIN = 1e4  # less noise by more than this is not looked for
_SHARE_OF_VALUES = 1 / 9  # of epsilon, as in the source for delta = 0


class NumericAnswers(NamedTuple):
    """Hit or miss for the first queries of a step, in order, and the noisy values of those that hit, in order."""

    hits: NDArray[np.bool_]
    values: IntegersOrReals

    @property
    def answered(self) -> int:
        """Number of queries answered."""
        return len(self.hits)


@dataclass(frozen=True, kw_only=True)
class NumericSparse(QueryRun[Progress, NumericAnswers]):
    """Answers sensitivity-1 queries with a noisy value or a miss until the `max_hits`-th value, then halts.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        (epsilon, delta)-DP however many queries are asked; queries and thresholds may depend on all earlier answers.
        Public: the parameters, the thresholds and the number of queries. A `Sparse` with 8/9 of epsilon decides which
        queries hit (for delta > 0 with half of delta); the values have noise of their own and cost the rest, both by
        the exact composition theorem. `guarantee.curve` composes both and is tighter.

    Accuracy:
        Over k queries, with probability 1 - beta, each published value is within alpha of the truth, which is
        >= threshold - alpha, and each miss is <= threshold + alpha, where alpha = `accuracy(k, beta)` is the larger of
        that of the tests, for beta / 2, and `value_scale` ln(2 c / beta), c = max_hits, 1 more on integers.

    Attributes:
        delta: in [0, 1).
        max_hits: number of values after which the run halts, >= 1.

    All other attributes are those of `QueryMechanism`.

    Raises:
        ValueError, TypeError: a parameter breaks its rule.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = NumericSparse(epsilon=1.0, max_hits=2, threshold=500, integer=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))
        >>> answers.hits.tolist(), answers.values.dtype
        ([False, True, False, True], dtype('int64'))

    Source: Dwork and Roth, The Algorithmic Foundations of Differential Privacy (2014), Algorithm 3, Theorems 3.27
    and 3.28; docs/proofs/sparse_vector.md.
    """

    epsilon: float
    delta: float = 0.0
    max_hits: int = 1
    threshold: float = 0
    integer: bool = False
    neighbouring: str = "add_remove"
    proof = "docs/proofs/sparse_vector.md, section NumericSparse"
    noise_label = "sparse vector"
    state_type = Progress
    parameters = cached_property(packed_parameters)

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("max_hits", self.max_hits, minimum=1)
        self._check_queries(self.value_scale)

    @cached_property
    def choice(self) -> Sparse:
        """The mechanism that decides which queries hit."""
        return Sparse(
            epsilon=self.epsilon * (1 - _SHARE_OF_VALUES),
            delta=self.delta / 2,
            max_hits=self.max_hits,
            threshold=self.threshold,
            integer=self.integer,
            neighbouring=self.neighbouring,
        )

    @property
    def noise_scale(self) -> float:
        """Scale of the threshold's noise; a query's is twice that."""
        return self.choice.noise_scale

    @property
    def value_scale(self) -> float:
        """Scale of the noise on each published value."""
        return noise_scale(self.epsilon * _SHARE_OF_VALUES, self.delta / 2, self.max_hits, 1)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return (f"{WHOLE_RUN}, which halts at value number {self.max_hits}.",)

    @property
    @override
    def curve(self) -> ComposedCurve:
        return ComposedCurve(curves=(self.choice.curve, self._values_curve))

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        values = self.value_scale * math.log(2 * self.max_hits / checks.probability("beta", beta))
        return max(self.choice.accuracy(queries, beta / 2), values + (1 if self.integer else 0))

    @override
    def step(
        self, state: Progress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[Progress, NumericAnswers]:
        queries = self._vector(values)
        gaps: IntegersOrReals = np.subtract(queries, self._bars(thresholds, len(queries)))
        source = self._source(noise)
        after, hits = self.choice.tests.test(state, gaps, source)
        chosen = np.flatnonzero(hits)
        truths = queries[chosen]
        # Adding 0 makes one zero of the two floating-point ones.
        bound = source.derive("value").bind(query_labels(state.asked, len(gaps))[chosen], (truths + 0).view(np.int64))
        return after, NumericAnswers(hits, truths + self._value_law.draw(source.derive("value noise"), bound))

    @override
    def _source(self, noise: NoiseSource) -> NoiseSource:
        return super()._source(noise.derive("composed exactly") if self.delta > 0 else noise)

    @property
    def _values_curve(self) -> PureComposition:
        return PureComposition(rounds=self.max_hits, round_epsilon=1 / self.value_scale)

    @property
    def _value_law(self) -> Laplace | DiscreteLaplace:
        return DiscreteLaplace(self.value_scale) if self.integer else Laplace(self.value_scale)
