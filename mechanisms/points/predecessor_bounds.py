"""Thresholds and error bounds of the incremental predecessor, from exact laws of its noises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.failure_shares import SERIES
from privstream.mechanisms.noise.sums import NoiseSum
from privstream.mechanisms.points.dyadic_ranges import longest_cover, tree_height
from privstream.mechanisms.points.dynamic_points import Integers
from privstream.mechanisms.points.predecessor_tree import ThresholdTree
from scipy import special

LARGEST_FALSE_SHARE = 0.25  # of empty intervals that become heavy: with two children each, they still die out
TYPICAL_STEPS = TYPICAL_INTERVALS = 1 << 10
HEAVY_SHARES = (0.4, 0.5, 0.6, 0.7)  # of epsilon for the heavy intervals


@dataclass(frozen=True, kw_only=True)
class PredecessorBounds:
    """What an incremental predecessor with heavy intervals in groups of `group` needs and promises.

    With group 1, a heavy interval contains a point by itself; then nothing else is needed, and `heavy` does not exist.

    Attributes:
        epsilon: for one update.
        universe: points are 1 .. universe.
        lasting: see `ThresholdTree`.
        horizon: steps, or None.
        queries: queries that the accuracy is stated for, or None for all points at all steps.
        beta: failure probability of the accuracy.
        group: k.
        heavy_share: part of epsilon for the heavy intervals, if group > 1.
    """

    epsilon: float
    universe: int
    lasting: bool
    horizon: int | None
    queries: int | None
    beta: float
    group: int
    heavy_share: float = 0.5

    @property
    def height(self) -> int:
        """Height of the tree."""
        return tree_height(self.universe)

    @cached_property
    def finished(self) -> ThresholdTree:
        """The tree of intervals that contain a point each."""
        share = 1.0 if self.group == 1 else 1 - self.heavy_share
        typical = -float(self._finished_failure(np.array([TYPICAL_INTERVALS]), self.horizon or TYPICAL_STEPS)[0])
        return self._tree(share, typical)

    @cached_property
    def heavy(self) -> ThresholdTree | None:
        """The tree of intervals that contain a point in groups of `group`."""
        if self.group == 1:
            return None
        return self._tree(self.heavy_share, -self._heavy_failure(self.horizon or TYPICAL_STEPS))

    def finished_thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of intervals that were activated after so many others, at a step."""
        return self.finished.threshold(self._finished_failure(births, step))

    def heavy_thresholds(self, births: Integers, step: int) -> Integers:
        """Return K of the test for being heavy, the same for all intervals."""
        if self.heavy is None:
            raise ValueError("group must be > 1 for heavy intervals")
        return np.full(len(births), int(self.heavy.threshold(np.array([self._heavy_failure(step)]))[0]))

    def error(self, step: int, activated: int) -> int:
        """Return how many points are few at a step up to which so many intervals have been activated to be finished."""
        base, noises, log_failure = self._parts(self._block_end(step), activated)
        return 1 + base + noises.quantile(log_failure)

    def way_errors(self, step: int, activated: int, numbers: Integers, thresholds: Integers) -> Integers:
        """Return the same for answers on whose ways so many unfinished intervals lie, with these sums of K."""
        (raises, _), (lowers, _) = self.finished.margin_law
        log_failure = self._log_share - self._log_answers(self._block_end(step)) - self._log_ways
        sizes, place = np.unique(numbers, return_inverse=True)
        margins = [NoiseSum(((raises, n),), ((lowers, n),)).quantile(log_failure) if n else 0 for n in sizes.tolist()]
        bounds = 1 + thresholds + np.array(margins, np.int64)[place]
        return np.asarray(bounds if self.heavy is None else np.minimum(bounds, self.error(step, activated)))

    def rough_error(self) -> float:
        """Return about the error of a typical step, fast."""
        base, noises, log_failure = self._parts(self.horizon or TYPICAL_STEPS, TYPICAL_INTERVALS)
        mean = sum(b * n for b, n in noises.raising) - sum(b * n for b, n in noises.lowering)
        variance = sum(b * b * n for b, n in noises.raising + noises.lowering)
        return base + mean + math.sqrt(-2 * log_failure * variance)

    def _parts(self, step: int, activated: int) -> tuple[int, NoiseSum, float]:
        """Return the sum of thresholds on the longest way of a query, the noises on top, and their ln beta."""
        most = self._longest_way
        last = np.array([max(0, activated - 1)])
        high = int(self.finished_thresholds(last, step)[0])
        answers = self._log_answers(step) + self._log_ways
        raising, lowering = self.finished.margin_law
        if self.heavy is None:
            total = most * high
            parts = [(raising, lowering, most)]
        else:
            low = int(self.heavy_thresholds(last, step)[0])
            rest = max(0, most - 2)
            total = (self.group + 1) * high + rest * low
            answers += 2 * math.log(self.height + 2) + _log_subsets(most, self.group)
            parts = [(raising, lowering, self.group + 1), (*self.heavy.margin_law, rest)]
        noises = NoiseSum(
            tuple((up[0], number) for up, _, number in parts if number),
            tuple((down[0], number) for _, down, number in parts if number),
        )
        return total, noises, self._log_share - answers

    def _block_end(self, step: int) -> int:
        """Return the next power of two, or the horizon: so few quantiles are computed."""
        block = 1 << (step - 1).bit_length()
        return block if self.horizon is None else min(block, self.horizon)

    @property
    def _log_ways(self) -> float:
        """Return ln of how many sets of unfinished intervals an answer may have on its way, on both sides."""
        ends = 1 if self.group == 1 else 2  # a finished interval, or a heavy one
        return math.log(2 * ends * (self.height + 2)) + (self.height + 1) * math.log(2)

    @property
    def _longest_way(self) -> int:
        """Unfinished intervals on the way of a query, the children of the finished one included, at most."""
        return max(2, 2 * self.height - 1) if self.height else 1

    @property
    def _log_share(self) -> float:
        """Return ln of the part of beta for each kind of failure."""
        return math.log(self.beta / (2 if self.group == 1 else 4))

    def _log_step_share(self, step: int) -> float:
        """Return ln of the part of a failure probability that falls to a step."""
        if self.horizon is not None:
            return -math.log(self.horizon)
        return -math.log(SERIES * (step + 1) * math.log(step + 1) ** 2)

    def _finished_failure(self, births: Integers, step: int) -> NDArray[np.float64]:
        """Return ln of the probability that a test may finish an interval without points."""
        numbers = births + 2.0
        shares = -np.log(SERIES * numbers * np.log(numbers) ** 2)
        return np.asarray(self._log_share + shares + self._log_step_share(step))

    def _heavy_failure(self, step: int) -> float:
        """Return ln of the probability that a test may make an interval without points heavy."""
        cover = longest_cover(self.height)
        every = math.log(self.universe) + math.log(self.universe + 1) - math.log(2)  # [x, q]
        if self.queries is not None:
            pairs = math.log(2 * self.queries)
        elif self.horizon is not None:
            pairs = min(every, math.log(2 * self.universe) + math.log(self.horizon))
        else:
            pairs = every
        log_false = (self._log_share - pairs - _log_subsets(cover, self.group, exactly=True)) / self.group
        return min(log_false, math.log(LARGEST_FALSE_SHARE)) + self._log_step_share(step)

    def _log_answers(self, step: int) -> float:
        """Return ln of the number of answers that the error is stated for."""
        if self.queries is not None:
            return math.log(self.queries)
        return math.log(self.universe) - self._log_step_share(step)

    def _tree(self, share: float, typical: float) -> ThresholdTree:
        return ThresholdTree(
            epsilon=self.epsilon * share,
            universe=self.universe,
            height=self.height,
            lasting=self.lasting,
            typical=typical,
        )


def _log_subsets(size: int, most: int, *, exactly: bool = False) -> float:
    """Return ln of the number of subsets of `size` things with at most, or exactly, `most` members."""
    counts = [0.0] if size == 0 else list(range(min(most, size) + 1))
    logs = [special.gammaln(size + 1) - special.gammaln(i + 1) - special.gammaln(size - i + 1) for i in counts]
    return float(logs[-1] if exactly else special.logsumexp(logs))
