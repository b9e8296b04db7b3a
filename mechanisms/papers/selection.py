"""Selections from papers: the largest queries above a threshold, and a good candidate, with gaps."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.noisy_top_k import Indices, TopKMechanism, gaps_between, leaders, spread
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.continuous import Gumbel, uniforms
from privstream.mechanisms.noise.gaps import IntegersOrReals, noisy
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.sparse_vector.query_mechanism import ONE_SELECTION, PUBLIC_ORDER, QuerySelection
from scipy import special
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
class HybridNoisyTopK(TopKMechanism[HybridSelection]):
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

    @override
    def select(self, values: ArrayLike, noise: NoiseSource) -> HybridSelection:
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


class CandidateSelection(NamedTuple):
    """The selected candidate's index, its gap in units of `utility_scale`, and the epsilon spent."""

    candidate: int
    gap: float
    spent: float


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanismWithGap(QuerySelection[CandidateSelection]):
    """Selects a candidate with probability proportional to e^(utility / `utility_scale`), and publishes a noisy gap.

    The gap is logistic with location theta, given that it is positive; theta is the utility of the selected candidate
    minus the soft maximum of all others, both in units of `utility_scale`.

    Privacy:
        Unit: one change of the data that moves no utility by more than `sensitivity`, under the stated neighbouring
        relation. epsilon-DP for each call of `select`, or for index and gap together if any exact sampler of the
        exponential mechanism chose the index and `gap` its gap. Public: the parameters, the number of candidates and
        their order. Utilities are real numbers: index and gap come from floating-point noise, and the guarantee holds
        up to rounding (round the gap that you publish).

    Accuracy:
        With probability 1 - beta the selected candidate's utility is within `accuracy(candidates, beta)` of the best.
        `postprocess.gap_p_value` is how unlikely so large a gap is if another candidate is better.

    Args:
        epsilon: privacy loss of one selection, > 0.
        sensitivity: most that one change of the data can move any utility, > 0.
        monotone: whether one change of the data moves all utilities in the same direction. Halves `utility_scale`. Not
            for "replace_one".
        neighbouring: "add_remove" or "replace_one", the relation under which the utilities have that sensitivity.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = ExponentialMechanismWithGap(epsilon=1.0)
        >>> mechanism.select([3.0, 90.0, 40.0], SeededNoise(1)).candidate
        1

    Source: McSherry and Talwar (2007); Ding et al., Free gap estimates (2022), Algorithms 6 and 7, Theorems 6 and 10;
    docs/proofs/free_gap.md.
    """

    epsilon: float
    sensitivity: float = 1.0
    monotone: bool = False
    neighbouring: str = "add_remove"
    proof = "docs/proofs/free_gap.md, section 4"
    limits = (ONE_SELECTION,)
    public = ("all parameters", "the number of candidates and their order")

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("sensitivity", self.sensitivity)
        self._check_queries()
        if not 0 < self.utility_scale < math.inf:
            raise ValueError(f"epsilon must give a finite utility scale > 0, got {self.epsilon}")

    @property
    def utility_scale(self) -> float:
        """The difference of utilities that multiplies probabilities by e."""
        return (1 if self.monotone else 2) * self.sensitivity / self.epsilon

    @property
    @override
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(what="utility", bound=self.sensitivity, same_direction=self.monotone)

    def accuracy(self, candidates: int, beta: float) -> float:
        """Return how far below the best the selected utility is, at most, with probability 1 - beta."""
        checks.integer("candidates", candidates, minimum=1)
        return self.utility_scale * math.log(candidates / checks.probability("beta", beta))

    def location(self, utilities: ArrayLike, index: int) -> float:
        """Return theta, the location of the gap's law, if candidate `index` is selected; private.

        The mean gap is (1 + e^-theta) ln(1 + e^theta).
        """
        scaled = self._scaled(utilities)
        if not 0 <= checks.integer("index", index, minimum=0) < len(scaled):
            raise ValueError(f"index must be < {len(scaled)}, got {index}")
        return float(scaled[index] - special.logsumexp(np.delete(scaled, index)))

    @override
    def select(self, utilities: ArrayLike, noise: NoiseSource) -> CandidateSelection:
        # Gumbel noise (Algorithm 7).
        scaled = self._scaled(utilities)
        totals = noisy(scaled, Gumbel(1.0), len(scaled), noise.derive("exponential mechanism", packed_parameters(self)))
        order = leaders(totals, 2)
        return CandidateSelection(int(order[0]), float(gaps_between(totals, order)[0]), self.epsilon)

    def gap(self, utilities: ArrayLike, index: int, noise: NoiseSource) -> CandidateSelection:
        """Draw the gap of a candidate that another sampler of the same exponential mechanism selected (Algorithm 6).

        The gap is drawn by inverse CDF: a rejection loop would take time that depends on the data.

        Args:
            utilities: finite numbers, shape (n,), n >= 2; private.
            index: what was selected, with probability proportional to e^(utility / `utility_scale`).
            noise: the noise of this selection; independent of that of the sampler.

        Returns:
            The index, its gap and what both together cost.

        Raises:
            ValueError: there are not two candidates, or `index` is none of them.
        """
        theta = self.location(utilities, index)
        source = noise.derive("gap of exponential mechanism", packed_parameters(self))
        bound = source.derive("value").bind(np.array([index], dtype=np.uint64), np.array([theta + 0.0]).view(np.int64))
        uniform = float(uniforms(source.derive("noise").words(bound)[0, 0]))
        return CandidateSelection(index, truncated_logistic(theta, uniform), self.epsilon)

    def _scaled(self, utilities: ArrayLike) -> NDArray[np.float64]:
        values: NDArray[np.float64] = np.asarray(utilities, dtype=np.float64)
        if values.ndim != 1 or len(values) < 2:
            raise ValueError(f"utilities must be one-dimensional and at least 2, got shape {values.shape}")
        scaled = values / self.utility_scale
        if not np.all(np.isfinite(scaled)):
            raise ValueError("utilities must be finite, also in units of utility_scale")
        return scaled


def truncated_logistic(theta: float, uniform: float) -> float:
    """Return the positive g with survival (1 + e^theta) / (e^theta + e^g) = uniform, for uniform in (0, 1)."""
    return float(np.logaddexp(0.0, theta + math.log1p(-uniform)) - math.log(uniform))
