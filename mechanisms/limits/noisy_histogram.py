"""NoisyHistogram: what follows from published numbers of people by how much they contribute; post-processing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from privstream.mechanisms.arrays import Floats, Integers
from scipy import optimize, special

FALSE_ALARM = 0.001
"""Probability with which noise alone is taken for people, in all cells of a grid together."""

TOGETHER = (1, 2, 4)
"""People are looked for in so many cells side by side."""

CONTINUES = 1.0
"""A cell beside one with people has some, too, if it has so many scales of the noise."""


class Part(NamedTuple):
    """A part of a whole, with its interval; all in [0, 1].

    Attributes:
        share: the estimate.
        lower, upper: the ends of the interval.
    """

    share: float
    lower: float
    upper: float


class Interval(NamedTuple):
    """A number of people, with its interval."""

    people: int
    lower: int
    upper: int


@dataclass(frozen=True, eq=False)
class NoisyHistogram:
    """Published numbers of people, by cells of a grid, and what they say of limits.

    Cells far from all people have noise alone, and their noise counts as much as that of others. So people are only
    looked for where they are surely: from the first to the last cell in which there are more than noise explains but
    with probability `FALSE_ALARM`, by itself or with its neighbours, and in cells beside these that seem to go on.
    Statements are about people between these ends; `beyond` bounds how many others there may be.

    Privacy: post-processing. Accuracy: each interval holds the truth with probability 0.95, about people between the
    ends; the ends depend on the same noise.

    Args:
        edges: of the cells, increasing, shape (n - 1,).
        counts: noisy numbers of people, int64 (n,).
        scale: of the discrete Laplace noise of each.
        beta: probability with which an interval may be wrong, in (0, 1).
    """

    edges: Floats
    counts: Integers
    scale: float
    beta: float = 0.05

    @cached_property
    def seen(self) -> range:
        """The cells with people, from the first to the last; empty if nobody can be seen."""
        found = []
        for width in TOGETHER:
            if width > len(self.counts):
                continue
            sums = np.convolve(self.counts, np.ones(width, np.int64), "valid")
            tests = len(TOGETHER) * len(self.counts)
            first = np.flatnonzero(sums > self.scale * _exceeded(width, FALSE_ALARM / tests))
            if len(first):
                found.append((int(first[0]) + width - 1, int(first[-1])))  # people may be in one of these cells alone
        if not found:
            return range(0)
        start, end = min(low for low, _ in found), max(high for _, high in found)
        while end + 1 < len(self.counts) and self.counts[end + 1] > CONTINUES * self.scale:
            end += 1
        while start > 0 and self.counts[start - 1] > CONTINUES * self.scale:
            start -= 1
        return range(0 if self._whole else min(start, end), end + 1)

    @cached_property
    def people(self) -> Floats:
        """Estimated people in each cell: none beyond the ends; sums from the last cell on grow towards the first."""
        found = np.zeros(len(self.counts))
        inside = slice(self.seen.start, self.seen.stop)
        sums = np.cumsum(self.counts[inside][::-1].astype(np.float64))
        rising = np.maximum(_isotonic(sums), 0.0)
        found[inside] = np.diff(rising, prepend=0.0)[::-1]
        return found

    def in_cells(self, cells: Sequence[int] | range) -> Interval:
        """Return how many people are in some cells together."""
        total = int(self.counts[list(cells)].sum())
        reach = math.ceil(self._deviations * self._stddev(math.sqrt(len(cells))))
        return Interval(max(0, total), max(0, total - reach), max(0, total + reach))

    def within(self, cell: int) -> Part:
        """Return the share of people who are in a cell or in those before it, among those between the ends."""
        inside = np.zeros(len(self.counts))
        inside[self.seen.start : self.seen.stop] = 1.0
        below = inside * (np.arange(len(self.counts)) <= cell)
        return self._share(below, inside, below, inside)

    def reached(self, share: float) -> int | None:
        """Return the first cell that, with those before it, has such a share of all people; None if there is nobody."""
        if not self.seen or not self.people.sum() > 0:
            return None
        first = int(np.argmax(np.cumsum(self.people) >= share * self.people.sum()))
        return min(first, len(self.edges) - 1)

    def kept(self, cell: int) -> Part:
        """Return the share that a limit at the upper edge of a cell keeps of all that people between the ends have.

        Of people in a cell it is only known that they have more than its lower edge and at most its upper one; the
        interval holds either way. Negative numbers count as 0.
        """
        lowest, highest, mean = self._numbers
        above = np.arange(len(self.counts)) > cell
        limit = max(float(self.edges[cell]), 0.0)
        least = np.where(above, limit, lowest), np.where(above, highest, lowest)
        most = np.where(above, limit, highest), np.where(above, lowest, highest)
        share = self._share(np.where(above, limit, mean), mean, *self._inside(*least))
        other = self._share(np.where(above, limit, mean), mean, *self._inside(*most))
        return Part(share.share, min(share.lower, other.lower), max(share.upper, other.upper))

    def left_out(self, limit: float) -> float:
        """Return how much a limit leaves out, by the estimated people.

        Where numbers are whole ones, how many people have more falls by the same factor from number to number within a
        cell, to not less than the scale of the noise at its end; people with other values lie evenly in their cells.
        """
        if not self._whole:
            low, high, mean = self._numbers
            over = np.maximum(mean - limit, 0.0)
            inside = (low < limit) & (limit < high)
            over[inside] = np.square(high - limit)[inside] / (2 * (high - low)[inside])
            return float(self.people @ over)
        starts = np.concatenate([[0.0], self.edges])
        more = np.cumsum(self.people[::-1])[::-1]  # people who have more than each of these
        first, last = more[:-1], np.maximum(more[1:], np.minimum(more[:-1], self.scale))
        begin, end = np.maximum(starts[:-1], limit), np.maximum(starts[1:], limit)
        some = first > 0
        rate = np.log(last[some] / first[some]) / (starts[1:] - starts[:-1])[some]
        at_begin = first[some] * np.exp(rate * (begin - starts[:-1])[some])
        number = (end - begin)[some]
        falls = rate < -1e-12
        terms = np.where(falls, np.expm1(rate * number) / np.where(falls, np.expm1(rate), 1.0), number)
        return float(at_begin @ terms)

    def open_limits(self) -> list[tuple[int, int]]:
        """Return the limits to choose from, whole numbers from 1 on, each with its cell: edges, and one between two."""
        found = []
        for cell in self.seen[: len(self.edges) - self.seen.start]:
            edge = int(self.edges[cell])
            middle = (edge + (int(self.edges[cell - 1]) if cell else 0)) // 2
            below = [middle] if cell and self.edges[cell - 1] >= 1 and middle > self.edges[cell - 1] else []
            found += [(limit, cell) for limit in (*below, edge) if limit >= 1]
        return found

    @property
    def total(self) -> float:
        """All that people have, by the estimated people; negative numbers count as 0."""
        return self.left_out(0.0)

    @property
    def _whole(self) -> bool:
        """Whether numbers are whole ones, from 1 on."""
        return bool(self.edges[0] == 1)

    @cached_property
    def _step(self) -> float:
        """The least difference of two numbers."""
        return 1.0 if self._whole else 0.0

    @cached_property
    def _deviations(self) -> float:
        """Standard deviations to the ends of an interval: of one Laplace number, or of a normal one if that is more."""
        return max(math.log(1 / self.beta) / math.sqrt(2), float(special.ndtri(1 - self.beta / 2)))

    @cached_property
    def _numbers(self) -> tuple[Floats, Floats, Floats]:
        """The least, the largest and the mean number in each cell, not below 0; the last cell has its lower edge."""
        low = np.maximum(np.concatenate([[min(0.0, self.edges[0])], self.edges]), 0.0)
        high = np.maximum(np.append(self.edges, self.edges[-1]), 0.0)
        low = np.minimum(low + self._step * (high > low), high)
        return low, high, (low + high) / 2

    def _inside(self, *columns: Floats) -> tuple[Floats, ...]:
        """Return columns with 0 beyond the ends."""
        kept = np.zeros(len(self.counts))
        kept[self.seen.start : self.seen.stop] = 1.0
        return tuple(column * kept for column in columns)

    def _share(self, part: Floats, whole: Floats, other_part: Floats, other_whole: Floats) -> Part:
        """Return a sum over people by another one: the estimate by the first two, the interval by the others.

        Counts of cells are right on average, so that part - r whole is 0 on average where r is the true share; its
        deviation is that of a sum of noises.
        """
        estimated = float(self.people @ whole)
        share = float(self.people @ part) / estimated if estimated > 0 else 0.0
        sums = float(self.counts @ other_part), float(self.counts @ other_whole)
        if sums[1] <= 0:
            return Part(min(1.0, share), 0.0, 1.0)
        middle = min(1.0, max(0.0, sums[0] / sums[1]))
        spread = self._stddev(float(np.sqrt(np.square(other_part - middle * other_whole).sum())))
        reach = self._deviations * spread / sums[1]
        return Part(min(1.0, share), max(0.0, middle - reach), min(1.0, middle + reach))

    def _stddev(self, norm: float) -> float:
        """Return the standard deviation of a weighted sum of noises whose weights have this L2 norm."""
        rate = math.exp(-1 / self.scale)
        return norm * math.sqrt(2 * rate) / (1 - rate)


def _exceeded(number: int, probability: float) -> float:
    """Return what the sum of so many Laplace numbers of scale 1 exceeds with at most this probability (Chernoff)."""
    if number == 1:
        return math.log(1 / (2 * probability))

    def excess(bound: float) -> float:
        found = optimize.minimize_scalar(
            lambda rate: -rate * bound - number * math.log1p(-rate * rate), bounds=(1e-9, 1 - 1e-9), method="bounded"
        )
        return float(found.fun) - math.log(probability)

    return float(optimize.brentq(excess, 1e-3, 1e4))


def _isotonic(values: Floats) -> Floats:
    """Return the nearest increasing sequence (pool adjacent violators)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, size = means.pop(), sizes.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
    return np.repeat(means, sizes)
