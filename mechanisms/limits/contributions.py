"""How many contributions people have: a histogram with noise, and the limit that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.discrete import DiscreteLaplace, NoiseSum, tail_quantile
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from scipy import special

WHOLE_NUMBERS = tuple(sorted({2**power for power in range(17)} | {3 * 2**power for power in range(15)}))
"""Edges of the grid: 1, 2, 3, 4, 6, 8, 12, .., 65,536; from 2 on each at most half as large again."""

MOST_DROPPED = 0.1
"""A limit that is suggested drops at most such a part of all contributions."""

_FALSE_ALARM = 0.001  # with which noise alone is taken for people, in all cells together
_TOGETHER = (1, 2, 4)  # neighbouring cells in which people are looked for together
_CONTINUES = 1.0  # scales of the noise with which a cell next to one with people has some, too


@dataclass(frozen=True)
class ContributionHistogram:
    """Publishes the number of people in each cell of a grid of contributions, with discrete Laplace noise.

    Cell 0 has numbers up to the first edge, cell i those above `edges[i - 1]` and at most `edges[i]`, and the last cell
    those above all.

    Privacy: (epsilon, 0) for one person over all that is read: a person is in one cell, whatever he or she does.
    Enforced by the caller: one number for each person, which depends on that person's data alone. docs/proofs/
    limits.md, Theorem 1.
    """

    epsilon: float
    edges: tuple[int, ...] = WHOLE_NUMBERS

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        _ = self.law

    @cached_property
    def law(self) -> DiscreteLaplace:
        """The noise of each cell."""
        return DiscreteLaplace(math.nextafter(1 / self.epsilon, math.inf))

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.edges) + 1

    def tally(self, numbers: NDArray[np.generic]) -> Integers:
        """Return how many of some numbers, one of each person, lie in each cell: int64 (cells,)."""
        place = np.searchsorted(np.array(self.edges), numbers, side="left")
        return np.bincount(place, minlength=self.cells).astype(np.int64)

    def release(self, counts: Integers, noise: NoiseSource) -> Integers:
        """Return the people of all cells with noise; `noise` is that of this data set."""
        source = noise.derive("contributions of people")
        return counts + self.law.draw(source, source.bind(np.arange(self.cells, dtype=np.uint64), counts))

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the release."""
        return PrivacyGuarantee(
            unit=PERSON,
            epsilon=self.epsilon,
            delta=0.0,
            limits=("Each person counts once.", "It covers one data set."),
            public=("all parameters",),
            adaptivity="All of it is published at once.",
            proof="docs/proofs/limits.md, Theorem 1",
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
        )


class Part(NamedTuple):
    """A part of all contributions, with its interval; all in [0, 1]."""

    share: float
    lower: float
    upper: float


