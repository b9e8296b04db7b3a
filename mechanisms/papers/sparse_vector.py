"""Sparse vectors from papers: the first query above a threshold, the first c with their gaps, and the largest ones."""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.adaptive_sparse_vector import GapTests, ThresholdMechanism
from privstream.mechanisms.free_gap.noisy_top_k import Indices, leaders, spread
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import mean, noisy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.query_mechanism import (
    ONE_SELECTION,
    PUBLIC_ORDER,
    WHOLE_RUN,
    HiddenThreshold,
    HitMechanism,
    QuerySelection,
)
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
        value <= threshold + alpha, where alpha = 4 ln(k / beta) / epsilon, and 1 more on integers.

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


@dataclass(frozen=True, kw_only=True)
class SparseVectorWithGap(ThresholdMechanism):
    """Answers sensitivity-1 queries with their gap to the threshold or a miss, until the `max_hits`-th gap.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP however many queries are asked; queries and thresholds may depend on all earlier answers. The gaps
        are free: without them the hits would cost as much. A run stopped after h hits has used
        `threshold_epsilon` + h `hit_epsilon` (see `spent`). Public: the parameters, the thresholds and the number of
        queries.

    Accuracy:
        Over so many queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss
        value <= threshold + alpha, alpha = `accuracy(queries, beta)`. A gap estimates value - threshold; the variance
        of its noise is `gap_variance`.

    Attributes:
        max_hits: number of hits after which the run halts, >= 1.
        threshold_share: part of epsilon for the threshold, in (0, 1); None for that of least gap variance.

    All other attributes are those of `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=2, threshold=500, integer=True, monotone=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))
        >>> answers.hits.tolist(), answers.gaps.round().tolist(), mechanism.spent(state)
        ([False, True, False, True], [491.0, 478.0], 1.0)

    Source: Wang, Ding, Wang, Kifer, Zhang (2019); Ding et al., Free gap estimates (2022), Algorithm 2 and section 5.2;
    docs/proofs/free_gap.md.
    """

    epsilon: float
    max_hits: int = 1
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    threshold_share: float | None = None
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        checks.integer("max_hits", self.max_hits, minimum=1)
        self._check_budget()

    @property
    @override
    def paid_hits(self) -> int:
        return self.max_hits

    @property
    def gap_variance(self) -> float:
        """Variance of the noise of each gap."""
        return self.tests.variance(0)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return (f"{WHOLE_RUN}, which halts at gap number {self.max_hits}.",)


class ThresholdSelection(NamedTuple):
    """Indices of the selected queries, the largest first, the gap of each to the threshold, and the epsilon spent."""

    indices: Indices
    gaps: NDArray[np.float64]
    spent: float


@dataclass(frozen=True, kw_only=True)
class HybridSparseVector(QuerySelection[ThresholdSelection]):
    """Selects the up to `top` largest queries above a threshold, with gaps to it: sparse vector in noisy order.

    Finds larger queries than `SparseVectorWithGap`, which takes the first ones, but needs all queries at once. Always
    estimates the selected queries (threshold + gap), for which it needs more noise than `HybridNoisyTopK`.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP for each call of `select`. A call that selects m queries has used only `threshold_epsilon` +
        m `hit_epsilon`, which the selection reports as `spent`; the rest may be spent on something else
        (docs/proofs/free_gap.md says in which sense). Public: the parameters, the number of queries, and their order,
        which must not depend on the data.

    Accuracy:
        With probability 1 - beta, at once: every selected query is >= threshold - alpha, and one that was not selected
        exceeds the threshold, or each selected query if `top` are selected, by no more than alpha =
        `accuracy(queries, beta)`. A gap estimates value - threshold; the variance of its noise is `gap_variance`.

    Attributes:
        epsilon: privacy loss of one selection, > 0, used up only if `top` queries are selected.
        top: greatest number of queries to select, >= 1.
        threshold_share: part of epsilon for the threshold, in (0, 1); None for that of least gap variance.

    All other attributes are those of `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = HybridSparseVector(epsilon=1.0, top=4, threshold=500, integer=True, monotone=True)
        >>> selection = mechanism.select([30, 900, 40, 700, 50], SeededNoise(1))
        >>> selection.indices.tolist(), round(selection.spent, 2)
        ([1, 3], 0.64)

    Source: Ding et al., Free gap estimates (2022), Algorithm 5, Lemma 8; docs/proofs/free_gap.md.
    """

    epsilon: float
    top: int = 1
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    threshold_share: float | None = None
    neighbouring: str = "add_remove"
    proof = "docs/proofs/free_gap.md, section 3"
    public = (*PUBLIC_ORDER, "the threshold")

    def __post_init__(self) -> None:
        checks.integer("top", self.top, minimum=1)
        _ = self.in_order  # checks the rest

    @cached_property
    def in_order(self) -> SparseVectorWithGap:
        """The mechanism that tests queries in their order with the same noise, and costs as much for each hit."""
        fields = asdict(self)
        return SparseVectorWithGap(max_hits=fields.pop("top"), **fields)

    @property
    def tests(self) -> GapTests:
        """The tests, with their noise."""
        return self.in_order.tests

    @property
    def threshold_epsilon(self) -> float:
        """The part of epsilon that the threshold costs."""
        return self.in_order.threshold_epsilon

    @property
    def hit_epsilon(self) -> float:
        """The part of epsilon that one selected query costs."""
        return self.in_order.hit_epsilon

    @property
    def gap_variance(self) -> float:
        """Variance of the noise of each gap. All gaps of a selection share the threshold's noise."""
        return self.tests.variance(0)

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        used = f"One of m queries has used {self.threshold_epsilon:.4g} + {self.hit_epsilon:.4g} m of epsilon."
        return ONE_SELECTION, used

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return max(self.tests.accuracy(queries, beta / 2), spread(self.tests.query_law(0), queries, beta / 2))

    @override
    def select(self, values: ArrayLike, noise: NoiseSource) -> ThresholdSelection:
        queries = self._vector(values)
        if not len(queries):
            raise ValueError("values must contain at least one query, got none")
        source = noise.derive("hybrid sparse vector", packed_parameters(self.tests))
        law, threshold_law = self.tests.query_law(0), self.tests.threshold_law()
        totals = noisy(queries, law, len(queries), source)
        barrier = queries.dtype.type(self.threshold) + threshold_law.draw(source.derive("threshold"), 1)[0]
        centre = mean(law) - mean(threshold_law)
        order = leaders(totals, self.top)
        raw = totals[order] - barrier
        found = int(np.count_nonzero(raw >= (math.ceil(centre) if self.integer else centre)))
        spent = self.threshold_epsilon + self.hit_epsilon * found
        return ThresholdSelection(order[:found], raw[:found] - centre, spent)

    def lower_bounds(self, selection: ThresholdSelection, confidence: float) -> NDArray[np.float64]:
        """Return lower confidence bounds of value - threshold: see `postprocess.gap_lower_bound`."""
        return selection.gaps - self.tests.excess(0, 1 - checks.probability("confidence", confidence))
