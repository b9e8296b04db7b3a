"""MeasuredTopK: the largest counts of each of many releases, with their gaps and with estimates improved by these."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.free_gap.noisy_top_k import Indices, NoisyTopK
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.postprocess import blue_from_gaps
from privstream.mechanisms.privacy import noisy_counts
from privstream.mechanisms.privacy.accounting import ComposedCurve, PointCurve, PrivacyCurve, PureDp, largest
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.mechanisms.sparse_vector.query_mechanism import PUBLIC_ORDER
from privstream.mechanisms.sparse_vector.sparse import PureComposition

MOST_MEASURES = 1_000_000  # of one person: what is accounted for within a minute


class RankedCounts(NamedTuple):
    """The selected counts, the largest first: index, gap to the next best, estimate, its error bound, its 95% interval.

    Of an interval, which is >= 0, each one is meant by itself.
    """

    indices: Indices
    gaps: NDArray[np.int64]
    estimates: NDArray[np.float64]
    error_bounds: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeasuredTopK:
    """Publishes the `top` largest of many counts in each release: which they are, their gaps, and how large they are.

    Part of the budget selects by `NoisyTopK`, which gives the gaps too; the rest measures what was selected. The
    estimates are the best linear unbiased ones from measures and gaps.

    Privacy:
        Unit: one person over all releases, who changes each count of a release by at most 1 and at most
        `items_per_release` of them, in at most `releases` releases. (epsilon, delta)-DP for all releases together.
        However many counts a person changes, to select costs the same, since all move in one direction; to measure
        costs more. Public: the parameters, the number and order of the counts, and when there are releases.

    Accuracy:
        With probability 1 - beta no count of a release that was not selected exceeds a selected one by more than
        `selection_error(counts, beta)`. With probability 1 - beta for each, an estimate is within its error bound of
        the true count, whatever the counts: the bound is that of the measure, which does not know what the selection
        saw, widened by how far the estimate moved from it. An interval of 95% is that of the measure, widened until it
        contains the estimate. Where selected counts stand clear of the rest, the variance
        of an estimate is `estimate_variance`; where the noise decides what is selected, gaps and estimates are biased
        upwards.

    Args:
        epsilon: privacy loss of all releases together, > 0.
        delta: in [0, 1). Above 0 many releases need less noise.
        top: number of counts to select in each release, >= 1.
        releases: releases that one person takes part in at most, >= 1.
        items_per_release: counts of a release that one person changes at most, >= 1. `releases` times the smaller one
            of this and `top` is at most 1,000,000.
        measure_share: part of epsilon for measuring, in (0, 1).
        noise_law: "exponential" (half the variance; geometric noise) or "laplace" (discrete Laplace), of the selection.

    Raises:
        ValueError: a parameter is out of range.
        TypeError: a parameter is of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = MeasuredTopK(epsilon=1.0, top=2)
        >>> mechanism.release([30, 900, 40, 700, 50], SeededNoise(1)).indices.tolist()
        [1, 3]

    Source: Ding et al., Free gap estimates (2022), Algorithm 3 and section 6.3; docs/proofs/top_k_windows.md.
    """

    epsilon: float
    delta: float = 0.0
    top: int = 1
    releases: int = 1
    items_per_release: int = 1
    measure_share: float = 0.25
    noise_law: str = "exponential"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("top", self.top, minimum=1)
        checks.integer("releases", self.releases, minimum=1)
        checks.integer("items_per_release", self.items_per_release, minimum=1)
        if self._charges > MOST_MEASURES:
            raise ValueError(f"releases times measures in each must be <= {MOST_MEASURES:,}, got {self._charges:,}")
        checks.probability("measure_share", self.measure_share)
        _ = self._pure_measurement, self._selection_for(self._least_selection_epsilon)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of all releases together."""
        one = self.releases == 1
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(
                f"Each person takes part in at most {self.releases:,} release{'' if one else 's'} and changes at most "
                f"{self.items_per_release:,} of its counts, each by at most 1, all up or all down.",
            ),
            public=PUBLIC_ORDER,
            adaptivity="The counts of each release may depend on everything published before it.",
            proof="docs/proofs/top_k_windows.md, section 2",
            caveats=(KEYED_NOISE,),
            curve=self.curve,
        )

    @functools.cached_property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of all releases together."""
        if self.delta == 0:
            return PureDp(self.epsilon)
        selections = self._selections(self.selection.epsilon)
        if isinstance(self.measurement, DiscreteGaussian):
            counts = noisy_counts.CountCurve(sigma=self.measurement.sigma, releases=self._charges)
            interval = noisy_counts.grid(self.epsilon, counts.releases)  # that sigma was solved on
            return ComposedCurve(curves=(selections, counts), interval=interval)
        interval = noisy_counts.grid(self.epsilon, self._charges)
        found = ComposedCurve(curves=(selections, PureDp(self.epsilon * self.measure_share)), interval=interval)
        if found.delta(self.epsilon) <= self.delta:
            return found
        return PointCurve(at_epsilon=self.epsilon, at_delta=self.delta)  # the grid rounds pure losses up

    @functools.cached_property
    def selection(self) -> NoisyTopK:
        """How each release selects. Its epsilon is that of adding or removing a person in one release."""
        goal, low = self.epsilon * (1 - self.measure_share), self._least_selection_epsilon
        if self.delta == 0 or self.releases == 1:
            return self._selection_for(low)
        found = largest(lambda each: self._selections(each).delta(goal) <= self.delta / 2, low, self.releases * low)
        return self._selection_for(found)

    @functools.cached_property
    def measurement(self) -> SymmetricNoise:
        """The noise on each measure: of the two kinds that delta allows the one with less variance."""
        laplace = self._pure_measurement
        if self.delta == 0 or self._charges == 1:
            return laplace
        selections = self._selections(self.selection.epsilon)
        try:
            sigma = noisy_counts.solve_sigma(
                hits=selections,
                charges=self._charges,
                epsilon=self.epsilon,
                delta=self.delta,
            )
            gaussian = DiscreteGaussian(sigma)
        except ValueError:  # no sigma that the sampler draws is large enough
            return laplace
        return gaussian if gaussian.variance < laplace.variance else laplace

    @property
    def estimate_variance(self) -> float:
        """Variance of an estimate, as if the selection did not depend on the noise."""
        gaps = [0.0] * (self.top - 1)
        measure, selection = self.measurement.variance, self.selection.noise_variance
        estimates = blue_from_gaps([0.0] * self.top, gaps, measure_variance=measure, noise_variance=selection)
        return float(estimates.variance)

    def measure_error(self, beta: float) -> float:
        """Return by how much a measure is off with probability at most beta: the least that an error bound can be."""
        return float(self.measurement.tail_quantile(checks.probability("beta", beta) / 2))

    def selection_error(self, counts: int, beta: float) -> float:
        """Return by how much a count that was not selected exceeds a selected one with probability at most beta."""
        return self.selection.accuracy(counts, beta)

    def release(self, counts: ArrayLike, noise: NoiseSource, beta: float = 0.05) -> RankedCounts:
        """Select and measure the largest counts of one release.

        The noise depends on index and true value: a replay repeats the answer, a replay with other data does not
        repeat the noise.

        Args:
            counts: true counts in a public order, integers, shape (n,), n > `top`; private.
            noise: the noise of this release; give every release a source of its own.
            beta: probability that an error bound does not hold, in (0, 1); changes nothing else.

        Returns:
            The selected counts, each of shape (top,); estimates, their bounds and their intervals in tenths.

        Raises:
            ValueError: there are not more than `top` counts, or `beta` is out of range.
        """
        reach = self.measure_error(beta)
        source = noise.derive("measured top-k", packed_parameters(self))
        selected = self.selection.select(counts, source.derive("selection"))
        values = np.asarray(counts)[selected.indices].astype(np.int64)
        labels = source.derive("value").bind(selected.indices.astype(np.uint64), values)
        measures = values + self.measurement.draw(source.derive("measure"), labels)
        estimates = blue_from_gaps(
            measures,
            selected.gaps[:-1],
            measure_variance=self.measurement.variance,
            noise_variance=self.selection.noise_variance,
        ).values
        rounded = np.round(estimates, 1)
        bounds = np.round(reach + np.abs(rounded - measures), 1)  # of multiples of a tenth: no rounding at all
        sure = self.measure_error(OUTSIDE)
        lower, upper = np.minimum(rounded, measures - sure), np.maximum(rounded, measures + sure)
        ends = np.maximum(lower, 0.0), np.maximum(upper, 0.0)
        return RankedCounts(selected.indices, selected.gaps.astype(np.int64), rounded, bounds, *ends)

    @property
    def _charges(self) -> int:
        """Measures that one person changes at most, by 1 each."""
        return self.releases * min(self.top, self.items_per_release)

    @property
    def _least_selection_epsilon(self) -> float:
        return self.epsilon * (1 - self.measure_share) / self.releases

    def _selection_for(self, epsilon: float) -> NoisyTopK:
        # Adding or removing one person moves all counts in one direction.
        return NoisyTopK(epsilon=epsilon, top=self.top, integer=True, monotone=True, noise_law=self.noise_law)

    def _selections(self, epsilon: float) -> PureComposition:
        """Return the composition of all selections of one person, each `epsilon`-DP."""
        return PureComposition(rounds=self.releases, round_epsilon=epsilon)

    @functools.cached_property
    def _pure_measurement(self) -> DiscreteLaplace:
        return DiscreteLaplace(self._charges / (self.epsilon * self.measure_share))
