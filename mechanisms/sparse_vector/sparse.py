"""Sparse: the first c queries above a threshold, found by c AboveThresholds one after the other."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.accounting import connect_dots, least_epsilon
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold
from privstream.mechanisms.sparse_vector.hit_mechanism import HitMechanism
from privstream.mechanisms.sparse_vector.query_mechanism import WHOLE_RUN
from scipy import special, stats

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
        return PrivacyLossDistribution(*connect_dots(lambda epsilon: (self._divergence(epsilon),) * 2, interval))

    def _divergence(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Pr[loss > epsilon] - e^epsilon Pr'[loss > epsilon] for the loss (2 B - rounds) round_epsilon.

        B counts the true answers among `rounds` randomised responses.
        """
        largest = self.rounds * self.round_epsilon * (1 - _ROUNDING)
        needed = np.floor((self.rounds + epsilon / self.round_epsilon) / 2)
        likely = stats.binom.logsf(needed, self.rounds, special.expit(self.round_epsilon))
        unlikely = stats.binom.logsf(needed, self.rounds, special.expit(-self.round_epsilon))
        difference = np.exp(likely) - np.exp(np.minimum(epsilon + unlikely, likely))
        return np.where(epsilon >= largest, 0.0, difference)


@dataclass(frozen=True, kw_only=True)
class Sparse(HitMechanism):
    """Answers sensitivity-1 queries with hit or miss until the `max_hits`-th hit, then halts.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        (epsilon, delta)-DP however many queries are asked; queries and thresholds may depend on all earlier answers.
        Public: the parameters, the thresholds and the number of queries. The run composes `max_hits` AboveThresholds.
        For delta = 0 their epsilons add up. For delta > 0 the exact composition theorem is checked when the mechanism
        is made, since the textbook's noise fails it for some large epsilon; for small epsilon it is more than is
        needed, as `guarantee.curve` shows.

    Accuracy:
        Over k queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss
        value <= threshold + alpha, where alpha = 8 c (ln k + ln(2 c / beta)) / epsilon for delta = 0 and
        sqrt(512 c ln(1 / delta)) (ln k + ln(2 c / beta)) / epsilon otherwise, c = max_hits, and 1 more on integers.
        delta > 0 pays only for c > 8 ln(1 / delta).

    Args:
        epsilon: privacy loss of the whole run, > 0.
        delta: in [0, 1).
        max_hits: number of hits after which the run halts, >= 1.
        threshold: threshold of the queries that bring none of their own.
        integer: whether queries and thresholds are integers. All noise is then discrete Laplace, exactly as analysed;
            otherwise it is continuous Laplace in floating point, where the guarantee holds up to rounding.
        neighbouring: "add_remove" or "replace_one", the relation under which the queries have sensitivity 1.

    Raises:
        ValueError: a parameter is out of range, or no proof covers (epsilon, delta, max_hits).
        TypeError: a parameter is of another type.

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
        check_composition(self.curve, self.epsilon, self.delta)

    @property
    def noise_scale(self) -> float:
        """Scale of the threshold's noise (sigma in the literature); a query's is twice that."""
        return noise_scale(self.epsilon, self.delta, self.max_hits)

    @property
    def curve(self) -> PureComposition:
        """All (epsilon, delta) of the run."""
        return PureComposition(rounds=self.max_hits, round_epsilon=2 / self.noise_scale)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""
        return (f"{WHOLE_RUN}, which halts at hit number {self.max_hits}.",)

    @cached_property
    def tests(self) -> HiddenThreshold:
        """The tests, with their noise."""
        return HiddenThreshold(scale=self.noise_scale, max_hits=self.max_hits, integer=self.integer)


def noise_scale(epsilon: float, delta: float, max_hits: int) -> float:
    """Return 2 c / epsilon, or sqrt(32 c ln(1 / delta)) / epsilon for delta > 0: sigma(epsilon) in the literature."""
    if delta == 0:
        return 2 * max_hits / epsilon
    return math.sqrt(32 * max_hits * math.log(1 / delta)) / epsilon


def check_composition(curve: PureComposition, epsilon: float, delta: float) -> None:
    """Check that a composition is (epsilon, delta)-DP."""
    if curve.delta(epsilon * (1 + _ROUNDING)) > delta * (1 + _ROUNDING):
        raise ValueError(
            f"epsilon must be smaller for delta {delta:g} and {curve.rounds} hits: at this noise they compose to "
            f"delta {curve.delta(epsilon):.3g} only, got {epsilon}"
        )
