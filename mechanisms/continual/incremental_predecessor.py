"""The nearest points below and above a query, while points are inserted and never deleted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.continual.predecessor import NO_POINT, Neighbours, PredecessorStep
from privstream.mechanisms.continual.ranges import PointMechanism, Updates, below, checked_points, tree_height, updated
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import SERIES, NoiseSum
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from typing_extensions import override

NOTHING = -1
_TYPICAL_STEPS = _TYPICAL_INTERVALS = 1 << 10


def _no_integers() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class IncrementalState:
    """What outlives a step: points, active dyadic intervals in order of their starts, and marked ones.

    Attributes:
        step: steps done.
        points: the points, sorted; private.
        numbers: of the active intervals that are not marked.
        births: how many intervals had been activated before each.
        marked: numbers of the marked intervals, sorted.
        activated: how many intervals have been activated.
    """

    step: int = 0
    points: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: Integers = field(default_factory=lambda: np.ones(1, np.int64))
    births: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    marked: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    activated: int = 1


def level_below_root(numbers: Integers) -> Integers:
    """Return floor(log2) of each number, exactly."""
    depth, rest = np.zeros(len(numbers), np.int64), numbers.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        high = rest >> shift > 0
        depth[high] += shift
        rest[high] >>= shift
    return depth


def bounds(numbers: Integers, height: int) -> tuple[Integers, Integers]:
    """Return the first point of each dyadic interval, and the first one after it; 1 is the root, n has 2 n, 2 n + 1."""
    levels = height - level_below_root(numbers)
    starts = (numbers << levels) - (np.int64(1) << height)
    return starts, starts + (np.int64(1) << levels)


def last_starts(ends: Integers, first: Integers, after: Integers) -> Integers:
    """Return for each range [0, end) the largest start of an interval [first, after) that lies in it, or NOTHING."""
    order = np.argsort(after, kind="stable")
    best = np.maximum.accumulate(np.append(NOTHING, first[order]))
    return best[np.searchsorted(after[order], ends, side="right")]


@dataclass(frozen=True, kw_only=True)
class IncrementalPredecessor(PointMechanism[IncrementalState]):
    """Finds points near to queries, below and above, while points are inserted and never deleted.

    A dyadic interval becomes *marked* at the first step at which count + mu > K + tau, tau (one for each interval) and
    mu (one for each test) geometric, which hardly happens without a point. An answer is read from these marks. The root
    is active from the start; a marked interval activates its children, which are tested in the same step. So memory and
    time grow with the points and not with the universe.

    Privacy:
        Unit: one insertion over the whole run, added or removed. epsilon-DP for all marks together: a point is in
        ceil(log2 universe) + 1 intervals with an even share of epsilon each. Public: all fields and the number of
        steps; queries are answered from published marks and may be anything. Insertions may depend on all answers.

    Accuracy:
        With probability 1 - beta, for insertions and queries that do not depend on answers: an answer x to q has a
        point between x and q and at most `errors` of them; where there is no answer there are at most as many on that
        side. `error(step)` is no less, whatever the answer.

    Attributes:
        epsilon: finite and > 0.
        universe: points are 1 .. universe, at most 2^60.
        horizon: steps of the whole run at most, or None: thresholds then rise slowly with the steps done.
        queries: number of queries at a step that the accuracy is stated for; None for all points.
        beta: failure probability of the accuracy.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = IncrementalPredecessor(epsilon=1.0, universe=1 << 32, horizon=10)
        >>> step = PredecessorStep(Updates(np.arange(10**6, 10**6 + 10**5)), queries=[10, 3 * 10**6])
        >>> state, near = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> bool(near.predecessors[0] == 0), bool(10**6 - 10**5 < near.predecessors[1] < 1.2 * 10**6)
        (True, True)

    Source: Henzinger, Sricharan, Steiner (2023), Algorithms 4 and 5; docs/proofs/predecessor.md.
    """

    epsilon: float
    universe: int
    horizon: int | None = None
    queries: int | None = None
    beta: float = 0.05
    noise_label = "incremental predecessor"
    state_type = IncrementalState

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries is not None:
            checks.integer("queries", self.queries, minimum=1, maximum=1 << 60)
        _ = self.mu, self.tau  # refuses scales beyond what can be drawn

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=EVENT,
            epsilon=self.epsilon,
            delta=0.0,
            limits=(f"An event inserts one point of 1 .. {self.universe}, at one step; points are never deleted.",),
            public=("all parameters", "the number of steps"),
            proof="docs/proofs/predecessor.md, Theorem 1",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=PureDp(self.epsilon),
        )

    def step(
        self, state: IncrementalState, given: PredecessorStep, noise: NoiseSource
    ) -> tuple[IncrementalState, Neighbours]:
        """Insert the points of one step, then answer its queries.

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: a point is deleted, or points or queries have another type or shape, or are outside
                of the universe.
        """
        checked_points("queries", given.queries, self.universe)
        after = self.update(state, given.updates, noise)
        return after, self.answer(after, given.queries)

    def update(self, state: IncrementalState, updates: Updates, noise: NoiseSource) -> IncrementalState:
        """Return the state after one step with these insertions, in which all active intervals are tested."""
        step, source = self._step_number(state.step + 1), self._source(noise).derive("finished")
        points, _, _ = updated(state.points, updates, self.universe)
        if updates.inserted is not None and not np.all(updates.inserted):
            raise ValueError("updates must be insertions; DynamicPredecessor takes deletions")
        numbers, births, marked, activated = state.numbers, state.births, state.marked, state.activated
        tested = np.arange(len(numbers))
        while len(hits := tested[self._hits(points, numbers[tested], births[tested], step, source)]):
            parents = numbers[hits]
            marked = np.union1d(marked, parents)
            inner = parents[parents < np.int64(1) << self.height]  # single points have no children
            children = np.stack([2 * inner, 2 * inner + 1], axis=1).reshape(-1)
            starts, _ = bounds(children, self.height)
            children = children[np.argsort(starts, kind="stable")][: np.count_nonzero(starts < self.universe)]
            born = activated + np.arange(len(children), dtype=np.int64)
            numbers, births = np.append(np.delete(numbers, hits), children), np.append(np.delete(births, hits), born)
            order = np.argsort(bounds(numbers, self.height)[0], kind="stable")
            numbers, births, activated = numbers[order], births[order], activated + len(children)
            tested = np.flatnonzero(births >= activated - len(children))
        return IncrementalState(
            step=step, points=points, numbers=numbers, births=births, marked=marked, activated=activated
        )

    def _hits(
        self, points: Integers, numbers: Integers, births: Integers, step: int, noise: NoiseSource
    ) -> NDArray[np.bool_]:
        """Test active intervals; the noise of a test is bound to the count."""
        starts, ends = bounds(numbers, self.height)
        counts = below(points, ends + 1) - below(points, starts + 1)
        labels = np.stack([numbers, np.full(len(numbers), step)], axis=1).astype(np.uint64)
        source = noise.derive("mu")
        mu, tau = self.mu.draw(source, source.bind(labels, counts)), self.tau.draw(noise.derive("tau"), labels[:, 0])
        return np.asarray(counts + mu > self.thresholds(births, step) + tau, np.bool_)

    def answer(self, state: IncrementalState, queries: ArrayLike) -> Neighbours:
        """Answer queries after the last step: a function of what is published."""
        asked, size = checked_points("queries", queries, self.universe), np.int64(1) << self.height
        first, after = bounds(state.marked, self.height)
        starts = last_starts(asked, first, after)
        ends = last_starts(size + 1 - asked, size - after, size - first)  # of the universe turned around
        errors = np.maximum(
            self._way_errors(state, np.maximum(starts, 0), asked),
            self._way_errors(state, asked - 1, np.where(ends == NOTHING, size, size - ends)),
        )
        predecessors = np.where(starts == NOTHING, NO_POINT, starts + 1)
        successors = np.where(ends == NOTHING, NO_POINT, np.minimum(size - ends, self.universe))
        return Neighbours.of(asked, predecessors, successors, errors)

    @property
    def height(self) -> int:
        """Height of the tree of intervals."""
        return tree_height(self.universe)

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scales of mu and tau with which an unmarked interval has few points, nearly, in a typical test."""
        typical = -float(self.log_failure(np.array([_TYPICAL_INTERVALS]), self.horizon or _TYPICAL_STEPS)[0])
        ratio = round(math.sqrt(typical), 3)
        mu = (1 + 1 / ratio) / (self.epsilon / (self.height + 1)) * (1 + 1e-12)
        return mu, ratio * mu

    @cached_property
    def mu(self) -> Geometric:
        """The noise of a test."""
        return Geometric(self.scales[0])

    @cached_property
    def tau(self) -> Geometric:
        """The noise of an interval's threshold."""
        return Geometric(self.scales[1])

    def log_failure(self, births: Integers, step: int) -> NDArray[np.float64]:
        """Return ln of the probability that a test may mark an interval without points."""
        numbers = births + 2.0
        shares = -np.log(SERIES * numbers * np.log(numbers) ** 2)
        return np.asarray(math.log(self.beta / 2 * self._step_share(step)) + shares)

    def threshold(self, log_failure: NDArray[np.float64]) -> Integers:
        """Return the least K >= 0 for which mu - tau > K has probability at most e^log_failure."""
        mu, tau = self.scales
        # Pr[mu > K + tau] = e^(-(K + 1) / mu) (1 - e^(-1 / tau)) / (1 - e^(-1 / mu - 1 / tau))
        advantage = math.log(-math.expm1(-1 / tau)) - math.log(-math.expm1(-1 / mu - 1 / tau))
        return np.maximum(0, np.ceil(mu * (advantage - np.asarray(log_failure)) - 1)).astype(np.int64)

    def thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of intervals that were activated after so many others, at a step."""
        return self.threshold(self.log_failure(births, step))

    def error(self, step: int) -> int:
        """Return the error of the class docstring at steps 1 .. `step`."""
        self._step_number(step)
        sizes = np.int64(1) << np.arange(self.height, -1, -1)
        large = self._large(sizes, step)
        high = int(self.thresholds(np.array([(2 << self.height) - 1]), step)[0])
        points = 2 * np.where(large, np.minimum(sizes, high), sizes).sum()  # two of each depth at most, or nearly
        return int(min(1 + points + self._margin(2 * int(large.sum()), step), self.universe))

    def _way_errors(self, state: IncrementalState, starts: Integers, ends: Integers) -> Integers:
        """Return how many points [start, end), counted from 0, can contain, if no interval within it is marked."""
        step = max(1, state.step)
        first, after = bounds(state.numbers, self.height)
        large = self._large(after - first, step)
        most = np.where(large, self.thresholds(state.births, step), after - first)
        sums, numbers = (np.concatenate([[0], np.cumsum(each)]) for each in (most, large))
        low, high = np.searchsorted(after, starts, side="right"), np.searchsorted(first, ends)
        sizes, place = np.unique(numbers[high] - numbers[low], return_inverse=True)
        margins = np.array([self._margin(size, step) for size in sizes.tolist()], np.int64)
        return np.asarray(np.minimum(1 + sums[high] - sums[low] + margins[place], ends - starts))

    def _large(self, sizes: Integers, step: int) -> NDArray[np.bool_]:
        """Return which intervals are larger than a threshold: points of others are at most as many as places."""
        return np.asarray(sizes > int(self.thresholds(np.zeros(1, np.int64), step)[0]))

    def _margin(self, number: int, step: int) -> int:
        """Return what the sum of so many tau - mu keeps within, for all sets that answers may have on their ways."""
        if not number:
            return 0
        answers = math.log(self.queries or self.universe) - math.log(self._step_share(step))
        log_sets = answers + math.log(2 * (self.height + 2)) + (self.height + 1) * math.log(2)
        mu, tau = self.scales
        return NoiseSum(((tau, number),), ((mu, number),)).quantile(math.log(self.beta / 2) - log_sets)
