"""NumericQuantiles: medians and percentiles of numbers, each with an interval that contains the true one."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.keyed_counts.key_table import KeyedState, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.smoothing import LEAST_STDDEV, NORMAL, LocalLevel, beside
from typing_extensions import override

SCALES = ("linear", "log")
LARGEST_RESOLUTION = 1 << 16


@dataclass(frozen=True)
class Bins:
    """So many bins [edge, next edge) from `low` to `high`; the last one includes `high`.

    Attributes:
        low: the first edge, finite; > 0 with equal ratios.
        high: the last edge, finite and > `low`.
        resolution: number of bins, from 2 to 65,536.
        scale: "linear" for bins of equal width, "log" for bins whose edges have equal ratios.

    Raises:
        ValueError, TypeError: a field breaks its rule, or bins are so narrow that floats cannot tell their edges apart.
    """

    low: float
    high: float
    resolution: int
    scale: str

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

    def count(self, values: ArrayLike) -> Integers:
        """Return how many values each bin has, int64 (resolution,); see `places`."""
        return np.bincount(self.places(values), minlength=self.resolution)

    def places(self, values: ArrayLike) -> Integers:
        """Return the bin of each value; those below `low` are in the first one, those above `high` in the last one.

        Raises:
            ValueError: a value is not a number.
        """
        given = np.asarray(values, np.float64)
        if np.isnan(given).any():
            raise ValueError("values must be numbers, got nan")
        return np.clip(np.searchsorted(self.edges, given, side="right") - 1, 0, self.resolution - 1)


Number = TypeVar("Number", np.int64, np.float64)

BRANCHINGS = range(2, 17)


@dataclass(frozen=True)
class BinTree:
    """So many `levels` of nodes: the bins, then always `branching` neighbours together. There is no root.

    Nodes are numbered level by level, the bins first. Each node has a noisy count, with independent noise of one
    variance, which is the unit of all variances here. docs/proofs/numeric_quantiles.md, section 2.
    """

    bins: int
    branching: int
    levels: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level."""
        return tuple(-(-self.bins // self.branching**level) for level in range(self.levels))

    @property
    def nodes(self) -> int:
        """Number of all nodes."""
        return sum(self.sizes)

    def counts(self, counts: Integers) -> Integers:
        """Return the counts of all nodes, int64 (nodes,), from those of the bins."""
        found = [counts]
        for _ in range(1, self.levels):
            found.append(self._sums(found[-1]))
        return np.concatenate(found)

    def estimates(self, noisy: Integers) -> list[Floats]:
        """Return the least squares estimates of the counts of all nodes, by level: children add up to their parent."""
        given = np.split(noisy.astype(np.float64), np.cumsum(self.sizes)[:-1])
        combined, below = [given[0]], []
        for level in range(1, self.levels):
            below.append(self._sums(combined[-1]))
            combined.append(self._variances[level] * (given[level] + below[-1] / self._below[level - 1]))
        for level in reversed(range(self.levels - 1)):
            excess = (combined[level + 1] - below[level]) / self._below[level]
            combined[level] = combined[level] + self._variances[level] * excess[self._parents(level)]
        return combined

    def sums_of(self, bins: Floats) -> list[Floats]:
        """Return the counts of all nodes, by level, from those of the bins."""
        found = [bins]
        while len(found) < self.levels:
            found.append(self._sums(found[-1]))
        return found

    def measure(self, estimates: list[Floats]) -> Floats:
        """Return counts >= 0 of the bins, float64 (bins,): from above, each node's is divided among its children.

        In proportion to their estimates, of which negative ones count as 0; equally if none is positive.
        """
        found = np.maximum(estimates[-1], 0.0)
        for level in reversed(range(self.levels - 1)):
            shares, parents = np.maximum(estimates[level], 0.0), self._parents(level)
            shares = np.where(self._sums(shares)[parents] > 0, shares, 1.0)
            found = shares * (found / self._sums(shares))[parents]
        return found

    def norms(self, quantile: float) -> tuple[Floats, Floats]:
        """Return how much noise there is in (count below an edge) - quantile (count of all), at all inner edges.

        Returns:
            The L2 norm of the coefficients of the noise of all nodes, and a bound of their L1 norm: both (bins - 1,).
        """
        node = np.arange(1, self.bins)
        weight, square, absolute = (np.zeros(self.bins - 1) for _ in range(3))
        for level in range(self.levels):
            root = level == self.levels - 1
            family = np.zeros_like(node) if root else node // self.branching
            first, after = (0, self.sizes[level]) if root else self._family(family, level)
            left, own, right = self._split(self._variances[level], node, first, after)
            whole = self._mean(level, family, left + weight * own, quantile)
            square += (1 - whole) ** 2 * left + (weight - whole) ** 2 * own + whole**2 * right
            left, own, right = self._split(self._absolute[level], node, first, after)
            absolute += (1 - whole) * left + np.abs(weight - whole) * own + whole * right
            weight, node = np.broadcast_to(whole, node.shape), family
        return np.sqrt(square), absolute

    @property
    def total_norm(self) -> float:
        """How much noise there is in the count of all: an L2 norm, as of `norms`."""
        return math.sqrt(float(self._variances[-1].sum()))

    @cached_property
    def worst_norm(self) -> float:
        """The largest L2 norm over edges and quantiles; its square is convex in the quantile: 0 or 1 is the worst."""
        return max(float(self.norms(quantile)[0].max()) for quantile in (0.0, 1.0))

    def _mean(self, level: int, family: Integers, weighted: Floats, quantile: float) -> Floats:
        """Return the part of a family's count that is below the edge, as its sum tells; above all, the quantile."""
        return np.full(len(family), quantile) if level == self.levels - 1 else weighted / self._below[level][family]

    def _family(self, family: Integers, level: int) -> tuple[Integers, Integers]:
        first = family * self.branching
        return first, np.minimum(first + self.branching, self.sizes[level])

    @staticmethod
    def _split(
        values: Floats, node: Integers, first: int | Integers, after: int | Integers
    ) -> tuple[Floats, Floats, Floats]:
        """Return the sums of values of a family's nodes before the node, its own value, and the sums after it."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[node] - sums[first], values[node], sums[after] - sums[node + 1]

    @cached_property
    def _variances(self) -> list[Floats]:
        """By level, the variance of what a node's own noisy count and those below it say together of its count."""
        found = [np.ones(self.bins)]
        for _ in range(1, self.levels):
            below = self._sums(found[-1])
            found.append(below / (1 + below))
        return found

    @cached_property
    def _below(self) -> list[Floats]:
        """By level, for each parent, the variance of what its children say together."""
        return [self._sums(values) for values in self._variances[:-1]]

    @cached_property
    def _absolute(self) -> list[Floats]:
        """By level, the L1 norm of the coefficients, all >= 0, of that combination."""
        found = [np.ones(self.bins)]
        for level in range(1, self.levels):
            below = self._sums(found[-1]) / self._below[level - 1]
            found.append(self._variances[level] * (1 + below))
        return found

    def _sums(self, values: NDArray[Number]) -> NDArray[Number]:
        """Add up children."""
        sums: NDArray[Number] = np.add.reduceat(values, np.arange(0, len(values), self.branching))
        return sums

    def _parents(self, level: int) -> Integers:
        return np.arange(self.sizes[level]) // self.branching


@functools.lru_cache(maxsize=64)
def best_tree(bins: int, *, pure: bool) -> BinTree:
    """Return the tree with the least error at the worst edge and for the worst quantile.

    A unit is in one node of each level. So the variance of a node grows with the number of levels, and with its square
    for noise that is `pure`.
    """
    return min(_candidates(bins), key=lambda tree: tree.worst_norm**2 * tree.levels ** (2 if pure else 1))


def _candidates(bins: int) -> list[BinTree]:
    """Return trees with few nodes on top, and the one of bins alone."""
    found = {BinTree(bins, 2, 1)}
    for branching in BRANCHINGS:
        levels = 1
        while bins > branching**levels:
            levels += 1
        found |= {BinTree(bins, branching, most) for most in (levels - 1, levels) if most > 1}
    return sorted(found, key=lambda tree: (tree.levels, tree.branching))


LARGEST_CONTRIBUTIONS = 1 << 24
WORDINGS = ("beta", "quantiles")  # fields that shape no noise
LARGEST_TAIL = 0.1
"""Intervals are not narrower than those with which a quantile is beyond an end with this probability."""


START_SHARE = 0.1
"""Part of beta that pays for the edges from which on edges are tested one by one."""


_MAY_DIFFER, _DIFFERS = 0.1, 1e-3
"""A window may differ from those beside it, or does, where noise has any edge so far off with these probabilities."""

_SURELY = 5.0
"""Deviations by which no edge of thousands is off, from which on edges of smoothed counts are tested one by one."""
_LEAST_ACTIVE = 0.1
"""Of the mean number of values: with fewer a window is taken to have so many."""
_TIED = 1e-9


def _passed(rejected: NDArray[np.bool_], surely: NDArray[np.bool_]) -> int:
    """Return how many edges are before the first that is not rejected, of those after the last that surely is."""
    start = int(np.max(np.flatnonzero(surely) + 1, initial=0))
    return start + int(np.argmin(np.append(rejected[start:], False)))


@dataclass(frozen=True, eq=False, kw_only=True)
class BinnedStep:
    """What came in one step.

    Attributes:
        step: public number of the step, >= 1; steps come in increasing order, and those left out had nothing new.
        counts: int64, shape (resolution,): how many new values each bin has, see `Bins.count`.
    """

    step: int
    counts: Integers


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantileRows:
    """What is published about one step: parallel columns, float64 (n,), in the order of quantiles.

    Attributes:
        step: number of the step.
        quantiles: which ones, increasing.
        estimates: their estimates, from `low` to `high`, never falling.
        lower, upper: the interval that contains the true quantile, each with the probability that the mechanism states.
            Both never fall.
        counts: noisy counts of the bins that they are made of, float64 (resolution,), for `NumericQuantiles.smooth`.
    """

    step: int
    quantiles: Floats
    estimates: Floats
    lower: Floats
    upper: Floats
    counts: Floats


class SmoothedQuantiles(NamedTuple):
    """Quantiles of windows that follow each other, from the counts of all of them: float64, (windows, quantiles) each.

    Attributes:
        estimates: from `low` to `high`, never falling from quantile to quantile.
        lower, upper: the ends of intervals of 95%, which rest on a model; both never fall either.
    """

    estimates: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, kw_only=True)
class NumericQuantiles(Mechanism[KeyedState]):
    """Publishes quantiles of numbers after every step: of one window, of the last n windows, or of all since the start.

    Numbers are sorted into public bins. All nodes of a tree over the bins have noisy counts, which are made consistent
    by least squares. All quantiles are taken from these counts: asking for more of them costs nothing.

    Privacy:
        Unit: one person over the whole run, who contributes at most `contributions` values in all and at most one in a
        step; or one event, which is one value. Adding or removing, or replacing, as `neighbouring` says. The caller
        enforces the limits. (epsilon, delta)-DP with adaptive inputs: a value is in one node of each level, so this is
        `KeyedCounts` with so many times as many contributions. Public: the parameters and the steps.

    Accuracy:
        Each interval contains the true quantile with probability 1 - beta at least, of values clipped to [low, high],
        if there are any; see `error`. Where there are few or none, intervals reach from `low` to `high`.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1). With 0 noise is discrete Laplace, for values since the start in a tree over time, whose noise
            is not bound to the data: such a run must not be repeated on other data.
        low, high: the range of values; those outside count as the nearest bin.
        resolution: number of bins, from 2 to 65,536.
        scale: "linear" for bins of equal width, "log" for edges of equal ratios.
        quantiles: in (0, 1), increasing; 0.5 is the median.
        over: "window": each step alone; n >= 2: the last n steps; "start": all steps.
        horizon: steps of the run, up to 2^20; may be None for "window" alone.
        contributions: values of one person in the whole run at most, >= 1; 1 for the unit of an event.
        unit: "person" or "event".
        neighbouring: "add_remove" or "replace_one".
        beta: probability that an interval does not contain its quantile, of each by itself.

    Raises:
        ValueError, TypeError: a field is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> ages = NumericQuantiles(epsilon=1.0, delta=1e-6, low=0, high=100, resolution=100, quantiles=(0.5,))
        >>> counts = ages.bins.count(np.repeat(np.arange(20, 60), 1000))
        >>> _, rows = ages.step(ages.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(1))
        >>> rows.estimates.round(), rows.lower, rows.upper
        (array([40.]), array([40.]), array([41.]))

    Source: derived here, docs/proofs/numeric_quantiles.md; consistent counts of trees: Hay, Rastogi, Miklau, Suciu,
    Boosting the accuracy of differentially private histograms through consistency (VLDB 2010).
    """

    epsilon: float
    delta: float = 0.0
    low: float
    high: float
    resolution: int = 1000
    scale: str = "linear"
    quantiles: tuple[float, ...] = (0.5,)
    over: str | int = "window"
    horizon: int | None = None
    contributions: int = 1
    unit: str = "person"
    neighbouring: str = "add_remove"
    beta: float = 0.05

    noise_label = "numeric quantiles"
    state_type = KeyedState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("contributions", self.contributions, minimum=1, maximum=LARGEST_CONTRIBUTIONS)
        if checks.one_of("unit", self.unit, ("person", "event")) == "event" and self.contributions != 1:
            raise ValueError(f"contributions must be 1 for the unit of an event, got {self.contributions}")
        checks.probability("beta", self.beta)
        self._check_quantiles()
        _ = self.bins, self.counts  # refuse what they refuse

    def _check_quantiles(self) -> None:
        if not isinstance(self.quantiles, tuple) or not self.quantiles:
            raise ValueError(f"quantiles must be a tuple of at least one number, got {self.quantiles!r}")
        for quantile in self.quantiles:
            checks.probability("quantiles", quantile)
        if any(a >= b for a, b in zip(self.quantiles, self.quantiles[1:], strict=False)):
            raise ValueError(f"quantiles must increase, got {', '.join(map(str, self.quantiles))}")

    @cached_property
    def bins(self) -> Bins:
        """The public bins."""
        return Bins(self.low, self.high, self.resolution, self.scale)

    @cached_property
    def tree(self) -> BinTree:
        """The tree over the bins with the least error at the last step."""
        kinds = (True,) if self.delta == 0 else (False, True)  # with delta, Laplace noise may be smaller all the same
        trees = [best_tree(self.resolution, pure=pure) for pure in kinds]
        return min(trees, key=lambda tree: self._counts_of(tree).stddev(self.horizon or 1) * tree.worst_norm)

    @cached_property
    def counts(self) -> KeyedCounts:
        """The noisy counts of the nodes."""
        return self._counts_of(self.tree)

    def _counts_of(self, tree: BinTree) -> KeyedCounts:
        """Return noisy counts of a tree's nodes: a value contributes to one node of each level."""
        return KeyedCounts(
            epsilon=self.epsilon,
            delta=self.delta,
            over=self.over,
            horizon=self.horizon,
            contributions=self.contributions * tree.levels,
            contributions_per_key=self.contributions,
            public_keys=True,
            neighbouring=self.neighbouring,
        )

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        limit = "An event is one value."
        if self.unit == "person":
            values = f"{self.contributions:,} value{'s' * (self.contributions > 1)}"
            limit = f"A person contributes at most {values} in the whole run, and at most one in a step."
        return replace(
            self.counts.guarantee,
            unit=PrivacyUnit(what=self.unit),
            limits=(limit,),
            public=("all parameters", "the number of steps"),
            proof="docs/proofs/numeric_quantiles.md, Theorem 1",
            caveats=(KEYED_NOISE,),
        )

    def error(self, step: int, beta: float) -> float:
        """Return z such that a count below an edge is off by more than z with probability beta at most.

        That is the count of values below an inner edge, less a quantile's part of all values, at a step: each by
        itself, for the worst edge and the worst of `quantiles`. Intervals reach about that far to both sides of a
        quantile, in the order of values.
        """
        number = checks.integer("step", step, minimum=1, maximum=self.horizon)
        return max(float(each.max()) for each in self._bounds(number, checks.probability("beta", beta)))

    @property
    def accuracy(self) -> Accuracy:
        """What holds at the last step, from public parameters alone."""
        last = self.horizon or 1
        error = math.ceil(self.error(last, self.beta))
        deviation = self.counts.stddev(last) * max(float(norms.max()) for norms, _ in self._norms)
        return Accuracy(
            error=float(error),
            failure_probability=self.beta,
            claim=f"With probability {1 - self.beta:g} an interval contains its quantile, and the number of values "
            f"below an edge of a bin is off by at most {error:,}, each by itself.",
            numbers={"rank_error": error, "rank_stddev": deviation, "levels": self.tree.levels},
        )

    @override
    def initial_state(self) -> KeyedState:
        return self.counts.initial_state(np.arange(self.tree.nodes, dtype=np.uint64))

    def step(self, state: KeyedState, given: BinnedStep, noise: NoiseSource) -> tuple[KeyedState, QuantileRows]:
        """Add what one step brought, and return the quantiles.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: steps do not increase, or counts have another shape or are negative.
        """
        if given.counts.shape != (self.resolution,):
            raise ValueError(f"counts must have shape ({self.resolution},), got {given.counts.shape}")
        counts = self.tree.counts(given.counts)
        nodes = np.flatnonzero(counts)
        came = KeyedStep(step=given.step, keys=nodes.astype(np.uint64), counts=counts[nodes])
        state, found = self.counts.step(state, came, self._source(noise))
        return state, self._rows(given.step, found.counts)

    def _rows(self, step: int, noisy: Integers) -> QuantileRows:
        """Return estimates and intervals from the noisy counts of all nodes; both never fall with the quantile."""
        counts = self.tree.estimates(noisy)
        estimates, lower, upper = self._alone(step, counts)
        return QuantileRows(
            step=step,
            quantiles=np.array(self.quantiles),
            estimates=estimates,
            lower=lower,
            upper=upper,
            counts=counts[0],
        )

    def _alone(self, step: int, counts: list[Floats]) -> tuple[Floats, Floats, Floats]:
        """Return estimates and ends of intervals of a window by itself, from estimated counts of nodes, by level."""
        lower, upper = self._intervals(step, counts[0])
        measure = np.cumsum(self.tree.measure(counts))
        if measure[-1] <= 0:  # nothing is known
            measure = np.arange(1.0, self.resolution + 1)
        wanted = np.array(self.quantiles) * measure[-1]
        places = np.interp(wanted, np.append(0.0, measure), np.arange(self.resolution + 1.0))
        return np.clip(self.bins.at(places), lower, upper), lower, upper

    def smooth(self, counts: Floats) -> SmoothedQuantiles:
        """Return the quantiles of windows that follow each other, each with the windows before and after it.

        For each edge of the bins there is a series over windows: (count below the edge) - quantile (count of all), in
        parts of the count of all, which is 0 where the edge is the quantile. It is smoothed as a series of counts is
        (`LocalLevel`): with a test of how much it moves, so that a jump is not smoothed away. An edge that is surely
        below or above 0 is passed from its side, up to the first one that is not, as with `lower` and `upper`.

        Each edge has a model of its own, and where a change is small beside noise none sees it. In a window in which
        any edge is off the mean of the windows beside it, as noise is in a tenth of windows, all intervals reach as far
        as those of the window by itself; the more it is off, up to what noise is in a thousandth, the more estimates
        are those of the window by itself, too.

        Privacy: post-processing of counts that have their noise.

        Accuracy: intervals rest on the model that shares of values below an edge stay near a level that moves; they are
        not guaranteed, as those of a window by itself are. What holds is in docs/decisions/0066-smoothed-quantiles.md.

        Args:
            counts: of `QuantileRows`, shape (windows, resolution), of windows by themselves (`over` is "window").

        Raises:
            ValueError: `counts` has another shape, or no window, or quantiles are not about a window each.
        """
        given = np.asarray(counts, np.float64)
        if self.over != "window":
            raise ValueError(f"over must be window where quantiles are smoothed over windows, got {self.over}")
        if given.ndim != 2 or not len(given) or given.shape[1] != self.resolution:
            raise ValueError(f"counts must have shape (windows, {self.resolution}), got {given.shape}")
        below, totals = np.cumsum(given, axis=1)[:, :-1], given.sum(axis=1, keepdims=True)
        stddev = max(LEAST_STDDEV, self.counts.stddev(1))
        many = np.maximum(LocalLevel(max(LEAST_STDDEV, stddev * self.tree.total_norm)).smooth(totals).estimates, 1.0)
        places = [
            self._smoothed_places(below - quantile * totals, many, quantile, np.maximum(stddev * norms, LEAST_STDDEV))
            for quantile, (norms, _) in zip(self.quantiles, self._norms, strict=True)
        ]
        estimates, lower, upper, off = (np.stack(part, axis=1) for part in zip(*places, strict=True))
        lower = np.minimum.accumulate(lower[:, ::-1], axis=1)[:, ::-1]
        upper = np.maximum.accumulate(upper, axis=1)
        estimates = np.clip(np.maximum.accumulate(estimates, axis=1), lower, upper)
        least, most = (NormalDist().inv_cdf(1 - tail / (2 * below.shape[1])) for tail in (_MAY_DIFFER, _DIFFERS))
        apart = np.clip((off.max(axis=1) - least) / (most - least), 0.0, 1.0)
        for window in np.flatnonzero(apart):
            alone = np.interp(
                self._alone(1, self.tree.sums_of(given[window])), self.bins.edges, np.arange(self.resolution + 1.0)
            )
            estimates[window] += apart[window] * (alone[0] - estimates[window])
            lower[window], upper[window] = np.minimum(lower[window], alone[1]), np.maximum(upper[window], alone[2])
        return SmoothedQuantiles(*(self.bins.at(part) for part in (estimates, lower, upper)))

    def _smoothed_places(
        self, ranks: Floats, many: Floats, quantile: float, stddevs: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return where a quantile and the ends of its interval are in each window, counted in bins, and how it differs.

        That is how far its edges are off the windows beside it at most, in deviations of the noise; 0 of a single one.

        What is smoothed is divided by quantile (1 - quantile), and the mean number of values is added to it before.
        Then Poisson's law of a count around its level is the binomial one of values below the quantile.

        Args:
            ranks: (count below each inner edge) - quantile (count of all), shape (windows, edges).
            many: counts of all, smoothed, shape (windows, 1).
            quantile: which one.
            stddevs: of the noise of `ranks`, at each edge.
        """
        mean, times = float(many.mean()), 1 / (quantile * (1 - quantile))
        active = np.maximum(many / mean, _LEAST_ACTIVE)
        usual = float(np.median(stddevs))
        factors = active * (usual / stddevs)
        model = LocalLevel(max(LEAST_STDDEV, times * usual), close=True)
        smoothed = model.smooth(times * (ranks / active + mean) * factors, factors)
        levels, tops = ((part / factors / times - mean) * active for part in (smoothed.estimates, smoothed.upper))
        scores = levels / np.maximum((tops - levels) / NORMAL, LEAST_STDDEV)
        ends = -quantile * many, (1 - quantile) * many
        rising = np.maximum.accumulate(levels, axis=1), np.minimum.accumulate(levels[:, ::-1], axis=1)[:, ::-1]
        rising_ranks = np.maximum.accumulate(np.hstack([ends[0], (rising[0] + rising[1]) / 2, ends[1]]), axis=1)
        rising_ranks = rising_ranks + _TIED * np.arange(self.resolution + 1)
        edges = np.arange(self.resolution + 1.0)
        estimates = np.array([np.interp(0.0, row, edges) for row in rising_ranks])
        lower = np.array([_passed(row < -NORMAL, row < -_SURELY) for row in scores], np.float64)
        passed = [_passed((row > NORMAL)[::-1], (row > _SURELY)[::-1]) for row in scores]
        upper = self.resolution - np.array(passed, np.float64)
        off = np.zeros(len(ranks))
        if len(ranks) > 1:
            off = np.max(np.abs(ranks - beside(levels / active) * active) / stddevs, axis=1)
        return estimates, np.minimum(lower, upper), np.maximum(lower, upper), off

    def _intervals(self, step: int, counts: Floats) -> tuple[Floats, Floats]:
        """Return ends of intervals: from both sides, edges are passed up to the first that may be the quantile's."""
        below, total = np.cumsum(counts)[:-1], float(counts.sum())
        lower, upper = [], []
        walked, started = (self._bounds(step, self.beta, start=start) for start in (False, True))
        for quantile, each, every in zip(self.quantiles, walked, started, strict=True):
            ranks = below - quantile * total
            lower.append(_passed(ranks < -each, ranks < -every))
            upper.append(self.resolution - _passed((ranks > each)[::-1], (ranks > every)[::-1]))
        least = np.minimum.accumulate(np.array(lower)[::-1])[::-1]
        most = np.maximum.accumulate(np.array(upper))
        return self.bins.edges[np.minimum(least, most)], self.bins.edges[np.maximum(least, most)]

    def _bounds(self, step: int, beta: float, *, start: bool = False) -> list[Floats]:
        """Return for each quantile how far counts below edges may be off at `step`: each edge, or all of one to start.

        Both together, on both sides, fail with probability beta.
        """
        (noise,) = self.counts.law.noises
        tail = min(beta / 2, LARGEST_TAIL) * (START_SHARE / (self.resolution - 1) if start else 1 - START_SHARE)
        return [noise.sums_tail_bound(step, tail, *norms) for norms in self._norms]

    @cached_property
    def _norms(self) -> list[tuple[Floats, Floats]]:
        return [self.tree.norms(quantile) for quantile in self.quantiles]

    def _fields(self, state: KeyedState) -> dict[str, Any]:
        return self.counts._fields(state)

    def _state(self, fields: dict[str, Any]) -> KeyedState:
        return self.counts._state(fields)

    def _described(self) -> Any:
        kind, values = super()._described()
        return [kind, {name: value for name, value in values.items() if name not in WORDINGS}]
