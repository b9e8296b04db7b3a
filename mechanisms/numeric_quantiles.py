"""NumericQuantiles: medians and percentiles of numbers, each with an interval that contains the true one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import (
    DiscreteGaussian,
    DiscreteLaplace,
    NoiseSum,
    SymmetricNoise,
    least_noise,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PureDp, noise_curve
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from scipy import special
from typing_extensions import override

SCALES = ("linear", "log")
LARGEST_RESOLUTION = 1 << 16
LARGEST_CONTRIBUTIONS = 1 << 24
BRANCHING = 16

_RATES = 1 - np.geomspace(1e-4, 1, 200)[:-1]  # of Chernoff bounds, in parts of the largest one

Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class Bins:
    """Bins [edge, next edge) from `low` to `high`; the last one includes `high`.

    Raises:
        ValueError, TypeError: a field breaks its rule, or bins are so narrow that floats cannot tell their edges apart.
    """

    low: float  # finite; > 0 with equal ratios
    high: float  # finite and > `low`
    resolution: int  # number of bins, from 2 to 65,536
    scale: str  # "linear" for bins of equal width, "log" for bins whose edges have equal ratios

    def __post_init__(self) -> None:
        low, high = checks.real("low", self.low), checks.real("high", self.high)
        checks.integer("resolution", self.resolution, minimum=2, maximum=LARGEST_RESOLUTION)
        if checks.one_of("scale", self.scale, SCALES) == "log" and low <= 0:
            raise ValueError(f"low must be > 0 with a log scale, got {self.low}")
        if high <= low:
            raise ValueError(f"high must be > low, got {self.high} <= {self.low}")
        if not np.isfinite(high / low if self.scale == "log" else high - low):
            raise ValueError(f"low and high must not be so far apart, got {self.low} and {self.high}")
        if np.any(np.diff(self.edges) <= 0):
            raise ValueError(f"resolution must be smaller for edges that floats tell apart, got {self.resolution}")

    @cached_property
    def edges(self) -> Floats:
        """All edges, shape (resolution + 1,), increasing."""
        return self.at(np.arange(self.resolution + 1.0))

    def at(self, places: Floats) -> Floats:
        """Return the values at places from 0 to `resolution`, counted in bins."""
        parts = places / self.resolution
        low, high = float(self.low), float(self.high)
        values = low * (high / low) ** parts if self.scale == "log" else low + (high - low) * parts
        return np.where(parts >= 1, high, np.minimum(values, high))

    def places(self, values: ArrayLike) -> Integers:
        """Return the bin of each value; those below `low` are in the first one, those above `high` in the last one.

        Raises:
            ValueError: a value is not a number.
        """
        given = np.asarray(values, np.float64)
        if np.isnan(given).any():
            raise ValueError("values must be numbers, got nan")
        return np.clip(np.searchsorted(self.edges, given, side="right") - 1, 0, self.resolution - 1)

    def count(self, values: ArrayLike) -> Integers:
        """Return how many values each bin has, int64 (resolution,)."""
        return np.bincount(self.places(values), minlength=self.resolution)


@dataclass(frozen=True)
class BinTree:
    """`levels` of nodes over bins: the bins, then always `branching` neighbours together, up to so few on top.

    Nodes are numbered level by level, the bins first. Each node has a noisy count, with independent noise of one
    variance, which is the unit of all variances here. docs/proofs/numeric_quantiles.md, section 2.
    """

    bins: int
    branching: int = BRANCHING

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level: a value is in one node of each."""
        sizes = [self.bins]
        while sizes[-1] > self.branching:
            sizes.append(-(-sizes[-1] // self.branching))
        return tuple(sizes)

    def counts(self, counts: Integers) -> Integers:
        """Return the counts of all nodes, int64 (nodes,), from those of the bins."""
        return np.concatenate([*itertools.accumulate(self.sizes[1:], lambda sums, _: self._sums(sums), initial=counts)])

    def estimates(self, noisy: Integers) -> Floats:
        """Return the least squares estimates of the counts of the bins, children adding up to their parents."""
        given = np.split(noisy.astype(np.float64), np.cumsum(self.sizes)[:-1])
        combined, below = [given[0]], []
        for own, variances, children in zip(given[1:], self._variances[1:], self._below, strict=True):
            below.append(self._sums(combined[-1]))
            combined.append(variances * (own + below[-1] / children))
        found = combined.pop()
        while combined:
            rest = (found - below.pop()) / self._below[len(combined) - 1]
            own = combined.pop()
            found = own + self._variances[len(combined)] * rest[np.arange(len(own)) // self.branching]
        return found

    def norms(self, quantile: float) -> Floats:
        """Return how much noise there is in (count below an edge) - quantile (count of all), at all inner edges.

        Returns:
            The L2 norm of the coefficients of the noise of all nodes, none of them beyond 1: float64 (bins - 1,).
        """
        node = np.arange(1, self.bins)
        weight, square = np.zeros(self.bins - 1), np.zeros(self.bins - 1)
        for level, variances in enumerate(self._variances):
            root = level == len(self.sizes) - 1
            family = np.zeros_like(node) if root else node // self.branching
            first, sums = family * self.branching, np.append(0.0, np.cumsum(variances))
            after = np.minimum(len(variances) if root else first + self.branching, len(variances))
            left, own, right = sums[node] - sums[first], variances[node], sums[after] - sums[node + 1]
            # The part of the family's count that is below the edge, as its sum tells; above all, the quantile.
            whole = np.full(len(node), quantile) if root else (left + weight * own) / self._below[level][family]
            square += (1 - whole) ** 2 * left + (weight - whole) ** 2 * own + whole**2 * right
            weight, node = whole, family
        return np.sqrt(square)

    @cached_property
    def _variances(self) -> list[Floats]:
        """By level, the variance of what a node's own noisy count and those below it say together of its count."""
        found = [np.ones(self.bins)]
        for _ in self.sizes[1:]:
            below = self._sums(found[-1])
            found.append(below / (1 + below))
        return found

    @cached_property
    def _below(self) -> list[Floats]:
        """By level, for each parent, the variance of what its children say together."""
        return [self._sums(values) for values in self._variances[:-1]]

    def _sums(self, values: NDArray[Number]) -> NDArray[Number]:
        """Add up children."""
        sums: NDArray[Number] = np.add.reduceat(values, np.arange(0, len(values), self.branching))
        return sums


@dataclass(frozen=True, eq=False, kw_only=True)
class BinnedStep:
    """What came in one step."""

    step: int  # public, >= 1; steps come in increasing order
    counts: Integers  # int64, shape (resolution,): how many values each bin has, see `Bins.count`


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantileRows:
    """What is published about one step: parallel columns, float64 (n,), in the order of quantiles; none ever falls."""

    step: int
    quantiles: Floats  # which ones, increasing
    estimates: Floats  # from `low` to `high`
    lower: Floats  # of the interval that contains the true quantile with probability 95%
    upper: Floats


@dataclass(frozen=True, kw_only=True)
class NumericQuantiles(Mechanism[int]):
    """Publishes quantiles of the numbers of each step, as many as are asked for at one price.

    Numbers are sorted into public bins. All nodes of a tree over the bins have noisy counts, which are made consistent
    by least squares. The state is the number of the last step.

    Privacy:
        Unit: one person over the whole run, who contributes at most `contributions` values in all and at most
        `per_step` in a step; or one event, which is one value. Adding or removing. The caller enforces the limits.
        (epsilon, delta)-DP with adaptive inputs. Public: the parameters and the steps.

    Accuracy:
        Each interval contains the true quantile with probability 95%, of values clipped to [low, high], if there are
        any; see `error`. Where there are few or none, intervals reach from `low` to `high`.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> ages = NumericQuantiles(epsilon=1.0, delta=1e-6, low=0, high=100, resolution=100, quantiles=(0.5,))
        >>> counts = ages.bins.count(np.repeat(np.arange(20, 60), 1000))
        >>> _, rows = ages.step(ages.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(1))
        >>> rows.estimates.round(), rows.lower, rows.upper
        (array([40.]), array([39.]), array([41.]))

    Source: derived here, docs/proofs/numeric_quantiles.md; consistent counts of trees: Hay et al. (VLDB 2010).
    """

    epsilon: float
    delta: float = 0.0  # in [0, 1); with 0 noise is discrete Laplace, else the smaller of this and discrete Gaussian
    low: float  # of the public bins, see `Bins`; values outside count as the nearest bin
    high: float
    resolution: int = 1000
    scale: str = "linear"
    quantiles: tuple[float, ...] = (0.5,)  # in (0, 1), increasing; 0.5 is the median
    horizon: int | None = None  # steps of the run
    contributions: int = 1  # values of one person in the whole run at most; 1 for the unit of an event
    per_step: int = 1  # values of one person in one step at most
    unit: str = "person"  # or "event"
    noise_label = "numeric quantiles"
    state_type = int

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)
        for name in ("contributions", "per_step"):
            checks.integer(name, getattr(self, name), minimum=1, maximum=LARGEST_CONTRIBUTIONS)
        if checks.one_of("unit", self.unit, ("person", "event")) == "event" and self.contributions != 1:
            raise ValueError(f"contributions must be 1 for the unit of an event, got {self.contributions}")
        if not isinstance(self.quantiles, tuple) or not self.quantiles:
            raise ValueError(f"quantiles must be a tuple of at least one number, got {self.quantiles!r}")
        if not (np.diff([checks.probability("quantiles", quantile) for quantile in self.quantiles]) > 0).all():
            raise ValueError(f"quantiles must increase, got {', '.join(map(str, self.quantiles))}")
        _ = self.bins, self.law  # refuse what they refuse

    @cached_property
    def bins(self) -> Bins:
        """The public bins."""
        return Bins(self.low, self.high, self.resolution, self.scale)

    @cached_property
    def tree(self) -> BinTree:
        """The tree over the bins."""
        return BinTree(self.resolution)

    @cached_property
    def law(self) -> SymmetricNoise:
        """The noise of a node: docs/proofs/numeric_quantiles.md, Theorem 1."""
        moved = self.contributions * len(self.tree.sizes)
        norm = math.sqrt(moved * min(self.per_step, self.contributions))
        return least_noise(self.epsilon, self.delta, moved, norm)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        limit = f"A person has at most {self.contributions:,} values in the run, and {self.per_step:,} in a step."
        pure = isinstance(self.law, DiscreteLaplace)
        return PrivacyGuarantee(
            unit=PrivacyUnit(what=self.unit),
            epsilon=self.epsilon,
            delta=self.delta,
            limits=("An event is one value.",) if self.unit == "event" else (limit,),
            public=("all parameters", "the number of steps"),
            proof="docs/proofs/numeric_quantiles.md, Theorem 1",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=PureDp(self.epsilon) if pure else noise_curve(self.epsilon, self.delta),
        )

    @property
    def accuracy(self) -> Accuracy:
        """What holds in every step, from public parameters alone.

        Its error, of 95%, is that of the number of values below an edge, less a quantile's part of all values, at the
        worst edge and quantile. Intervals reach about that far to both sides of a quantile, in the order of values.
        """
        error = math.ceil(max(float(each.max()) for each in self._bounds(OUTSIDE / 2)))
        claim = f"The number of values below an edge of a bin is within {error:,} with probability 95%."
        return Accuracy(error=error, failure_probability=OUTSIDE, claim=claim, numbers={"rank_error": error})

    def step(self, state: int, given: BinnedStep, noise: NoiseSource) -> tuple[int, QuantileRows]:
        """Return the quantiles of what one step brought.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: steps do not increase, or counts have another shape.
        """
        if given.counts.shape != (self.resolution,):
            raise ValueError(f"counts must have shape ({self.resolution},), got {given.counts.shape}")
        if checks.integer("step", given.step, minimum=1) <= state:
            raise ValueError(f"step must be > {state}, got {given.step}")
        checks.step(given.step, self.horizon or given.step)
        true = self.tree.counts(given.counts)
        labels = np.empty((len(true), 2), np.uint64)
        labels[:, 0], labels[:, 1] = np.arange(len(true)), given.step
        source = self._source(noise)
        noisy = true + self.law.draw(source, source.bind(labels, true))
        counts, quantiles = self.tree.estimates(noisy), np.array(self.quantiles)
        lower, upper = self._intervals(counts)
        below, total = scipy.optimize.isotonic_regression(np.cumsum(counts)).x, float(counts.sum())
        if total <= 0:  # nothing is known
            below, total = np.arange(1.0, self.resolution + 1), float(self.resolution)
        ranks = np.append(min(0.0, below[0]), below)  # whose last one is too large in the mean: noise adds up above
        places = np.interp(quantiles * total, ranks, np.arange(self.resolution + 1.0))
        estimates = np.clip(self.bins.at(places), lower, upper)
        rows = QuantileRows(step=given.step, quantiles=quantiles, estimates=estimates, lower=lower, upper=upper)
        return given.step, rows

    def _intervals(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return ends of intervals: edges are passed from both sides up to the first that may be the quantile's."""
        below, total = np.cumsum(counts)[:-1], float(counts.sum())
        lower, upper = [], []
        for quantile, bound in zip(self.quantiles, self._bounds(OUTSIDE / 2), strict=True):
            ranks = below - quantile * total
            lower.append(int(np.argmax(np.append(ranks >= -bound, True))))
            upper.append(self.resolution - int(np.argmax(np.append((ranks <= bound)[::-1], True))))
        least = np.minimum.accumulate(np.array(lower)[::-1])[::-1]
        most = np.maximum.accumulate(np.array(upper))
        return self.bins.edges[np.minimum(least, most)], self.bins.edges[np.maximum(least, most)]

    def _bounds(self, tail: float) -> list[Floats]:
        """Return for each quantile what the noise of counts below edges exceeds with this probability at most.

        Gaussian noise is taken for normal noise; Laplace noise has Chernoff's bound.
        """
        if isinstance(self.law, DiscreteGaussian):
            return [-float(special.ndtri(tail)) * self.law.sigma * norms for norms in self._norms]
        rates, one = _RATES / self.law.scale, NoiseSum(((self.law.scale, 1, 1),), ((self.law.scale, 1, 1),))
        moments = np.array([one.log_moment(rate) for rate in rates.tolist()])
        # A coefficient w <= 1 has at most w^2 of the log-moment of 1.
        return [((np.square(norms)[:, None] * moments - math.log(tail)) / rates).min(axis=1) for norms in self._norms]

    @cached_property
    def _norms(self) -> list[Floats]:
        return [self.tree.norms(quantile) for quantile in self.quantiles]

    def _described(self) -> Any:
        kind, values = super()._described()
        return [kind, {name: value for name, value in values.items() if name != "quantiles"}]  # they shape no noise
