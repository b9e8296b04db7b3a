"""Discrete Gaussian noise of any width, from table look-ups: a sum of narrow ones in units of 1, 256, 65536, .."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.noise.integer_law import Integers
from privstream.mechanisms.noise.sources import Labels, NoiseSource

_UNIT = 256
_LOW_SIGMA = 700.0  # of all digits but the first
_LARGEST_SIGMA = 1000.0  # drawn from one table
_MOST_DIGITS = 6


@dataclass(frozen=True)
class WideGaussian:
    """A law within a factor 1 +- 1e-31 of a discrete Gaussian whose parameter is within 3e-15 of sigma, up to 1e15.

    Each mass is that close, not only the law as a whole: docs/proofs/counters.md, Lemma 2. The parameter differs
    relatively by what floats round off; callers ask for 1e-12 more than they need.
    """

    sigma: float

    def __post_init__(self) -> None:
        if checks.positive("sigma", self.sigma) > _LARGEST_SIGMA * _UNIT ** (_MOST_DIGITS - 1):
            raise ValueError(f"sigma must be <= {_LARGEST_SIGMA * _UNIT ** (_MOST_DIGITS - 1):g}, got {self.sigma}")

    @cached_property
    def digits(self) -> tuple[DiscreteGaussian, ...]:
        """The laws of the digits, lowest first."""
        low: tuple[DiscreteGaussian, ...] = ()
        sigma = self.sigma
        while sigma > _LARGEST_SIGMA:
            low += (DiscreteGaussian(_LOW_SIGMA),)
            sigma = math.nextafter(math.sqrt(sigma**2 - _LOW_SIGMA**2) / _UNIT, math.inf)
        return (*low, DiscreteGaussian(sigma))

    @property
    def variance(self) -> float:
        """The variance."""
        return float(sum(_UNIT ** (2 * place) * digit.variance for place, digit in enumerate(self.digits)))

    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        """Return one value per label, int64 (n,)."""
        value = self.digits[-1].draw(noise.derive("digit", len(self.digits) - 1), labels)
        for place in reversed(range(len(self.digits) - 1)):
            value *= _UNIT
            value += self.digits[place].draw(noise.derive("digit", place), labels)
        return np.asarray(value)
