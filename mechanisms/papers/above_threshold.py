"""AboveThreshold: the first query above a threshold. The misses before it are free."""

from dataclasses import dataclass
from functools import cached_property

from privstream.mechanisms import checks
from privstream.mechanisms.sparse_vector.query_mechanism import WHOLE_RUN, HiddenThreshold, HitMechanism
from typing_extensions import override


@dataclass(frozen=True, kw_only=True)
class AboveThreshold(HitMechanism):
    """Answers sensitivity-1 queries with hit or miss until the first hit, then halts.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP however many queries are asked; queries and thresholds may depend on all earlier answers. Public: the
        parameters, the thresholds and the number of queries.

    Accuracy:
        Over k queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss has
        value <= threshold + alpha, where alpha = 8 (ln k + ln(2 / beta)) / epsilon, and 1 more on integers.

    Attributes: see `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = AboveThreshold(epsilon=1.0, threshold=500, integer=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 10, 990, 4], SeededNoise(1))
        >>> answers.hits.tolist()
        [False, False, True]

    Source: Dwork and Roth, The Algorithmic Foundations of Differential Privacy (2014), Algorithm 1, Theorems 3.23
    and 3.24; docs/proofs/sparse_vector.md.
    """

    epsilon: float
    threshold: float = 0
    integer: bool = False
    neighbouring: str = "add_remove"
    proof = "docs/proofs/sparse_vector.md, section AboveThreshold is epsilon-DP"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        self._check_queries(self.noise_scale)

    @property
    def noise_scale(self) -> float:
        """Scale of the threshold's noise, 2 / epsilon; a query's is twice that."""
        return 2 / self.epsilon

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return (f"{WHOLE_RUN}, which halts at its first hit.",)

    @cached_property
    @override
    def tests(self) -> HiddenThreshold:
        return HiddenThreshold(scale=self.noise_scale, max_hits=1, integer=self.integer)
