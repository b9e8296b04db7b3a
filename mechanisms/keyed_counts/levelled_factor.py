"""A factor for people who count once per key: what comes late in the run weighs more, so that its noise is smaller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from privstream.mechanisms.counters.toeplitz import zolotarev_factor
from privstream.mechanisms.keyed_counts.factors import BufferedFactor, Floats
from scipy import signal

_PARTS = 32  # levels are multiples of 1/32, so that there are few laws of noise, whose tables are kept


@dataclass(frozen=True)
class LevelledFactor(BufferedFactor):
    """R D, R the buffered factor and D diagonal: all columns are nearly as long as the first one.

    A contribution at step t moves R x by a column of which only horizon - t + 1 entries are left. So D multiplies it by
    |first column| / |that column|, rounded down, and its noise is divided by as much: w = D^-1 R^-1 z. This holds for
    one contribution per person and key; several columns may then add up to more than those of R do.
    """

    @cached_property
    def levels(self) -> Floats:
        """The diagonal of D, nondecreasing from 1 on."""
        norms = np.sqrt(np.cumsum(self.coefficients**2))
        return np.asarray(np.floor(norms[-1] / norms[::-1] * _PARTS) / _PARTS)

    def correct(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z of the deviation sigma / level into w; the buffers remember level times w."""
        poles, _, weights = zolotarev_factor(self.horizon, len(memory))
        level = self.levels[step - 1]
        debt = np.zeros_like(values)
        for weight, buffer in zip(weights, memory, strict=True):  # in a fixed order: all machines round alike
            debt += weight * buffer
        values -= np.rint(debt / level)
        memory *= poles[:, None]
        memory += level * values

    def contribution_square(self, most: int) -> float:
        """Return the largest squared norm of a column."""
        if most > 1:
            raise ValueError(f"most must be 1 for levelled noise, got {most}")
        return super().contribution_square(most)

    def squares(self, span: int | None) -> Floats:
        """Return the variance of the sum of w at each step, for z of variance 1.

        v = z + shares . y, where y_j <- zeros_j y_j + z afterwards, is R^-1 z; w = v / level. The covariance of y and
        the sum of w decays by the zeros.
        """
        if span is not None:
            raise ValueError(f"span must be None for levelled noise, got {span}")
        zeros, shares = self.modes
        powers = zeros ** np.arange(self.horizon)[:, None]
        mixed = shares / (1 - np.outer(zeros, zeros))
        with_noise = mixed.sum(axis=1) - powers * (powers @ mixed.T)  # Cov(y before, v)
        variance = 1 + with_noise @ shares  # of v
        brought = (zeros * with_noise + 1) / self.levels[:, None]
        columns = [signal.lfilter([1.0], [1.0, -zero], column) for zero, column in zip(zeros, brought.T, strict=True)]
        with_sum = np.zeros((self.horizon, len(zeros)))  # Cov(y before, sum before)
        with_sum[1:] = np.stack(columns, axis=1)[:-1]
        return np.asarray(np.cumsum(variance / self.levels**2 + 2 * (with_sum @ shares) / self.levels))
