"""AdaptiveSparseVector: queries above a threshold with their gaps, where clear hits cost less."""

from dataclasses import dataclass

from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.threshold_mechanism import ThresholdMechanism
from privstream.mechanisms.sparse_vector.query_mechanism import WHOLE_RUN

MOST_BRANCHES = 32


@dataclass(frozen=True, kw_only=True)
class AdaptiveSparseVector(ThresholdMechanism):
    """Answers sensitivity-1 queries with a noisy gap to the threshold or a miss, and pays less for clear hits.

    Each query is tested in several branches, the noisiest first: branch j has 2^j times the noise of branch 0, demands
    a margin of two standard deviations of it, and a hit in it costs hit_epsilon / 2^j. Branch 0 has no margin. The run
    halts when a hit at the full price could no longer be paid: after `min_hits` hits at least, and at most
    2^(branches - 1) times as many.

    Privacy:
        Unit: one change of the data that moves no query by more than 1, under the stated neighbouring relation.
        epsilon-DP however many queries are asked; queries and thresholds may depend on all earlier answers. Gaps and
        branches are published and cost nothing more. What a run has really used is `spent`; the rest may be spent on
        something else once the run is over. Public: the parameters, the thresholds and the number of queries.

    Accuracy:
        Over so many queries, with probability 1 - beta, each hit has value >= threshold - alpha and each miss
        value <= threshold + alpha, alpha = `accuracy(queries, beta)`. A gap estimates value - threshold; the variance
        of its noise depends on its branch (see `variances`).

    Args:
        epsilon: privacy loss of the whole run, > 0.
        min_hits: number of hits that are paid for whatever their branch, >= 1.
        branches: number of branches, from 1 (which is `SparseVectorWithGap`) to 32.
        threshold: threshold of the queries that bring none of their own.
        integer: whether queries and thresholds are integers. All noise is then discrete, exactly as analysed. Otherwise
            noise and gaps are floating-point numbers, whose low bits may betray more than the guarantee says (Mironov
            2012): use it for quantities that are not counts, and round what you publish.
        monotone: whether one change of the data moves all queries in the same direction, as adding a person does with
            counts. Needs half the noise on queries. Not for "replace_one".
        noise_law: "exponential" (half the variance) or "laplace"; with `integer` geometric and discrete Laplace.
        margin: what branches from 1 on demand, in standard deviations of their query noise, >= 0.
        threshold_share: part of epsilon for the threshold, in (0, 1); None for that of least gap variance in branch 0.
        neighbouring: "add_remove" or "replace_one", the relation under which the queries have sensitivity 1.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = AdaptiveSparseVector(epsilon=1.0, min_hits=2, threshold=500, integer=True, monotone=True)
        >>> state, answers = mechanism.step(mechanism.initial_state(), [3, 990, 4, 980, 5], SeededNoise(1))
        >>> answers.hits.tolist(), answers.branches.tolist(), round(mechanism.spent(state), 2)
        ([False, True, False, True, False], [1, 1], 0.69)

    Source: Ding et al., Free gap estimates (2022), Algorithm 1 and section 5.2; docs/proofs/free_gap.md, with errata.
    """

    epsilon: float
    min_hits: int = 1
    branches: int = 2
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "exponential"
    margin: float = 2.0
    threshold_share: float | None = None
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        checks.integer("min_hits", self.min_hits, minimum=1)
        checks.integer("branches", self.branches, minimum=1, maximum=MOST_BRANCHES)
        checks.non_negative("margin", self.margin)
        self._check_budget()

    @property
    def paid_hits(self) -> int:
        """Number of hits at the full price that epsilon pays for."""
        return self.min_hits

    @property
    def most_hits(self) -> int:
        """Number of hits after which the run halts even if all of them are clear."""
        return (self.min_hits - 1) * self.tests.price + 1

    @property
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""
        return (f"{WHOLE_RUN}, which halts when hits have cost as much as {self.min_hits} at the full price.",)
