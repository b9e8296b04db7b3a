"""RangeCounter: how many points lie in [low, high], while points are inserted and deleted."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.running import best_base, prefix_nodes
from privstream.mechanisms.noise.running import tree_height as signed_height
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import sum_quantile, sum_spread
from privstream.mechanisms.points.dynamic_points import (
    Cells,
    PointCounts,
    PointMechanism,
    Updates,
    changes,
    checked_points,
    checked_updates,
    cover,
    longest_cover,
    tree_height,
)
from privstream.mechanisms.privacy.accounting import (
    PrivacyCurve,
    noise_curve,
    sensitivity_sigma,
)
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from typing_extensions import override

PURE_EPOCHS = ((5, 2), (7, 3), (9, 4), (13, 5), (15, 6), (17, 7), (19, 8), (21, 9))
"""(k, h) of the trees of epochs, delta = 0."""
IMPULSES = 2  # an update moves the count of an interval, and perhaps back, if it decides whether a later one counts
_LEVELS = (5, 9, 17, 25)  # of epochs with Gaussian noise; the last one is repeated, as above
DIGEST_BYTES = 16
NO_HISTORY = bytes(DIGEST_BYTES)


class TimeNode(NamedTuple):
    """An interval of steps whose noise is in a prefix sum, added (sign 1) or subtracted (-1).

    `end` is the last step of the interval, for nodes whose noise is bound to what happened until then, else 0.
    """

    epoch: int
    level: int
    position: int
    sign: int
    end: int


@dataclass(frozen=True)
class Epoch:
    """A tree over so many steps. base 2: binary; odd: k-ary with subtraction. `height`: nodes that contain a step."""

    base: int
    height: int
    length: int
    law: SymmetricNoise

    def nodes(self, number: int, before: int, done: int) -> Iterator[TimeNode]:
        """Return the nodes of the prefix of `done` steps of epoch `number`, which comes after `before` steps."""
        if self.base == 2:
            for level in range(done.bit_length()):
                if done >> level & 1:
                    yield TimeNode(number, level, (done >> level) - 1, 1, before + (done >> level << level))
            return
        for level, index, sign in prefix_nodes(self.base, done):
            yield TimeNode(number, level, index, sign, 0)

    def most_nodes(self, done: int) -> int:
        """Return how many nodes a prefix of at most `done` steps has at most."""
        if self.base == 2:
            return max(1, (done + 1).bit_length() - 1)  # as many as 2^m - 1 <= done has ones
        return self.base // 2 * signed_height(self.base, done)


@dataclass(frozen=True, kw_only=True)
class RangeNoise:
    """Noise for prefix sums over time in every dyadic interval; a draw is a function of labels alone.

    Attributes:
        epsilon, delta: of the whole run.
        horizon: steps of the run, or None: epochs then follow each other, each longer than the last.
        levels: intervals that contain a point at most: of dyadic ones H + 1.
        impulses: how many times one change moves the count of such an interval, by 1 each time.
        unit: changes that make up a unit of privacy.
    """

    epsilon: float
    delta: float
    horizon: int | None
    levels: int
    impulses: int
    unit: int

    def epoch(self, number: int) -> Epoch:
        """Return the tree of epoch 0, 1, .."""
        return _epoch(self, number)

    def epochs(self, step: int) -> Iterator[tuple[int, Epoch, int, int]]:
        """Return number, tree, steps before it and steps done, of each epoch that has begun when `step` is done."""
        number, before = 0, 0
        while before < step:
            epoch = self.epoch(number)
            yield number, epoch, before, min(step - before, epoch.length)
            number, before = number + 1, before + epoch.length

    def nodes(self, step: int) -> list[TimeNode]:
        """Return the nodes whose noise is in the prefix of `step` steps."""
        return [node for number, epoch, before, done in self.epochs(step) for node in epoch.nodes(number, before, done)]

    def counts(self, step: int) -> list[list[tuple[SymmetricNoise, int]]]:
        """Return for each epoch up to `step` how many noises of each law are in any prefix that ends in it, at most."""
        epochs = [(epoch, done) for _, epoch, _, done in self.epochs(step)]
        ends = [(epoch.law, sum(1 for _ in epoch.nodes(0, 0, epoch.length))) for epoch, _ in epochs]
        return [[*ends[:number], (epoch.law, epoch.most_nodes(done))] for number, (epoch, done) in enumerate(epochs)]

    def variance(self, step: int) -> float:
        """Return the variance of the noise of one interval at `step`."""
        return sum(self.epoch(node.epoch).law.variance for node in self.nodes(step))

    def draw(self, intervals: Integers, step: int, history: dict[int, bytes], source: NoiseSource) -> Integers:
        """Return the noise of intervals (by number) at `step`; `history` has a digest for the end of each node."""
        total = np.zeros(len(intervals), np.int64)
        labels = intervals.astype(np.uint64)
        for node in self.nodes(step):
            bound = history[node.end] if node.end else b""
            drawn = source.derive("node", node.epoch, node.level, node.position, bound)
            total += node.sign * self.epoch(node.epoch).law.draw(drawn, labels)
        return total

    def remember(self, history: dict[int, bytes], step: int, digest: bytes) -> dict[int, bytes]:
        """Return the digests that are needed after `step`, whose own one is `digest`."""
        ends = {node.end for node in self.nodes(step) if node.end}
        return {end: digest if end == step else history[end] for end in sorted(ends)}


@lru_cache(maxsize=256)
def _epoch(noise: RangeNoise, number: int) -> Epoch:
    if noise.delta > 0:
        if noise.horizon is None:
            height = _LEVELS[min(number, len(_LEVELS) - 1)]
            length = 1 << (height - 1)
        else:
            height, length = noise.horizon.bit_length(), noise.horizon
        sensitivity = noise.unit * math.sqrt(noise.impulses * noise.levels * height)
        sigma = sensitivity_sigma(noise.epsilon, noise.delta, sensitivity)
        return Epoch(2, height, length, DiscreteGaussian(sigma))
    if noise.horizon is None:
        base, height = PURE_EPOCHS[min(number, len(PURE_EPOCHS) - 1)]
        length = base // 2 * base ** (height - 1)
    else:
        base, length = best_base(noise.horizon), noise.horizon
        height = signed_height(base, length)
    scale = noise.unit * noise.impulses * noise.levels * height / noise.epsilon
    return Epoch(base, height, min(length, LARGEST_HORIZON), DiscreteLaplace(math.nextafter(scale, math.inf)))


def next_digest(digest: bytes, points: Integers, weights: Integers) -> bytes:
    """Return what stands for the history so far and the changes of one more step."""
    parts = (digest, points.astype("<i8").tobytes(), weights.astype("<i8").tobytes())
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES, person=b"range history").digest()


def _is_range(value: object) -> bool:
    """Tell whether a value is two integers."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | np.integer) for end in value)


