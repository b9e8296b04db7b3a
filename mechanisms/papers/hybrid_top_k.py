"""HybridNoisyTopK: the largest queries, as long as they are above a threshold; what is not found is not paid for."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.noisy_top_k import Indices, TopKMechanism, gaps_between, leaders, spread
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import IntegersOrReals, noisy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.query_mechanism import ONE_SELECTION, PUBLIC_ORDER
from typing_extensions import override


class HybridSelection(NamedTuple):
    """Indices of the selected queries, the largest first, the gap of each to the next best, and the epsilon spent.

    If fewer than `top` queries were selected, `threshold_gap` is the gap of the threshold to the best query below it,
    and the last of `gaps` is a gap to the threshold. Otherwise it is None.
    """

    indices: Indices
    gaps: IntegersOrReals
    threshold_gap: int | float | None
    spent: float


@dataclass(frozen=True, kw_only=True)
class HybridNoisyTopK(TopKMechanism):
    """Selects the up to `top` largest queries above a threshold, with gaps: `NoisyTopK` with the threshold as a query.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP for each call of `select`. A call that selects m < `top` queries and stops at the threshold has used
        (m + 1) / top of epsilon only, which the selection reports as `spent`; the rest may be spent on something else
        (docs/proofs/free_gap.md says in which sense). Public: the parameters, the number of queries, and their order,
        which must not depend on the data.

    Accuracy:
        With probability 1 - beta, at once: no query that was not selected exceeds a selected one, or the threshold if
        that was reached, by more than `accuracy(queries, beta)`, and no selected one is as much below the threshold.
        The noise of a gap has mean 0 and variance `gap_variance`, as if the selection did not depend on the noise.

    Attributes:
        epsilon: privacy loss of one selection, > 0, used up only if `top` queries are selected.
        top: greatest number of queries to select, >= 1.

    All other attributes are those of `QueryMechanism`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = HybridNoisyTopK(epsilon=1.0, top=4, threshold=500, integer=True, monotone=True)
        >>> selection = mechanism.select([30, 900, 40, 700, 50], SeededNoise(1))
        >>> selection.indices.tolist(), selection.spent
        ([1, 3], 0.75)

    Source: Ding et al., Free gap estimates (2022), Algorithm 4, Lemma 7; docs/proofs/free_gap.md, with a new proof.
    """

    epsilon: float
    top: int = 1
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    neighbouring: str = "add_remove"
    proof = "docs/proofs/free_gap.md, section 3"
    public = (*PUBLIC_ORDER, "the threshold")

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        return ONE_SELECTION, f"One that stops after m < {self.top} queries has used (m + 1) / {self.top} of epsilon."

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return spread(self.law, checks.integer("queries", queries, minimum=1) + 1, beta)

    def select(self, values: ArrayLike, noise: NoiseSource) -> HybridSelection:
        """Select the largest queries above the threshold.

        The noise of a query depends on its index and its true value: a replay repeats the answer, a replay with other
        data does not repeat the noise.

        Args:
            values: true values of the queries, shape (n,), n >= `top`; private.
            noise: the noise of this selection; give every selection a source of its own.

        Returns:
            The indices of m <= `top` queries, their gaps, the threshold's gap if it was reached, and what it cost.

        Raises:
            ValueError: there are fewer than `top` queries.
        """
        queries = self._vector(values)
        if len(queries) < self.top:
            raise ValueError(f"values must contain at least {self.top} queries, got {len(queries)}")
        # Last, so that queries win ties against the threshold.
        contestants = self._vector(np.append(queries, self.threshold))
        source = noise.derive("hybrid top-k", packed_parameters(self))
        totals = noisy(contestants, self.law, len(contestants), source)
        order = leaders(totals, self.top + 1)
        reached = np.flatnonzero(order[: self.top] == len(queries))
        if not len(reached):
            return HybridSelection(order[: self.top], gaps_between(totals, order), None, self.epsilon)
        found = int(reached[0])
        gaps = gaps_between(totals, order[: found + 2])
        spent = self.epsilon * (found + 1) / self.top
        return HybridSelection(order[:found], gaps[:found], gaps[found].item(), spent)

    def estimates(self, selection: HybridSelection) -> NDArray[np.float64] | None:
        """Return estimates of the selected queries, threshold plus gaps, or None if the threshold was not reached.

        Each has the variance `gap_variance`; all of them share the threshold's noise.
        """
        if selection.threshold_gap is None:
            return None
        return self.threshold + np.cumsum(selection.gaps[::-1], dtype=np.float64)[::-1]
