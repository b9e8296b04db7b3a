"""Privacy losses on a grid, in NumPy alone: the numbers of `dp_accounting`, bit for bit, where a search needs many."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Floats
from scipy import special

CUT_OFF = 1e-15
"""Of a convolution of equal losses, counted as infinite."""

FEW = 1000
"""So many losses are not transformed, but multiplied one by one."""

MOST_RISE = 1e-12
"""By which rounding may let a divergence rise with epsilon."""

ROUNDING = 2.0**-51
"""Relative, of a term in two sums."""

ORDERS = np.concatenate([np.arange(-20, 0), np.arange(1, 21)])
"""Of the moments that tell where a convolution may be cut off."""


class GridLosses(NamedTuple):
    """The law of a privacy loss on multiples of an interval.

    Attributes:
        lowest: the smallest loss, in intervals.
        chances: of this loss and of those that follow it, shape (n,).
        infinite: the chance of an infinite loss.
    """

    lowest: int
    chances: Floats
    infinite: float

    @classmethod
    def connecting(cls, lowest: int, deltas: Floats, interval: float) -> GridLosses:
        """Return the losses whose divergence joins falling `deltas`, one for each loss from `lowest` on, by chords.

        Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1.
        """
        falls, growth = np.diff(deltas), math.expm1(interval)
        first = 1 - deltas[0] + falls[0] / growth
        inner = (falls[1:] - falls[:-1] * math.exp(interval)) / growth
        last = falls[-1] / math.expm1(-interval)
        return cls(lowest, np.maximum(0.0, np.concatenate([[first], inner, [last]])), float(deltas[-1]))

    @classmethod
    def connecting_some(cls, places: NDArray[np.int64], deltas: Floats, interval: float) -> GridLosses:
        """Return the same for some losses alone, at increasing `places`, in intervals.

        Raises:
            ValueError: deltas rise by more than rounding.
        """
        if np.diff(deltas).max() > MOST_RISE:
            raise ValueError("divergences must not rise with epsilon by more than rounding lets them")
        deltas = np.minimum.accumulate(deltas)
        falls, gaps = np.diff(deltas), np.diff(places) * interval
        below, above = np.append(1 - deltas[0], falls / np.expm1(-gaps)), np.append(falls / np.expm1(gaps), 0.0)
        chances = np.zeros(places[-1] - places[0] + 1)
        chances[places - places[0]] = np.maximum(0.0, below + above)
        return cls(int(places[0]), chances, float(deltas[-1]))

    def convolved(self, other: GridLosses) -> GridLosses:
        """Return the law of the sum of two losses, on one grid."""
        one, two = self.chances, other.chances
        size = len(one) + len(two) - 1
        if max(len(one), len(two)) <= FEW:
            sums = np.zeros(size)
            for start, chance in enumerate(one):
                sums[start : start + len(two)] += chance * two
        else:
            fast = scipy.fft.next_fast_len(size, True)
            sums = scipy.fft.irfft(scipy.fft.rfft(one, fast) * scipy.fft.rfft(two, fast), fast)[:size]
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return GridLosses(self.lowest + other.lowest, sums, infinite)

    def repeated(self, times: int) -> GridLosses:
        """Return the law of the sum of so many such losses, of which the ends are counted as infinite."""
        low, high = self._bounds(times)
        size = high - low + 1
        fast = scipy.fft.next_fast_len(max(size, len(self.chances)))
        sums = np.real(scipy.fft.ifft(scipy.fft.fft(self.chances, fast) ** times))
        infinite = CUT_OFF - math.expm1(times * math.log1p(-self.infinite))
        return GridLosses(self.lowest * times + low, np.roll(sums, -low)[:size], infinite)

    def _bounds(self, times: int) -> tuple[int, int]:
        """Return between which places all but `CUT_OFF` of the sum of so many losses lies, by Chernoff's bound.

        Whole numbers are asked for. Where rounding could decide, sums are those of the library.
        """
        size = len(self.chances)
        places, orders = np.arange(size), ORDERS / size

        def bounds(moments: list[float]) -> Floats:
            return (times * np.array(moments) + math.log(2 / CUT_OFF)) / orders

        found = bounds([math.log(np.exp(places * order) @ self.chances) for order in orders])
        if np.abs(found - np.rint(found)).min() < times * size * (size + 100) * ROUNDING:
            found = bounds([special.logsumexp(places * order, b=self.chances) for order in orders])
        low, high = math.floor(found[orders < 0].max()), math.ceil(found[orders > 0].min())
        return max(0, low), min((size - 1) * times, high)

    def delta_with(self, other: GridLosses, interval: float, epsilon: float) -> float:
        """Return the divergence at epsilon of the sum of two losses; NaN where it is too large to tell."""
        lost, more = ((np.arange(len(law.chances)) + law.lowest) * interval for law in (self, other))
        delta = self.infinite + other.infinite - self.infinite * other.infinite
        if lost[-1] + more[-1] <= epsilon:
            return delta
        first = int(np.argmax(lost + more[-1] >= epsilon))
        above = np.count_nonzero(lost[first] + more >= epsilon)
        # One loss more of the other law counts with each one of this law, which are both a grid.
        counted = np.minimum(np.arange(above, above + len(lost) - first), len(more)) - 1
        upper, lower = (np.cumsum(law[::-1])[counted] for law in (other.chances, other.chances * np.exp(-more)))
        parts = self.chances[first:] * (upper - np.exp(epsilon - lost[first:]) * lower)
        return float(np.cumsum(np.append(delta, parts))[-1])
