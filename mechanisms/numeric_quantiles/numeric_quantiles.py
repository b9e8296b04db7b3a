"""NumericQuantiles: medians and percentiles of numbers, each with an interval that contains the true one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.keyed_counts.key_table import KeyedState, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles.bin_tree import BinTree, best_tree
from privstream.mechanisms.numeric_quantiles.bins import Bins
from privstream.mechanisms.privacy.caveats import KEYED_NOISE
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LARGEST_CONTRIBUTIONS = 1 << 24
WORDINGS = ("beta", "quantiles")  # fields that shape no noise


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
        lower, upper: the interval that contains the true quantile, with the probability that the mechanism states.
    """

    step: int
    quantiles: Floats
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
        With probability 1 - beta, all intervals of all steps contain the true quantile, of values clipped to [low,
        high], if there are any; see `error`. Where there are few or none, intervals reach from `low` to `high`.

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
        beta: probability that not all intervals contain their quantile; without a horizon, in a step by itself.

    Raises:
        ValueError, TypeError: a field is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> ages = NumericQuantiles(epsilon=1.0, delta=1e-6, low=0, high=100, resolution=100, quantiles=(0.5,))
        >>> counts = ages.bins.count(np.repeat(np.arange(20, 60), 1000))
        >>> _, rows = ages.step(ages.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(1))
        >>> rows.estimates.round(), rows.lower, rows.upper
        (array([40.]), array([39.]), array([41.]))

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
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
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
        """Return z such that, with probability 1 - beta, no count below an edge is off by more than z.

        That is the count of values below an edge, less a quantile's part of all values: at all inner edges and for all
        `quantiles`, at all of steps 1 .. `step`. So an edge inside of an interval is at most 2 z values away from the
        quantile, in the order of values.
        """
        number = checks.integer("step", step, minimum=1, maximum=self.horizon)
        bounds = self._bounds(number, checks.probability("beta", beta) / number)
        return max(float(each.max()) for each in bounds)

    @property
    def accuracy(self) -> Accuracy:
        """What holds at the last step, from public parameters alone."""
        last = self.horizon or 1
        error = math.ceil(self.error(last, self.beta))
        deviation = self.counts.stddev(last) * max(float(norms.max()) for norms, _ in self._norms)
        return Accuracy(
            error=float(error),
            failure_probability=self.beta,
            claim=f"With probability {1 - self.beta:g} all intervals contain their quantile, and edges of bins "
            f"inside of an interval are at most {2 * error:,} values away from it.",
            numbers={"rank_error": error, "rank_stddev": deviation, "levels": self.tree.levels},
        )

    def initial_state(self) -> KeyedState:
        """Return the state before the first step."""
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
        lower, upper = self._intervals(step, counts[0])
        measure = np.cumsum(self.tree.measure(counts))
        if measure[-1] <= 0:  # nothing is known
            measure = np.arange(1.0, self.resolution + 1)
        quantiles = np.array(self.quantiles)
        places = np.interp(quantiles * measure[-1], np.append(0.0, measure), np.arange(self.resolution + 1.0))
        return QuantileRows(
            step=step,
            quantiles=quantiles,
            estimates=np.clip(self.bins.at(places), lower, upper),
            lower=lower,
            upper=upper,
        )

    def _intervals(self, step: int, counts: Floats) -> tuple[Floats, Floats]:
        """Return the last edge that is below each quantile for certain, and the first one that is above it."""
        below, total = np.cumsum(counts)[:-1], float(counts.sum())
        steps = self.horizon or 1
        lower, upper = [], []
        for quantile, bounds in zip(self.quantiles, self._bounds(step, self.beta / steps), strict=True):
            ranks = below - quantile * total
            lower.append(max(np.flatnonzero(ranks < -bounds) + 1, default=0))
            upper.append(min(np.flatnonzero(ranks > bounds) + 1, default=self.resolution))
        least = np.maximum.accumulate(np.array(lower))
        most = np.minimum.accumulate(np.array(upper)[::-1])[::-1]
        edges = self.bins.edges
        return edges[np.minimum(least, most)], edges[np.maximum(least, most)]

    def _bounds(self, step: int, beta: float) -> list[Floats]:
        """Return for each quantile how far counts below edges may be off at `step`, all of them with beta."""
        (noise,) = self.counts.law.noises
        tail = beta / (2 * len(self.quantiles) * (self.resolution - 1))
        return [noise.sums_exceeded(step, tail, *norms) for norms in self._norms]

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
