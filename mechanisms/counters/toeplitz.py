"""What the Toeplitz counters share: correlated noise on a grid, its variance, and quantiles of its largest value."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.counters.continual_counter import ContinualCounter
from privstream.mechanisms.noise.wide_gaussian import WideGaussian
from privstream.mechanisms.privacy.accounting import smallest
from privstream.mechanisms.privacy.gaussian_curve import sensitivity_sigma
from scipy import special

Floats = NDArray[np.float64]

_ROUNDING_VARIANCE = 1 / 12
_PIECES = 4096


@dataclass(frozen=True, kw_only=True)
class ToeplitzCounter(ContinualCounter):
    """A counter that publishes the prefix sums of x + w, where R w = z, R lower triangular Toeplitz, z Gaussian.

    z is discrete Gaussian on a grid of 2^-fraction counts, and what is published is rounded to whole counts: see
    docs/proofs/counters.md.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("delta", self.delta)

    @property
    @abstractmethod
    def fraction(self) -> int:
        """Fractional bits of the grid."""

    @property
    @abstractmethod
    def column_norm(self) -> float:
        """How far, in counts, one change in one column moves what z hides, in L2 norm."""

    @property
    def _unit_norm(self) -> float:
        """The L2 norm of what one unit adds, when all of it is at one step."""
        return (self.rows_per_unit or 1) * math.sqrt(self.touched)

    @abstractmethod
    def _squares(self, steps: Floats) -> Floats:
        """Return the sum of the first `steps` squared coefficients of the noise on the published sums, increasing."""

    @cached_property
    def law(self) -> WideGaussian:
        """The noise z, in units of the grid."""
        return grid_law(self.epsilon, self.delta, self.column_norm * self._unit_norm, self.fraction)

    def variance(self, step: int) -> float:
        """Return the variance of the noise on each column at `step` = 1, 2, .."""
        sigma = math.ldexp(self.law.sigma, -self.fraction)
        squares = float(self._squares(np.array([float(self._step_number(step))]))[0])
        return sigma**2 * squares + _ROUNDING_VARIANCE

    def error(self, step: int, beta: float) -> int:
        """Return z such that all columns at all of steps 1 .. `step` are within z with probability 1 - beta.

        A union bound with normal tails; about 5% above the quantile, since steps far apart are nearly independent.
        """
        return self.error_after(0.0, step, beta)

    def error_after(self, past: float, step: int, beta: float) -> int:
        """Return the same for the sum of this counter's noise and normal noise of variance `past`."""
        step = self._step_number(step)
        goal = checks.probability("beta", beta) / self.columns
        ends = np.unique(np.rint(np.geomspace(1, step, _PIECES)))  # the noise grows: each piece counts as its last step
        weights = np.diff(ends, prepend=0.0)
        deviations = np.sqrt(past + math.ldexp(self.law.sigma, -self.fraction) ** 2 * self._squares(ends))

        def accept(bound: float) -> bool:
            return float(weights @ (2 * special.ndtr(-bound / deviations))) <= goal

        high = float(deviations[-1]) * 40
        return math.ceil(smallest(accept, 0.0, high, precision=1e-6) + 0.5)


def grid_law(epsilon: float, delta: float, sensitivity: float, fraction: int) -> WideGaussian:
    """Return noise for vectors on a grid of 2^-fraction whose sensitivity is given in counts."""
    return WideGaussian(sensitivity_sigma(epsilon, delta, math.ldexp(sensitivity * (1 + 1e-12), fraction)))
