"""SparseVectorWithGap: the first c queries above a threshold, and by how much they are above it."""

from dataclasses import dataclass

from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.threshold_mechanism import ThresholdMechanism
from privstream.mechanisms.sparse_vector.query_mechanism import WHOLE_RUN


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

    Args:
        epsilon: privacy loss of the whole run, > 0.
        max_hits: number of hits after which the run halts, >= 1.
        threshold: threshold of the queries that bring none of their own.
        integer: whether queries and thresholds are integers. All noise is then discrete, exactly as analysed. Otherwise
            noise and gaps are floating-point numbers, whose low bits may betray more than the guarantee says (Mironov
            2012): use it for quantities that are not counts, and round what you publish.
        monotone: whether one change of the data moves all queries in the same direction, as adding a person does with
            counts. Needs half the noise on queries. Not for "replace_one".
        noise_law: "exponential" (half the variance) or "laplace"; with `integer` geometric and discrete Laplace.
        threshold_share: part of epsilon for the threshold, in (0, 1); None for that of least gap variance.
        neighbouring: "add_remove" or "replace_one", the relation under which the queries have sensitivity 1.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.

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
    def paid_hits(self) -> int:
        """Number of hits at the full price that epsilon pays for."""
        return self.max_hits

    @property
    def gap_variance(self) -> float:
        """Variance of the noise of each gap."""
        return self.tests.variance(0)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""
        return (f"{WHOLE_RUN}, which halts at gap number {self.max_hits}.",)
