"""Tails of sums of independent integer noises, exact or by Chernoff bounds; shares of failure probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its parts are loaded when they are used
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from scipy import fft

SERIES = 2.11  # more than the sum of 1 / (n ln^2 n) from n = 2 on

_LONGEST = 1 << 21  # cells of a convolution; wider laws are drawn together
_COARSER = 4  # by which they are
_REACH = 40.0  # e^-40 is below what float64 resolves


@dataclass(frozen=True)
class NoiseSum:
    """The sum of independent noises: `raising` are geometric with these scales, `lowering` are subtracted ones.

    The law is tilted by e^(rate x) so that the quantile asked for becomes its mean, convolved exactly (a discrete
    Fourier transform of its closed form), and tilted back: full relative precision however small the tail. Noises are
    given by their scale, how many have it, and the whole number by which these are multiplied.
    """

    raising: tuple[tuple[float, int, int], ...]
    lowering: tuple[tuple[float, int, int], ...]

    @classmethod
    def laplace(cls, parts: Sequence[tuple[float, int, int]]) -> NoiseSum:
        """Return a sum of discrete Laplace noises: each is the difference of two geometric ones."""
        kept = tuple(part for part in parts if part[1])
        return cls(kept, kept)

    def quantile(self, log_beta: float) -> int:
        """Return the least z >= 0 with Pr[sum > z] <= e^log_beta, or a bound near it for very wide laws."""
        sums = self.raising + self.lowering
        if not sums or math.log(sum(n for _, n, _ in sums)) - 1 / max(b for b, _, _ in sums) <= log_beta:
            return 0  # all noises are 0 with probability 1 - e^log_beta
        # Scales that are so small as to overflow may be larger, which have larger tails.
        drawable = (tuple((max(b, 1 / 700), n, w) for b, n, w in part) for part in (self.raising, self.lowering))
        return _quantile(NoiseSum(*drawable), log_beta)

    def log_moment(self, rate: float) -> float:
        """Return ln E[e^(rate sum)], for rates up to 1 / the largest scale that raises."""
        total = sum(n * (_log_rest(1 / b) - _log_rest(1 / b - w * rate)) for b, n, w in self.raising)
        return total + sum(n * (_log_rest(1 / b) - _log_rest(1 / b + w * rate)) for b, n, w in self.lowering)

    def tilted(self, rate: float) -> tuple[int, Floats] | None:
        """Return the first integer and the masses of the law tilted by `rate`, or None if it is too wide."""
        slopes = [(1 / b - w * rate, n, w) for b, n, w in self.raising]
        slopes += [(1 / b + w * rate, n, -w) for b, n, w in self.lowering]
        mean = sum(w * n / math.expm1(slope) for slope, n, w in slopes)
        deviation = math.sqrt(sum(w**2 * n * math.exp(-slope) / math.expm1(-slope) ** 2 for slope, n, w in slopes))
        reach = 12 * deviation + _REACH / min(slope / abs(w) for slope, _, w in slopes)
        if 2 * reach + 2 > _LONGEST:
            return None
        length = fft.next_fast_len(math.ceil(2 * reach) + 2)
        first = math.floor(mean - length / 2)
        frequencies = 2j * np.pi * fft.fftfreq(length)
        log_transform = np.zeros(length, np.complex128)
        for slope, number, weight in slopes:
            q = math.exp(-slope)
            log_transform += number * (math.log(-math.expm1(-slope)) - np.log(1 - q * np.exp(weight * frequencies)))
        masses = fft.fft(np.exp(log_transform - first * frequencies)).real / length
        return first, np.maximum(masses, 0.0)


def _log_rest(slope: float) -> float:
    """Return ln(1 - e^-slope)."""
    return math.log(-math.expm1(-slope))


@lru_cache(maxsize=4096)
def _quantile(noises: NoiseSum, log_beta: float) -> int:
    widest = max(scale * weight for scale, _, weight in noises.raising)

    def bound(log_rest: float) -> float:
        rate = -math.expm1(log_rest) / widest
        return (noises.log_moment(rate) - log_beta) / rate

    found = scipy.optimize.minimize_scalar(bound, bounds=(-40.0, -1e-9), method="bounded", options={"xatol": 1e-9})
    place, chernoff = float(found.x), max(0, math.ceil(found.fun))
    rate = -math.expm1(place) / widest
    law = noises.tilted(rate)
    if law is None:  # docs/proofs/counters.md, Lemma 4
        coarse = NoiseSum(
            *(tuple((b / _COARSER, n, w) for b, n, w in part) for part in (noises.raising, noises.lowering))
        )
        off = sum(_COARSER * n * w for _, n, w in noises.raising) + sum(n * w for _, n, w in noises.lowering)
        return min(int(chernoff), _COARSER * coarse.quantile(log_beta) + off)
    first, masses = law
    with np.errstate(divide="ignore"):
        logs = np.log(masses) - rate * (first + np.arange(len(masses))) + noises.log_moment(rate)
    at_least = np.logaddexp.accumulate(logs[::-1])[::-1]  # ln Pr[sum >= first + i]
    enough = np.flatnonzero(at_least <= log_beta)
    exact = first + int(enough[0]) - 1 if len(enough) else chernoff
    return int(max(0, min(exact, chernoff)))


def sum_quantile(parts: Sequence[tuple[SymmetricNoise, int, int]], log_beta: float) -> int:
    """Return z that |sum| exceeds with probability at most e^log_beta, for so many noises of each law, times a weight.

    All are of one kind. Exact for discrete Laplace noises. Discrete Gaussian ones are subgaussian, with parameter sigma
    each (Canonne, Kamath, Steinke 2020, Corollary 17).
    """
    gaussian = [(law, number, weight) for law, number, weight in parts if isinstance(law, DiscreteGaussian)]
    if gaussian:
        sigma = math.sqrt(sum(number * (weight * law.sigma) ** 2 for law, number, weight in gaussian))
        return math.floor(sigma * math.sqrt(2 * (math.log(2) - log_beta)))
    laplace = [(law.scale, number, weight) for law, number, weight in parts if isinstance(law, DiscreteLaplace)]
    return NoiseSum.laplace(laplace).quantile(log_beta - math.log(2))


def series_share(number: int) -> float:
    """Return the share of a failure probability that falls to number = 1, 2, ..; all together at most 1."""
    return 1 / (SERIES * (number + 1) * math.log(number + 1) ** 2)
