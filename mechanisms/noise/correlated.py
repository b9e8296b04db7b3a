"""Correlated noise: lower triangular Toeplitz factors R, and how z becomes w = R^-1 z with a short memory."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from privstream.mechanisms.arrays import Floats, Integers
from scipy import special
from typing_extensions import override

BUFFERS = 4
ROUNDING_VARIANCE = 1 / 12  # of rounding to whole counts
_PARAMETER_BITS = 20
DEVIATIONS = 16.0  # no w or buffer ever leaves so many of its standard deviations (probability below 1e-45)
_EACH = 64  # numbers of contributions that are looked at one by one; larger ones in steps of a hundredth
SUMS = 1e-9  # relative; norms are raised by it, for what floats round off
_PARTS = 32  # levels are multiples of 1/32, so that there are few laws of noise, whose tables are kept
_LEAST, _WIDEST = 4.0, 0.25  # of the approximation's range; 4 / horizon is near the best for all horizons


def whole_counts(values: Floats, fraction: int) -> Integers:
    """Return numbers on a grid of 2^-fraction, rounded to whole ones, halves upwards."""
    unit = math.ldexp(1.0, fraction)
    return np.floor((values + unit / 2) / unit).astype(np.int64)


@functools.lru_cache(maxsize=8)
def square_root(horizon: int) -> Floats:
    """Return r_0 .. r_(horizon - 1), the coefficients of (1 - x)^(-1/2)."""
    steps = np.arange(1, horizon)
    root = np.concatenate([[1.0], np.cumprod(1 - 0.5 / steps)])
    root.setflags(write=False)
    return root


class RationalFunction(NamedTuple):
    """c(x) = prod (1 - zeros_j x) / prod (1 - poles_j x) = 1 + sum over j of weights_j x / (1 - poles_j x)."""

    poles: Floats
    zeros: Floats
    weights: Floats


@functools.lru_cache(maxsize=64)
def zolotarev(horizon: int, buffers: int) -> RationalFunction:
    """Return the best rational approximation of (1 - x)^(-1/2) for 1 - x from 4 / horizon to 1."""
    smallest = min(_WIDEST, _LEAST / horizon)
    index = np.arange(1, 2 * buffers + 1)
    quarter = special.ellipkm1(smallest)
    sn, cn, _, _ = special.ellipj(index * quarter / (2 * buffers + 1), 1 - smallest)
    places = smallest * (sn / cn) ** 2
    decays = places / (1 + places)
    mantissa, exponent = np.frexp(decays)
    decays = np.ldexp(np.rint(np.ldexp(mantissa, _PARAMETER_BITS)), exponent - _PARAMETER_BITS)
    poles, zeros = 1 - decays[0::2], 1 - decays[1::2]
    weights = np.empty(buffers)
    for j, pole in enumerate(poles):
        numerator = denominator = 1.0
        for zero in zeros:
            numerator *= pole - zero
        for other in np.delete(poles, j):
            denominator *= pole - other
        weights[j] = numerator / denominator
    return RationalFunction(poles, zeros, weights)


def _recursive(rest: Floats, given: Floats) -> Floats:
    """Return y, column by column, with y_t = given_t - sum over i >= 1 of rest_i y_(t-i), (steps, columns).

    Args:
        rest: coefficients, (order, columns), from i = 1 on.
        given: (steps, columns).
    """
    columns = zip(rest.T, given.T, strict=True)
    return np.stack([scipy.signal.lfilter([1.0], np.append(1.0, one), column) for one, column in columns], axis=1)


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
        if self.exact:
            return impulse
        return _recursive(self.coefficients[1 : self._width, None], impulse[:, None])[:, 0]

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
        return max(self.shifts_square(i) / (low + 1) for low, i in zip(before, numbers, strict=True)) * (1 + SUMS)

    def shifts_square(self, shifts: int) -> float:
        """Return |sum of so many consecutive shifts of r, from the first step on|^2."""
        sums = np.cumsum(self.coefficients)
        sums[shifts:] -= sums[:-shifts].copy()
        return float(sums @ sums)


@dataclass(frozen=True)
class BandedFactor(Factor):
    """The first `width` coefficients of (1 - x)^(-1/2), then zeros; of width 1 the identity."""

    width: int

    @property
    @override
    def rows(self) -> int:
        # The last w, in a ring.
        return self.width - 1

    @cached_property
    @override
    def coefficients(self) -> Floats:
        # Rounded to multiples of 2^-20.
        values = np.zeros(self.horizon)
        band = square_root(min(self.width, self.horizon))
        values[: len(band)] = np.ldexp(np.rint(np.ldexp(band, _PARAMETER_BITS)), -_PARAMETER_BITS)
        return values

    @property
    @override
    def _width(self) -> int:
        return min(self.width, self.horizon)

    @override
    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        if self.exact:
            return
        debt = np.zeros_like(values)
        for back in range(1, min(self.width, step)):  # in a fixed order: all machines round alike
            debt += self.coefficients[back] * memory[(step - back) % self.rows]
        values -= np.rint(debt)
        memory[step % self.rows] = values

    @override
    def float_error(self, sigma: float) -> float:
        # For sums of at most `width` products.
        largest = DEVIATIONS * 2 * sigma * float(np.linalg.norm(self.inverse)) + 1
        return 0.0 if self.exact else 2.0**-52 * self.width * float(self.coefficients.sum()) * largest


@dataclass(frozen=True)
class BufferedFactor(Factor):
    """R D, R the rational function nearest to (1 - x)^(-1/2), of low degree: a few numbers remember the whole past.

    A contribution at step t moves R x by a column of which only horizon - t + 1 entries are left. So the diagonal D
    multiplies it by |first column| / |that column|, rounded down, and its noise is divided by as much: all columns are
    nearly as long as the first one, and w = D^-1 R^-1 z. This holds for one contribution per person and key; several
    columns may then add up to more than those of R do.
    """

    buffers: int = BUFFERS

    @property
    def function(self) -> RationalFunction:
        """c(x), with parameters rounded so that they are the same on every machine."""
        return zolotarev(self.horizon, self.buffers)

    @property
    @override
    def rows(self) -> int:
        return self.buffers

    @cached_property
    @override
    def coefficients(self) -> Floats:
        # Sums of decaying powers.
        poles, _, weights = self.function
        exponents = np.arange(self.horizon - 1, dtype=np.float64)
        rest = sum((weight * pole**exponents for pole, weight in zip(poles, weights, strict=True)), np.zeros(1))
        return np.concatenate([[1.0], np.broadcast_to(rest, exponents.shape)])

    @cached_property
    def modes(self) -> tuple[Floats, Floats]:
        """The zeros of c(x), and their shares: 1 / c(x) is 1 + x times the sum of share / (1 - zero x)."""
        poles, zeros, _ = self.function
        shares = [np.prod(zero - poles) / np.prod(zero - np.delete(zeros, j)) for j, zero in enumerate(zeros)]
        return zeros, np.array(shares)

    @cached_property
    @override
    def inverse(self) -> Floats:
        # 1 / c(x), in closed form.
        exponents = np.arange(self.horizon - 1, dtype=np.float64)
        rest = np.zeros(self.horizon - 1)
        for zero, share in zip(*self.modes, strict=True):
            rest += share * zero**exponents
        return np.concatenate([[1.0], rest])

    @override
    def float_error(self, sigma: float) -> float:
        # Proof: docs/proofs/counters.md, section 4.
        poles, _, weights = self.function
        largest = DEVIATIONS * 4 * sigma / np.sqrt(1 - poles**2)
        lasting = np.minimum(1 / (1 - poles), self.horizon) + self.buffers + 4
        return float(weights @ (2.0**-52 * largest * lasting))

    @cached_property
    @override
    def levels(self) -> Floats:
        # The diagonal of D, nondecreasing from 1 on.
        norms = np.sqrt(np.cumsum(self.coefficients**2))
        return np.asarray(np.floor(norms[-1] / norms[::-1] * _PARTS) / _PARTS)

    @override
    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        # The buffers remember level times w.
        poles, _, weights = self.function
        level = self.levels[step - 1]
        debt = np.zeros_like(values)
        for weight, buffer in zip(weights, memory, strict=True):  # in a fixed order: all machines round alike
            debt += weight * buffer
        values -= np.rint(debt / level)
        memory *= poles[:, None]
        memory += level * values

    @override
    def contribution_square(self, most: int) -> float:
        if most > 1:
            raise ValueError(f"most must be 1 for levelled noise, got {most}")
        return super().contribution_square(most)

    @override
    def squares(self, span: int | None) -> Floats:
        # v = z + shares . y, where y_j <- zeros_j y_j + z afterwards, is R^-1 z; w = v / level. The covariance of y and
        # the sum of w decays by the zeros.
        if span is not None:
            raise ValueError(f"span must be None for levelled noise, got {span}")
        zeros, shares = self.modes
        powers = zeros ** np.arange(self.horizon)[:, None]
        mixed = shares / (1 - np.outer(zeros, zeros))
        with_noise = mixed.sum(axis=1) - powers * (powers @ mixed.T)  # Cov(y before, v)
        variance = 1 + with_noise @ shares  # of v
        brought = (zeros * with_noise + 1) / self.levels[:, None]
        with_sum = np.zeros((self.horizon, len(zeros)))  # Cov(y before, sum before)
        with_sum[1:] = _recursive(-zeros[None, :], brought)[:-1]
        return np.asarray(np.cumsum(variance / self.levels**2 + 2 * (with_sum @ shares) / self.levels))