@dataclass(frozen=True, eq=False)
class NoisyHistogram:
    """Published numbers of people by contributions, and what they say of limits.

    Cells far from all people have noise alone, which counts as much as that of others. So people are looked for up to
    the last cell in which there are more than noise explains but with probability 0.001, by itself or with its
    neighbours, and in cells behind it that seem to go on. Estimates are about these people; intervals, and the row of
    all others, allow for those whom noise hides.

    Privacy: post-processing. Accuracy: each interval holds the truth with probability 0.95; per person at
    most as many contributions count as the last edge.
    """

    edges: tuple[int, ...]  # of the grid
    counts: Integers  # noisy numbers of people
    scale: float  # of the discrete Laplace noise of each

    @cached_property
    def seen(self) -> range:
        """The cells with people, from the first one on; empty if nobody can be seen."""
        last = -1
        for width in _TOGETHER:
            sums = np.convolve(self.counts, np.ones(width, np.int64), "valid")
            tests = len(_TOGETHER) * len(self.counts)
            noises = ((self.scale, width, 1),)
            exceeded = tail_quantile(NoiseSum(noises, noises), math.log(_FALSE_ALARM / tests))
            last = max(last, int(np.flatnonzero(sums > exceeded).max(initial=-1)))
        while 0 <= last < len(self.counts) - 1 and self.counts[last + 1] > _CONTINUES * self.scale:
            last += 1
        return range(last + 1)

    @cached_property
    def people(self) -> Floats:
        """Estimated people in each cell: sums from the last cell on grow towards the first."""
        found = np.zeros(len(self.counts))
        if self.seen:
            sums = np.cumsum(self.counts[: self.seen.stop][::-1].astype(np.float64))
            rising = np.maximum(scipy.optimize.isotonic_regression(sums).x, 0.0)
            found[: self.seen.stop] = np.diff(rising, prepend=0.0)[::-1]
        return found

    def in_cells(self, cells: range) -> tuple[int, int, int]:
        """Return how many people are in some cells together, and the ends of the interval.

        The upper end of a sum below 0 is that of 0: by the law of Laplace all such sums say the same of people.
        """
        total = int(self.counts[cells.start : cells.stop].sum())
        reach = math.ceil(self._reach * math.sqrt(len(cells)))
        return max(0, total), max(0, total - reach), max(0, total) + reach

    def kept(self, cell: int) -> Part:
        """Return the share of all contributions that a limit at the upper edge of a cell keeps.

        The estimate is about the people who can be seen. The interval holds for all: at its lower end people in a cell
        have as many as they can, and cells beyond the last seen one have as many people as noise may hide.
        """
        top = np.array([*self.edges, self.edges[-1]], np.float64)
        lowest = np.minimum(np.array([0.0, *self.edges]) + 1, top)
        limit, places = float(self.edges[cell]), np.arange(len(self.counts))
        above, inside = places > cell, places < self.seen.stop
        estimated = 1.0 - self.dropped(limit)
        lower, _ = self._ends(np.where(above, limit, lowest), np.where(above, top, lowest))
        _, upper = self._ends(np.where(above, limit, top) * inside, np.where(above, lowest, top) * inside)
        return Part(estimated, min(estimated, lower), max(estimated, upper))

    def dropped(self, limit: float) -> float:
        """Return the share of all contributions that a limit drops, by estimated people, spread evenly over cells."""
        total = self._beyond(0.0)
        return min(1.0, self._beyond(limit) / total) if total > 0 else 0.0

    def _beyond(self, limit: float) -> float:
        """Return how many contributions people have beyond a limit each."""
        starts = np.array([0.0, *self.edges])
        more = np.cumsum(self.people[::-1])[::-1]  # people who have more than each of these
        begin, end = np.maximum(starts[:-1], limit), np.maximum(starts[1:], limit)
        first, last, number = np.interp(begin, starts, more), np.interp(end, starts, more), end - begin
        return float((number * first - (first - last) * np.maximum(number - 1, 0) / 2).sum())

    def _ends(self, part: Floats, whole: Floats) -> tuple[float, float]:
        """Return the ends of the interval of a share r of sums over people: sum(part - r whole) is 0 but for noise.

        A cell that is not seen, and has fewer than nobody, counts as empty where that makes the share smaller.
        """
        each = part - _SHARES[:, None] * whole
        hidden = (np.arange(len(self.counts)) >= self.seen.stop) & (self.counts < 0)
        sums = np.where(hidden & (each < 0), 0.0, each) @ self.counts
        reach = self._reach * np.sqrt(np.square(each).sum(axis=1))
        least, most = np.flatnonzero(sums <= reach), np.flatnonzero(sums >= -reach)
        lower = _SHARES[least[0]] - _STEP if len(least) else 1.0 - _STEP
        upper = _SHARES[most[-1]] + _STEP if len(most) else 1.0
        return max(0.0, float(lower)), min(1.0, float(upper))

    @cached_property
    def _reach(self) -> float:
        """How far noise of one cell reaches to either side."""
        return _DEVIATIONS * math.sqrt(DiscreteLaplace(self.scale).variance)

    def best_limit(self, stddev: Callable[[int], float]) -> int | None:
        """Return the limit that keeps most of a count in relation to its noise, and drops at most `MOST_DROPPED`.

        Which items are large does not matter: all are kept by the same part on average, and have the same noise, whose
        standard deviation under a limit is given. None if nobody can be seen. Privacy: post-processing.
        """
        enough = [edge for edge in self.edges[: self.seen.stop] if self.dropped(edge) <= MOST_DROPPED]
        return max(enough, key=lambda edge: (1 - self.dropped(edge)) / stddev(edge), default=None)


_STEP = 0.001
_SHARES = np.arange(0.0, 1.0 + _STEP / 2, _STEP)
_DEVIATIONS = max(math.log(1 / OUTSIDE) / math.sqrt(2), float(special.ndtri(1 - OUTSIDE / 2)))
"""Standard deviations to the ends of an interval: of one Laplace number, or of a normal one if that is more."""
