"""Continual counter: the square root of the matrix of prefix sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.counters.continual_counter import CounterState, bound_noise
from privstream.mechanisms.counters.toeplitz import ToeplitzCounter, grid_law
from privstream.mechanisms.noise.correlated import square_root, whole_counts
from privstream.mechanisms.noise.sources import NoiseSource
from scipy import fft
from typing_extensions import override

LARGEST_HORIZON = 1 << 20
_MOST_BITS = 16
_EXACT = 2.0**53  # whole numbers below it, and their sums, are exact in float64
_REACH = 32.0  # no |w| is larger than so many sigma: 2 from the inverse of R, 14 from the law, the rest to spare
_BLOCK = 512
_SMALL = 32


@dataclass(frozen=True, kw_only=True)
class SquareRootToeplitzCounter(ToeplitzCounter):
    """Continual column sums with the noise R z, R the square root of the prefix sums: r_n = r_(n-1) (1 - 1/2n).

    Privacy:
        Unit: one row over the whole run; see `guarantee`. z is discrete Gaussian on a grid of 2^-fraction counts, on
        which R is rounded first; its column norm is that of the rounded R, exactly. All arithmetic is on whole numbers,
        and what is published is a function of R x + z and nothing else. The noise z of a step is bound to the true sum.

    Accuracy:
        `variance(t)` = sigma^2 S_t S_T, S_n = r_0^2 + .. + r_(n-1)^2 = O(log n), exact for the rounded R, plus 1/12 for
        publishing integers; `error(t, beta)` about 5% above the quantile. The least noise of all counters here for
        delta > 0, but it remembers every step: time and state of step t are O(t columns). For long runs use
        `BufferedToeplitzCounter`.

    Attributes: see `ContinualCounter`; delta > 0, horizon up to 2^20.

    Example:
        >>> counter = SquareRootToeplitzCounter(epsilon=1.0, delta=1e-6, horizon=1024)
        >>> round(counter.variance(1024)), counter.error(1024, 0.05)
        (191, 55)

    Source: Fichtenberger, Henzinger, Upadhyay (2023); Henzinger, Upadhyay, Upadhyay (2023); docs/proofs/counters.md.
    """

    proved: ClassVar[str] = "Theorem 3"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon > LARGEST_HORIZON:
            raise ValueError(f"horizon must be <= {LARGEST_HORIZON} for this counter, got {self.horizon}")
        self._check_noise(lambda: self.law)

    @cached_property
    @override
    def fraction(self) -> int:
        # As many bits as keep all sums exact.
        root = square_root(self.horizon)
        norm, total = float(np.sqrt(root @ root)) * self._unit_norm, float(root.sum())
        for bits in range(_MOST_BITS, 3, -1):
            sigma = grid_law(self.epsilon, self.delta, norm, bits).sigma
            if _REACH * sigma * math.ldexp(total, bits) < _EXACT / 2:
                return bits
        raise ValueError(f"epsilon must be larger for rows of {self.touched} columns, got {self.epsilon}")

    @cached_property
    def coefficients(self) -> Floats:
        """R on the grid: whole numbers, 2^fraction r_n, rounded."""
        return np.rint(np.ldexp(square_root(self.horizon), self.fraction))

    @cached_property
    @override
    def sensitivity(self) -> float:
        column = math.sqrt(math.fsum(np.square(self.coefficients).tolist()))
        return math.ldexp(column, -self.fraction) * self._unit_norm

    @cached_property
    def _cumulated(self) -> Floats:
        inverse = series_inverse(np.ldexp(self.coefficients, -self.fraction))
        return np.cumsum(np.cumsum(inverse) ** 2)

    def _squares(self, steps: Floats) -> Floats:
        return np.asarray(self._cumulated[steps.astype(np.int64) - 1])

    @override
    def _initial_memory(self) -> Floats:
        # All w so far, whole numbers as float64 (steps, columns), below one row of their sums.
        return np.zeros((1, self.columns))

    def _noise(self, state: CounterState, sums: Integers, source: NoiseSource) -> tuple[Floats, Integers]:
        steps = np.arange(state.step + 1, state.step + 1 + len(sums))
        values = bound_noise(self.law, source, steps, 0, sums).astype(np.float64)
        past = state.memory[1:]
        debts = np.zeros_like(values)
        for start in range(0, len(past), _BLOCK):
            block = past[start : start + _BLOCK]
            debts += self._matrix(len(values), len(block), len(past) - start) @ block
        self._solve(values, debts)
        cumulated = state.memory[:1] + np.cumsum(values, axis=0)
        return np.concatenate([cumulated[-1:], past, values]), whole_counts(cumulated, self.fraction)

    def _solve(self, values: Floats, debts: Floats) -> None:
        """Turn z into w in place: w_t = z_t - floor(2^-fraction sum over i >= 1 of R_i w_(t-i)), given older parts."""
        if len(values) <= _SMALL:
            unit = math.ldexp(1.0, self.fraction)
            for t in range(len(values)):
                debt = debts[t] + self.coefficients[t:0:-1] @ values[:t]
                values[t] -= np.floor(debt / unit)
            return
        middle = len(values) // 2
        self._solve(values[:middle], debts[:middle])
        debts[middle:] += self._matrix(len(values) - middle, middle, middle) @ values[:middle]
        self._solve(values[middle:], debts[middle:])

    def _matrix(self, rows: int, count: int, distance: int) -> NDArray[np.float64]:
        """Return R_(distance + i - j) for i < rows, j < count <= distance."""
        first = distance - count + 1
        windows = sliding_window_view(self.coefficients[first : first + rows + count - 1], count)
        return np.ascontiguousarray(windows[:, ::-1])


def series_inverse(series: Floats) -> Floats:
    """Return the coefficients of 1 / series, of the same length, by Newton's iteration."""
    inverse = np.array([1 / series[0]])
    while len(inverse) < len(series):
        count = min(2 * len(inverse), len(series))
        size = fft.next_fast_len(3 * count, real=True)
        transform = fft.rfft(inverse, size)
        product = fft.irfft(transform * (2 - transform * fft.rfft(series[:count], size)), size)
        inverse = product[:count]
    return inverse
