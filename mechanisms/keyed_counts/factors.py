"""Toeplitz factors of the noise of keys: how z becomes w = R^-1 z with a short memory, and what that costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.counters.toeplitz import correct, square_root, zolotarev_factor
from scipy import signal

Floats = NDArray[np.float64]

BUFFERS = 4
LARGEST_HORIZON = 1 << 20
_PARAMETER_BITS = 20
DEVIATIONS = 16.0  # no w or buffer ever leaves so many of its standard deviations
_EACH = 64  # numbers of contributions that are looked at one by one; larger ones in steps of a hundredth
_SUMS = 1e-9  # relative; norms are raised by it, for what floats round off


@dataclass(frozen=True)
class Factor(ABC):
    """R, lower triangular Toeplitz with r_0 = 1 and no negative coefficient, over `horizon` steps, or R D.

    w_t = z_t - rint(sum over i >= 1 of r_i d_(t-i) w_(t-i) / d_t), in whole numbers, d = 1 or the diagonal of D:
    docs/proofs/keyed_counts.md, section 2.
    """

    horizon: int

    @property
    @abstractmethod
    def rows(self) -> int:
        """Numbers that a key has to remember."""

    @property
    @abstractmethod
    def coefficients(self) -> Floats:
        """r_0 .. r_(horizon - 1), nonincreasing."""

    @abstractmethod
    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z of `step` = 1, 2, .. into w in place, shape (keys,); `memory` (rows, keys) is brought up to date."""

    @abstractmethod
    def float_error(self, sigma: float) -> float:
        """Return a bound of what floats round off in a correction, for z of that deviation, in units of the grid."""

    @property
    def exact(self) -> bool:
        """Whether nothing is corrected: R is the identity."""
        return self.rows == 0

    @cached_property
    def inverse(self) -> Floats:
        """The coefficients of R^-1."""
        impulse = np.zeros(self.horizon)
        impulse[0] = 1.0
        return np.asarray(signal.lfilter([1.0], self.coefficients[: self._width], impulse))

    @property
    def _width(self) -> int:
        return self.horizon

    @cached_property
    def levels(self) -> Floats:
        """By how much z is smaller at each step than sigma, >= 1."""
        return np.ones(self.horizon)

    def squares(self, span: int | None) -> Floats:
        """Return the variance, at each step, of the noise on sums over the last `span` steps, or all, for sigma 1."""
        return np.cumsum(self.published(span) ** 2)

    def published(self, span: int | None) -> Floats:
        """Return the coefficients of the noise on such sums, from the last z to the first, for levels of 1."""
        sums = np.cumsum(self.inverse)
        if span is not None and span < self.horizon:
            sums[span:] -= sums[:-span].copy()
        return sums

    def contribution_square(self, most: int) -> float:
        """Return the largest |sum of i distinct shifts of r|^2 / i, for i = 1 .. `most`.

        r is nonincreasing, so that of i shifts consecutive ones from the first step on are the worst.
        """
        if self.exact:
            return 1.0
        numbers = list(range(1, min(most, _EACH) + 1))
        while numbers[-1] < most:
            numbers.append(min(most, math.ceil(numbers[-1] * 1.01)))
        before = [0, *numbers[:-1]]  # the norm grows with i
        return max(self._norm_square(i) / (low + 1) for low, i in zip(before, numbers, strict=True)) * (1 + _SUMS)

    def _norm_square(self, shifts: int) -> float:
        sums = np.cumsum(self.coefficients)
        sums[shifts:] -= sums[:-shifts].copy()
        return float(sums @ sums)


@dataclass(frozen=True)
class BandedFactor(Factor):
    """The first `width` coefficients of (1 - x)^(-1/2), then zeros; of width 1 the identity."""

    width: int

    @property
    def rows(self) -> int:
        """The last w, in a ring."""
        return self.width - 1

    @cached_property
    def coefficients(self) -> Floats:
        """r, rounded to multiples of 2^-20."""
        values = np.zeros(self.horizon)
        band = square_root(min(self.width, self.horizon))
        values[: len(band)] = np.ldexp(np.rint(np.ldexp(band, _PARAMETER_BITS)), -_PARAMETER_BITS)
        return values

    @property
    def _width(self) -> int:
        return min(self.width, self.horizon)

    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z into w."""
        if self.exact:
            return
        debt = np.zeros_like(values)
        for back in range(1, min(self.width, step)):  # in a fixed order: all machines round alike
            debt += self.coefficients[back] * memory[(step - back) % self.rows]
        values -= np.rint(debt)
        memory[step % self.rows] = values

    def float_error(self, sigma: float) -> float:
        """Return the bound for sums of at most `width` products."""
        largest = DEVIATIONS * 2 * sigma * float(np.linalg.norm(self.inverse)) + 1
        return 0.0 if self.exact else 2.0**-52 * self.width * float(self.coefficients.sum()) * largest


@dataclass(frozen=True)
class BufferedFactor(Factor):
    """The rational function nearest to (1 - x)^(-1/2), of degree 4: four numbers remember the whole past."""

    @property
    def rows(self) -> int:
        """The buffers."""
        return BUFFERS

    @cached_property
    def coefficients(self) -> Floats:
        """r, sums of four decaying powers."""
        poles, _, weights = zolotarev_factor(self.horizon, BUFFERS)
        exponents = np.arange(self.horizon - 1, dtype=np.float64)
        rest = sum((weight * pole**exponents for pole, weight in zip(poles, weights, strict=True)), np.zeros(1))
        return np.concatenate([[1.0], np.broadcast_to(rest, exponents.shape)])

    @cached_property
    def modes(self) -> tuple[Floats, Floats]:
        """The zeros of c(x), and their shares: 1 / c(x) is 1 + x times the sum of share / (1 - zero x)."""
        poles, zeros, _ = zolotarev_factor(self.horizon, BUFFERS)
        shares = [np.prod(zero - poles) / np.prod(zero - np.delete(zeros, j)) for j, zero in enumerate(zeros)]
        return zeros, np.array(shares)

    @cached_property
    def inverse(self) -> Floats:
        """The coefficients of 1 / c(x), in closed form."""
        exponents = np.arange(self.horizon - 1, dtype=np.float64)
        rest = np.zeros(self.horizon - 1)
        for zero, share in zip(*self.modes, strict=True):
            rest += share * zero**exponents
        return np.concatenate([[1.0], rest])

    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z into w."""
        poles, _, weights = zolotarev_factor(self.horizon, BUFFERS)
        correct(values, poles[:, None], weights[:, None], memory, np.empty_like(memory))

    def float_error(self, sigma: float) -> float:
        """Return the bound of docs/proofs/counters.md, section 4."""
        poles, _, weights = zolotarev_factor(self.horizon, BUFFERS)
        largest = DEVIATIONS * 4 * sigma / np.sqrt(1 - poles**2)
        lasting = np.minimum(1 / (1 - poles), self.horizon) + BUFFERS + 4
        return float(weights @ (2.0**-52 * largest * lasting))
