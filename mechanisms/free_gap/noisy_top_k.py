"""NoisyTopK: the largest queries by noisy value, and by how much each is ahead of the next."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.continuous import Exponential
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.gaps import GapLaw, IntegersOrReals, make_law, noisy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.query_mechanism import ONE_SELECTION, QuerySelection, Selected
from typing_extensions import override

Indices = NDArray[np.int64]


def leaders(noisy: IntegersOrReals, count: int) -> Indices:
    """Return the indices of the `count` largest values in descending order, of equal ones the lower index first."""
    if count < len(noisy):
        bar = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
        above = np.flatnonzero(noisy > bar)
        chosen = np.concatenate([above, np.flatnonzero(noisy == bar)[: count - len(above)]])
    else:
        chosen = np.arange(len(noisy))
    return chosen[np.lexsort((chosen, -noisy[chosen]))]


def gaps_between(noisy: IntegersOrReals, order: Indices) -> IntegersOrReals:
    """Return how far each leader but the last is ahead of the next one.

    The last gap, to a runner-up whose identity stays secret, is the margin to the least value that would still have
    been selected: one less than the difference where the runner-up would win a tie. The plain difference of integers
    would not be private (docs/proofs/free_gap.md); for real numbers, which do not tie, the two are the same.
    """
    gaps: IntegersOrReals = -np.diff(noisy[order])
    if gaps.dtype.kind == "i" and len(gaps):
        gaps[-1] -= int(order[-1] < order[-2])
    return gaps


class TopKMechanism(QuerySelection[Selected]):
    """A selection of the `top` largest queries, all of them with noise of one law."""

    top: int

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.integer("top", self.top, minimum=1)
        self._check_queries(self.noise_scale)

    @property
    def noise_scale(self) -> float:
        """Scale of the noise on each query, and on a threshold."""
        return (1 if self.monotone else 2) * self.top / self.epsilon

    @property
    def noise_variance(self) -> float:
        """Variance of the noise on each query."""
        return self.law.variance

    @property
    def gap_variance(self) -> float:
        """Variance of the noise of a gap, and of any sum of consecutive gaps."""
        return 2 * self.noise_variance

    @property
    def law(self) -> GapLaw:
        """The noise on each query."""
        return make_law(self.noise_law, self.noise_scale, integer=self.integer)


def spread(law: GapLaw, queries: int, beta: float) -> float:
    """Return by how much any two of so many noises differ with probability at most beta."""
    share = checks.probability("beta", beta) / queries
    if isinstance(law, Geometric | Exponential):
        return float(law.tail_quantile(share))
    return float(2 * law.tail_quantile(share / 2))


class TopSelection(NamedTuple):
    """Indices of the selected queries, the largest first, the gap of each to the next best, and the epsilon spent."""

    indices: Indices
    gaps: IntegersOrReals
    spent: float


@dataclass(frozen=True, kw_only=True)
class NoisyTopK(TopKMechanism[TopSelection]):
    """Selects the `top` queries whose noisy values are largest, with the gaps between them; `top` = 1 is noisy max.

    Gap i is the noisy value of the i-th selected query minus that of the next one; the last gap is to the best query
    that was not selected, whose index stays secret. On integers ties go to the lower index, and the last gap is the
    margin to the least integer that would still have been selected: one less than the difference if the runner-up has
    the lower index. Without this correction the gap would not be free, whatever the tie-breaking by index.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP for each call of `select`; the gaps are free. Public: the parameters, the number of queries, and
        their order, which must not depend on the data (not by descending count).

    Accuracy:
        With probability 1 - beta no query that was not selected exceeds a selected one by more than
        `accuracy(queries, beta)`. The noise of a gap has mean 0 and variance `gap_variance`, as if the selection
        did not depend on the noise; `postprocess.blue_from_gaps` improves measurements with the first top - 1 gaps.

    Attributes:
        top: number of queries to select, >= 1.

    All other attributes are those of `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = NoisyTopK(epsilon=1.0, top=2, integer=True, monotone=True)
        >>> mechanism.select([30, 900, 40, 700, 50], SeededNoise(1)).indices.tolist()
        [1, 3]

    Source: Ding et al., Free gap estimates (2022), Algorithm 3, section 6.2; docs/proofs/free_gap.md, with a new proof.
    """

    epsilon: float
    top: int = 1
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    neighbouring: str = "add_remove"
    proof = "docs/proofs/free_gap.md, Theorem 1"
    limits = (ONE_SELECTION,)

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return spread(self.law, checks.integer("queries", queries, minimum=1), beta)

    @override
    def select(self, values: ArrayLike, noise: NoiseSource) -> TopSelection:
        queries = self._vector(values)
        if len(queries) <= self.top:
            raise ValueError(f"values must contain more than {self.top} queries, got {len(queries)}")
        totals = noisy(queries, self.law, len(queries), noise.derive("top-k", packed_parameters(self)))
        order = leaders(totals, self.top + 1)
        return TopSelection(order[: self.top], gaps_between(totals, order), self.epsilon)