@dataclass(frozen=True, eq=False)
class RangeStep:
    """Input of a step: updates, and the ranges to be counted after them.

    Attributes:
        updates: insertions and deletions, in order; private.
        low, high: integers, shape (n,), 1 <= low <= high <= universe; public.
    """

    updates: Updates
    low: ArrayLike = ()
    high: ArrayLike = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class RangeState:
    """What outlives a step: steps done, the points (private), and digests of the history for the noise to come."""

    step: int = 0
    points: PointCounts = field(default_factory=PointCounts)
    history: dict[int, bytes] = field(default_factory=dict)
    digest: bytes = NO_HISTORY


@dataclass(frozen=True, kw_only=True)
class RangeCounter(PointMechanism[RangeState]):
    """Counts points in ranges after every step, with one budget for the whole run and all ranges.

    Every dyadic interval of the universe has a continual counter, and a range is the sum of at most 2 log2(universe) of
    them. Nothing is stored for intervals: true counts are taken from the sorted points, and noise is a function of
    labels, drawn when a range is asked for. So the universe may be as large as 2^60, and ranges cost only when asked.

    Where all ranges are known before (`asked`), counters are those of a tree over what lies between their ends, whose
    number of children is that with the least noise; nodes that no range uses have none.

    Privacy:
        Unit: one event, that is one update (an insertion or deletion of one point), or `updates_per_unit` of them.
        Neighbours: one added or removed. Points are a set: inserting a member or deleting a non-member does nothing. An
        update is in L = ceil(log2 universe) + 1 dyadic intervals, in each of them in h nodes over time, and moves each
        node by 1; the next update of the same point may then count in one world and not in the other, which doubles
        that. With `asked`, L is the largest number of nodes with counters that contain one point. delta = 0: discrete
        Laplace noise of scale 2 L h updates_per_unit / epsilon. delta > 0: discrete Gaussian noise for the root of
        2 L h, times updates_per_unit. Public: all fields, the number of steps, and which ranges are asked when. Updates
        may depend on all earlier answers. Replays: see docs/proofs/range_counting.md, section 4.

    Accuracy:
        `error_at` and `errors_at` bound how far answers are off. Time per step O(batch), amortised, and
        per range O(log(universe) h) draws; memory: the points.

    Attributes:
        epsilon: finite and > 0.
        delta: in [0, 1).
        universe: points are 1 .. universe, at most 2^60.
        horizon: steps of the whole run at most, or None: noise then grows with the steps done.
        updates_per_unit: updates that make up a unit, anywhere in the run.
        asked: ranges (low, high), public and fixed before the run, beside which none may be asked; () for any ranges.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> mechanism = RangeCounter(epsilon=1.0, universe=1 << 32, horizon=1)
        >>> step = RangeStep(Updates(np.arange(1, 50001)), low=[1, 1], high=[10000, 1 << 32])
        >>> state, counts = mechanism.step(mechanism.initial_state(), step, SeededNoise(1))
        >>> [round(count, -3) for count in counts.tolist()]
        [10000, 50000]

    Source: Henzinger, Sricharan, Steiner (2023), Lemmas 26 and 27; docs/proofs/range_counting.md.
    """

    epsilon: float
    delta: float = 0.0
    universe: int
    horizon: int | None = None
    updates_per_unit: int = 1
    asked: tuple[tuple[int, int], ...] = ()
    noise_label = "range counter"
    state_type = RangeState

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        self._check_points()
        if not isinstance(self.asked, tuple) or not all(_is_range(each) for each in self.asked):
            raise TypeError(f"asked must be a tuple of ranges, each of two integers, got {self.asked!r}")
        _ = self._noise.epoch(0)  # refuses scales beyond what can be drawn

    @property
    def levels(self) -> int:
        """Dyadic intervals that contain a point, L."""
        return tree_height(self.universe) + 1

    @cached_property
    def _known(self) -> Integers:
        """The ranges that may be asked, as [start, end), int64 (n, 2), distinct and sorted; none for any ranges."""
        low, high = np.array(self.asked, np.int64).reshape(-1, 2).T
        return np.unique(np.stack(self._checked_ends(low, high), axis=1), axis=0)

    @cached_property
    def _cells(self) -> Cells | None:
        """What known ranges are sums of; None for any ranges."""
        return Cells.of(*self._known.T, pure=self.delta == 0) if self.asked else None

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of the run."""
        return noise_curve(self.epsilon, self.delta)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return PrivacyGuarantee(
            unit=self._unit,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=self._limits("inserts or deletes"),
            public=("all parameters", "the number of steps", "which ranges are asked, and when"),
            proof=f"docs/proofs/range_counting.md, Theorem {2 if self.asked else 1}",
            caveats=(KEYED_NOISE,),
            horizon=self.horizon,
            curve=self.curve,
        )

    def variance(self, step: int) -> float:
        """Return the variance of the noise of one dyadic interval at `step` = 1, 2, .."""
        return self._noise.variance(self._step_number(step))

    def error_at(self, step: int, beta: float, *, answers: int, every_step: bool) -> int:
        """Return z such that with probability 1 - beta no answer is off by more at its step, this z at `step`.

        Args:
            step: 1 or more.
            beta: in (0, 1).
            answers: how many, of ranges that do not depend on earlier answers; in the whole run, or
            every_step: whether so many at each step.
        """
        log_beta = self._log_share(step, beta, answers, every_step)
        return self.sum_error(self._block_end(step), log_beta)

    def errors_at(
        self, step: int, low: ArrayLike, high: ArrayLike, beta: float, *, answers: int, every_step: bool
    ) -> Integers:
        """Return for each of these ranges what its answer at `step` is off by at most, int64 (n,); see `error_at`."""
        log_beta = self._log_share(step, beta, answers, every_step)

        def bound(size: int, laws: list[tuple[SymmetricNoise, int]]) -> int:
            parts = [(law, _rounded_up(size * number)) for law, number in laws]
            return min(self.sum_error(self._block_end(step), log_beta, size), sum_quantile(parts, log_beta))

        return self._of_each(step, low, high, bound)

    def spreads(self, step: int, low: ArrayLike, high: ArrayLike, beta: float) -> Integers:
        """Return for each of these ranges by how much its answer at `step` is off at most, alone, int64 (n,).

        With probability 1 - beta: of one range that does not depend on earlier answers, and not of all together.
        """
        return self._of_each(
            step, low, high, lambda size, laws: sum_spread([(law, size * number) for law, number in laws], beta)
        )

    def _of_each(self, step: int, low: ArrayLike, high: ArrayLike, bound: Callable[..., int]) -> Integers:
        """Return for each range a bound, from the number of its intervals and the laws of the noise of each."""
        numbers, _ = self._cover(*self._checked_ranges(low, high))
        sizes, place = np.unique(np.bincount(numbers), return_inverse=True)
        laws = list(Counter(self._noise.epoch(node.epoch).law for node in self._noise.nodes(step)).items())
        return np.array([bound(size, laws) for size in sizes.tolist()], np.int64)[place]

    def _block_end(self, step: int) -> int:
        """Return the next power of two, or the horizon."""
        return min(1 << (self._step_number(step) - 1).bit_length(), self.horizon or LARGEST_HORIZON)

    def _log_share(self, step: int, beta: float, answers: int, every_step: bool) -> float:
        """Return ln of the failure probability of one answer at a step."""
        doublings = (self._step_number(step) - 1).bit_length()
        rest = math.log(checks.integer("answers", answers, minimum=1))
        if every_step and self.horizon is not None:
            rest += math.log(self.horizon)
        elif every_step:
            rest += doublings * math.log(2) + math.log((doublings + 1) * (doublings + 2))
        return math.log(checks.probability("beta", beta)) - rest

    def sum_error(self, step: int, log_beta: float, intervals: int | None = None) -> int:
        """Return z such that one range at one of steps 1 .. `step` is off by more with probability e^log_beta."""
        if intervals is None:
            intervals = longest_cover(self.levels - 1) if self._cells is None else self._cells.most
        sums = [[(law, intervals * number) for law, number in parts] for parts in self._noise.counts(step)]
        return max(sum_quantile(parts, log_beta) for parts in sums)

    def step(self, state: RangeState, given: RangeStep, noise: NoiseSource) -> tuple[RangeState, Integers]:
        """Make the updates of one step, then count the points in its ranges, int64 (n,).

        Raises:
            HorizonExceeded: the run is over.
            ValueError, TypeError: points or ranges have another type or shape, or are outside of the universe.
        """
        starts, ends = self._checked_ranges(given.low, given.high)
        after = self.update(state, given.updates)
        return after, self._count(after, starts, ends, noise)

    def update(self, state: RangeState, updates: Updates) -> RangeState:
        """Return the state after one step with these updates."""
        step = self._step_number(state.step + 1)
        points, inserted = checked_updates(updates, self.universe)
        changed = changes(points, inserted, state.points)
        digest = next_digest(state.digest, changed.keys, changed.values) if self.delta > 0 else NO_HISTORY
        history = self._noise.remember(state.history, step, digest)
        return RangeState(step=step, points=state.points.add(changed), history=history, digest=digest)

    def count(self, state: RangeState, low: ArrayLike, high: ArrayLike, noise: NoiseSource) -> Integers:
        """Count the points in ranges after the last step; asking again gives the same answers."""
        return self._count(state, *self._checked_ranges(low, high), noise)

    def _count(self, state: RangeState, starts: Integers, ends: Integers, noise: NoiseSource) -> Integers:
        """Return the counts of [start, end)."""
        if state.step == 0 or not len(starts):
            return np.zeros(len(starts), np.int64)
        source = self._source(noise)

        def drawn(intervals: Integers) -> Integers:
            return self._noise.draw(intervals, state.step, state.history, source)

        numbers, intervals = self._cover(starts, ends)
        distinct, place = np.unique(intervals, return_inverse=True)
        sums = np.zeros(len(starts), np.int64)
        np.add.at(sums, numbers, drawn(distinct)[place])
        return np.asarray(sums + state.points.below(ends) - state.points.below(starts))

    def _cover(self, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return the intervals of [start, end): the number of the range, and that of the interval, of each."""
        if self._cells is not None:
            return self._cells.cover(starts, ends)
        height = self.levels - 1
        last = np.where(ends - 1 == self.universe, np.int64(1) << height, ends - 1)  # nothing lies beyond
        owners, levels, places = cover(starts - 1, last, 2)
        return owners, (np.int64(1) << (height - levels)) + places

    def _check_asked(self, starts: Integers, ends: Integers) -> None:
        """Refuse ranges that are not known before."""
        both = np.concatenate([self._known, np.stack([starts, ends], axis=1)])
        if len(np.unique(both, axis=0)) > len(self._known):
            raise ValueError("low and high must be of ranges that are asked: others have no counters")

    def _checked_ends(self, low: ArrayLike, high: ArrayLike) -> tuple[Integers, Integers]:
        """Return the first point of each range, and the first one after it."""
        starts, ends = checked_points("low", low, self.universe), checked_points("high", high, self.universe)
        if starts.shape != ends.shape:
            raise ValueError(f"high must have shape {starts.shape} as low, got {ends.shape}")
        if np.any(starts > ends):
            raise ValueError("high must be >= low")
        return starts, ends + 1

    def _checked_ranges(self, low: ArrayLike, high: ArrayLike) -> tuple[Integers, Integers]:
        """Return the same of ranges that may be asked."""
        starts, ends = self._checked_ends(low, high)
        if self.asked:
            self._check_asked(starts, ends)
        return starts, ends

    @override
    def _described(self) -> Any:
        kind, values = super()._described()
        del values["asked"]  # runs of any ranges have the noise that they had
        return [kind, values | ({"asked": self._asked_digest} if self.asked else {})]

    @cached_property
    def _asked_digest(self) -> str:
        return hashlib.blake2b(self._known.astype("<i8").tobytes(), digest_size=DIGEST_BYTES).hexdigest()

    @cached_property
    def _noise(self) -> RangeNoise:
        return RangeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            horizon=self.horizon,
            levels=self.levels if self._cells is None else self._cells.overlap,
            impulses=IMPULSES,
            unit=self.updates_per_unit,
        )


def _rounded_up(number: int) -> int:
    """Return the next number of noises with four leading binary digits, so that few quantiles are computed."""
    rest = max(0, number.bit_length() - 4)
    return -(-number >> rest) << rest
