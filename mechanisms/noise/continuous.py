"""Continuous laws by inverse CDF, for the paper modes and for queries that are real numbers to begin with.

Floating-point noise leaks through its rounding (Mironov 2012), so none of these laws is ever added to a count that is
published: counts get the integer laws of `discrete`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from scipy import special

_BELOW_ONE = 1 - 2.0**-53


def uniforms(words: Words) -> Floats:
    """Return floats in the open interval (0, 1) from words (n, 2); finely spaced towards zero (2^-64)."""
    return np.minimum((words[..., 0].astype(np.float64) + 0.5) * 2.0**-64, _BELOW_ONE)


def signs(words: Words) -> Floats:
    """Return -1.0 or 1.0 by a bit that `uniforms` does not use."""
    return 1.0 - 2.0 * (words[..., 1] & np.uint64(1)).astype(np.float64)


@dataclass(frozen=True)
class ContinuousLaw(ABC):
    """A law on the real line, a standard one stretched by `scale` > 0."""

    scale: float
    standard_mean: ClassVar[float] = 0.0
    standard_variance: ClassVar[float]

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)

    def draw(self, noise: NoiseSource, labels: Labels) -> Floats:
        """Return one value per label, float64 (n,). Not for counts that are published (see the module)."""
        return self.scale * self._standard_quantile(noise.words(labels)[:, 0])

    @property
    def mean(self) -> float:
        """The mean."""
        return self.scale * self.standard_mean

    @property
    def variance(self) -> float:
        """The variance."""
        return self.scale**2 * self.standard_variance

    def cdf(self, x: float | Floats) -> Floats:
        """Return Pr[X <= x]."""
        return self._standard_cdf(np.asarray(x, dtype=np.float64) / self.scale)

    def tail_quantile(self, beta: float) -> float:
        """Return z with Pr[X > z] = beta, for beta in (0, 1)."""
        return self.scale * self._standard_tail(checks.probability("beta", beta))

    @abstractmethod
    def _standard_quantile(self, words: Words) -> Floats: ...
    @abstractmethod
    def _standard_cdf(self, x: Floats) -> Floats: ...
    @abstractmethod
    def _standard_tail(self, beta: float) -> float: ...


class Exponential(ContinuousLaw):
    """Density e^(-x/scale) / scale on x >= 0."""

    standard_mean = 1.0
    standard_variance = 1.0

    def _standard_quantile(self, words: Words) -> Floats:
        return -np.log(uniforms(words))

    def _standard_cdf(self, x: Floats) -> Floats:
        return -np.expm1(-np.maximum(x, 0.0))

    def _standard_tail(self, beta: float) -> float:
        return -math.log(beta)


class Laplace(ContinuousLaw):
    """Density e^(-|x|/scale) / (2 scale)."""

    standard_variance = 2.0

    def _standard_quantile(self, words: Words) -> Floats:
        return -signs(words) * np.log(uniforms(words))

    def _standard_cdf(self, x: Floats) -> Floats:
        half = 0.5 * np.exp(-np.abs(x))
        return np.where(x < 0, half, 1 - half)

    def _standard_tail(self, beta: float) -> float:
        return -math.log(2 * beta) if beta <= 0.5 else math.log(2 * (1 - beta))


class Gaussian(ContinuousLaw):
    """Normal law of mean 0 and standard deviation `scale`."""

    standard_variance = 1.0

    def _standard_quantile(self, words: Words) -> Floats:
        return signs(words) * special.ndtri(0.5 * uniforms(words))

    def _standard_cdf(self, x: Floats) -> Floats:
        return np.asarray(special.ndtr(x))

    def _standard_tail(self, beta: float) -> float:
        return -float(special.ndtri(beta))


class Gumbel(ContinuousLaw):
    """Law of the maximum: Pr[X <= x] = exp(-e^(-x/scale))."""

    standard_mean = float(np.euler_gamma)
    standard_variance = math.pi**2 / 6

    def _standard_quantile(self, words: Words) -> Floats:
        # log1p keeps the upper tail, which decides hits, at full relative precision.
        return -np.log(-np.log1p(-uniforms(words)))

    def _standard_cdf(self, x: Floats) -> Floats:
        return np.exp(-np.exp(-x))

    def _standard_tail(self, beta: float) -> float:
        return -math.log(-math.log1p(-beta))
