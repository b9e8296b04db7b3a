"""Correlated noise of running sums: w = D^-1 R^-1 z with a short memory, R nearly Toeplitz of 1/sqrt(1-x)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from privstream.mechanisms.arrays import Floats
from scipy import special

BUFFERS = 4
DEVIATIONS = 16.0
"""Standard deviations that no w or buffer ever leaves (probability below 1e-45)."""

_PARAMETER_BITS = 20  # parameters are rounded, so that they are the same on every machine
_SUMS = 1e-9  # relative; norms are raised by it, for what floats round off
_PARTS = 32  # levels are multiples of 1/32, so that there are few laws of noise, whose tables are kept
_LEAST, _WIDEST = 4.0, 0.25  # of the approximation's range; 4 / horizon is near the best for all horizons


class RationalFunction(NamedTuple):
    """c(x) = prod (1 - zeros_j x) / prod (1 - poles_j x) = 1 + sum over j of weights_j x / (1 - poles_j x)."""

    poles: Floats
    zeros: Floats
    weights: Floats


@functools.lru_cache(maxsize=64)
def zolotarev(horizon: int) -> RationalFunction:
    """Return the best rational approximation of (1 - x)^(-1/2) for 1 - x from 4 / horizon to 1."""
    smallest = min(_WIDEST, _LEAST / horizon)
    index = np.arange(1, 2 * BUFFERS + 1)
    quarter = special.ellipkm1(smallest)
    sn, cn, _, _ = special.ellipj(index * quarter / (2 * BUFFERS + 1), 1 - smallest)
    places = smallest * (sn / cn) ** 2
    mantissa, exponent = np.frexp(places / (1 + places))
    decays = np.ldexp(np.rint(np.ldexp(mantissa, _PARAMETER_BITS)), exponent - _PARAMETER_BITS)
    poles, zeros = 1 - decays[0::2], 1 - decays[1::2]
    return RationalFunction(poles, zeros, _residues(poles, zeros, poles))


@dataclass(frozen=True)
class BufferedFactor:
    """R D: R lower triangular Toeplitz, of the coefficients of c(x); a few numbers remember the whole past.

    w_t = z_t - rint(sum over i >= 1 of r_i d_(t-i) w_(t-i) / d_t), in whole numbers, d the diagonal of D:
    docs/proofs/keyed_counts.md, section 2. A contribution at step t moves R x by a column of which only horizon - t + 1
    entries are left, so D multiplies it by |first column| / |that column|, and its noise is divided by as much.
    """

    horizon: int

    @property
    def function(self) -> RationalFunction:
        """c(x)."""
        return zolotarev(self.horizon)

    @cached_property
    def coefficients(self) -> Floats:
        """r_0 = 1, r_1 .. r_(horizon - 1), nonincreasing and not negative: sums of decaying powers."""
        poles, _, weights = self.function
        return np.append(1.0, _powers(poles, self.horizon - 1) @ weights)

    @cached_property
    def modes(self) -> tuple[Floats, Floats]:
        """The zeros of c(x), and their shares: 1 / c(x) is 1 + x times the sum of share / (1 - zero x)."""
        poles, zeros, _ = self.function
        return zeros, _residues(zeros, poles, zeros)

    @cached_property
    def inverse(self) -> Floats:
        """The coefficients of R^-1."""
        zeros, shares = self.modes
        return np.append(1.0, _powers(zeros, self.horizon - 1) @ shares)

    @cached_property
    def levels(self) -> Floats:
        """The diagonal of D, nondecreasing from 1 on: by how much z is smaller at each step than sigma."""
        norms = np.sqrt(np.cumsum(self.coefficients**2))
        return np.asarray(np.floor(norms[-1] / norms[::-1] * _PARTS) / _PARTS)

    @property
    def square(self) -> float:
        """The largest squared norm of a column of R D, at most, which is that of R."""
        return float(self.coefficients @ self.coefficients) * (1 + _SUMS)

    @cached_property
    def squares(self) -> Floats:
        """The variance, at each step, of the noise on sums over all steps, for sigma 1.

        v = z + shares . y, where y_j <- zeros_j y_j + z afterwards, is R^-1 z; w = v / level. The covariance of y and
        the sum of w decays by the zeros.
        """
        zeros, shares = self.modes
        powers = _powers(zeros, self.horizon)
        mixed = shares / (1 - np.outer(zeros, zeros))
        with_noise = mixed.sum(axis=1) - powers * (powers @ mixed.T)  # Cov(y before, v)
        variance = 1 + with_noise @ shares  # of v
        brought = (zeros * with_noise + 1) / self.levels[:, None]
        with_sum = np.zeros((self.horizon, len(zeros)))  # Cov(y before, sum before)
        for j, zero in enumerate(zeros):
            with_sum[1:, j] = scipy.signal.lfilter([1.0], [1.0, -zero], brought[:, j])[:-1]
        return np.asarray(np.cumsum(variance / self.levels**2 + 2 * (with_sum @ shares) / self.levels))

    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z of `step` = 1, 2, .. into w in place, (keys,); `memory`, (BUFFERS, keys), is brought up to date.

        Buffers remember level times w.
        """
        poles, _, weights = self.function
        level = self.levels[step - 1]
        debt = np.zeros_like(values)
        for weight, buffer in zip(weights, memory, strict=True):  # in a fixed order: all machines round alike
            debt += weight * buffer
        values -= np.rint(debt / level)
        memory *= poles[:, None]
        memory += level * values

    def float_error(self, sigma: float) -> float:
        """Return a bound of what floats round off in a correction, for z of that deviation, in units of the grid.

        Proof: docs/proofs/counters.md, section 3.
        """
        poles, _, weights = self.function
        largest = DEVIATIONS * 4 * sigma / np.sqrt(1 - poles**2)
        lasting = np.minimum(1 / (1 - poles), self.horizon) + BUFFERS + 4
        return float(weights @ (2.0**-52 * largest * lasting))


def _residues(places: Floats, above: Floats, below: Floats) -> Floats:
    """Return prod (place - above) / prod (place - others of below), in a fixed order: all machines round alike."""
    product = [math.prod((place - above).tolist()) for place in places]
    others = [math.prod((place - below[below != place]).tolist()) for place in places]
    return np.asarray(np.array(product) / np.array(others))


def _powers(bases: Floats, number: int) -> Floats:
    """Return the powers 0, 1, .. of some numbers, (number, bases)."""
    return np.asarray(bases ** np.arange(number)[:, None])
