"""TopKMechanism: what selections of the largest queries by noisy value have in common."""

from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.gap_noise import make_law
from privstream.mechanisms.noise.continuous import Exponential
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.gaps import GapLaw
from privstream.mechanisms.sparse_vector.query_mechanism import ONE_RELEASE, PUBLIC_ORDER, QueryMechanism


class TopKMechanism(QueryMechanism):
    """A selection of the `top` largest queries, all of them with noise of one law."""

    top: int
    public = PUBLIC_ORDER
    adaptivity = ONE_RELEASE

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
