"""NoisyTopK: which queries are the largest, and by how much each is ahead of the next."""

from dataclasses import dataclass
from typing import NamedTuple

from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.gap_noise import noisy
from privstream.mechanisms.free_gap.gap_ranking import Indices, gaps_between, leaders
from privstream.mechanisms.free_gap.top_k_mechanism import TopKMechanism, spread
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.hidden_threshold import IntegersOrReals
from privstream.mechanisms.sparse_vector.query_mechanism import ONE_SELECTION


class TopSelection(NamedTuple):
    """Indices of the selected queries, the largest first, the gap of each to the next best, and the epsilon spent."""

    indices: Indices
    gaps: IntegersOrReals
    spent: float


@dataclass(frozen=True, kw_only=True)
class NoisyTopK(TopKMechanism):
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

    Args:
        epsilon: privacy loss of one selection, > 0.
        top: number of queries to select, >= 1.
        integer: whether the queries are integers. All noise is then discrete, exactly as analysed. Otherwise noise and
            gaps are floating-point numbers, whose low bits may betray more than the guarantee says (Mironov 2012): use
            it for quantities that are not counts, and round what you publish.
        monotone: whether one change of the data moves all queries in the same direction, as adding a person does with
            counts. Halves the noise. Not for "replace_one".
        noise_law: "exponential" (half the variance) or "laplace"; with `integer` geometric and discrete Laplace.
        neighbouring: "add_remove" or "replace_one", the relation under which the queries have sensitivity 1.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.

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

    @property
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""
        return (ONE_SELECTION,)

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return spread(self.law, checks.integer("queries", queries, minimum=1), beta)

    def select(self, values: ArrayLike, noise: NoiseSource) -> TopSelection:
        """Select the largest queries.

        The noise of a query depends on its index and its true value: a replay repeats the answer, a replay with other
        data does not repeat the noise.

        Args:
            values: true values of the queries, shape (n,), n > `top`; private.
            noise: the noise of this selection; give every selection a source of its own.

        Returns:
            The indices, largest noisy value first, shape (top,); the gaps, int64 or float64 (top,); what it cost.

        Raises:
            ValueError: there are not more than `top` queries.
        """
        queries = self._vector(values)
        if len(queries) <= self.top:
            raise ValueError(f"values must contain more than {self.top} queries, got {len(queries)}")
        totals = noisy(queries, self.law, len(queries), noise.derive("top-k", packed_parameters(self)))
        order = leaders(totals, self.top + 1)
        return TopSelection(order[: self.top], gaps_between(totals, order), self.epsilon)
