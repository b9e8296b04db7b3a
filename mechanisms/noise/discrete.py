"""Integer laws drawn by inverse CDF on 128-bit numbers, the noise for everything that is a count; and tails of sums.

Tables are computed with 320 bits and rounded once to multiples of 2^-128; a draw differs from its law by at most 2^-112
in total variation (docs/proofs/noise.md). No floating-point number takes part in a draw: a parameter given as a float
means exactly the value of the float.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, ClassVar

import mpmath
import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.sources import Labels, NoiseSource, Words
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift
from scipy import special
from typing_extensions import override

WORD_BITS = 128
ONE = 1 << WORD_BITS
FIXED = 320  # fractional bits of the arithmetic that makes tables
LARGEST_TABLE = 1 << 20
# A context of our own, never changed, that threads can share.
PRECISE: Any = mpmath.MPContext()
PRECISE.prec = FIXED + 80


@dataclass(frozen=True, eq=False, repr=False)
class IntegerLaw:
    """A law on the integers first, first + 1, .., drawn by table lookup without a floating-point number.

    `high` and `low` are the words of nondecreasing 128-bit numbers c[j] = 2^128 Pr[X <= first + j]; the last integer,
    first + len(high), takes what remains. Probabilities are multiples of 2^-128.
    """

    first: int
    high: Words
    low: Words

    @classmethod
    def from_cumulative(cls, first: int, cumulative: Sequence[int]) -> IntegerLaw:
        """Make the law with Pr[X <= first + j] = cumulative[j] / 2^128, nondecreasing numbers in [0, 2^128]."""
        if not all(map(operator.le, cumulative, cumulative[1:])):
            raise ValueError("cumulative must be nondecreasing")
        if len(cumulative) and not 0 <= cumulative[0] <= cumulative[-1] <= ONE:
            raise ValueError("cumulative must be in [0, 2^128]")
        below = [number.to_bytes(16) for number in cumulative[: bisect_left(cumulative, ONE)]]
        words = np.frombuffer(b"".join(below), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        return cls(int(first), np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]))

    @classmethod
    def from_survival(cls, first: int, survival: Callable[[int], Any]) -> IntegerLaw:
        """Make the law on first, first + 1, .. with Pr[X > k] = survival(k), an mpf or a Fraction.

        `survival` is called for k = first, first + 1, .., until it rounds to zero at 128 bits.
        """
        cumulative: list[int] = []
        while len(cumulative) <= LARGEST_TABLE:
            value = PRECISE.convert(survival(first + len(cumulative)))
            rest = int(PRECISE.nint(PRECISE.ldexp(value, WORD_BITS)))
            if rest <= 0:
                return cls.from_cumulative(first, cumulative)
            cumulative.append(ONE - min(rest, ONE))
        raise ValueError(f"survival must vanish within {LARGEST_TABLE} integers")

    def __repr__(self) -> str:
        return f"IntegerLaw({self.first}..{self.first + len(self.high)})"

    def quantile(self, words: Words) -> Integers:
        """Return the inverse CDF at 128-bit numbers: uint64 (.., 2), high word first, to int64 (..)."""
        high, low = words[..., 0].ravel(), words[..., 1].ravel()
        index = np.searchsorted(self.high, high, side="right")
        if len(self.high):
            # Ties on the high word have probability 2^-64 a piece; settle them by the low word.
            for i in np.flatnonzero((index > 0) & (self.high[index - 1] == high)):
                begin = np.searchsorted(self.high, high[i], side="left")
                index[i] = begin + np.searchsorted(self.low[begin : index[i]], low[i], side="right")
        return np.reshape(index + self.first, words.shape[:-1])

    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        """Return one value per label, int64 (n,)."""
        return self.quantile(noise.words(labels)[:, 0])


def exp_minus(x: Fraction) -> int:
    """Return e^-x as a fixed-point number of 320 fractional bits, rounded down."""
    value = PRECISE.exp(-PRECISE.mpf(x.numerator) / PRECISE.mpf(x.denominator))
    return int(PRECISE.floor(PRECISE.ldexp(value, FIXED)))


def to_word(fixed: int) -> int:
    """Round a fixed-point number to the nearest multiple of 2^-128."""
    return (fixed + (1 << (FIXED - WORD_BITS - 1))) >> (FIXED - WORD_BITS)


LARGEST_SCALE = 1e12
LARGEST_SIGMA = 1e15
_LARGEST_TABLE_SIGMA = 1000
_UNIT, _LOW_SIGMA = 256, 700.0  # of the digits of a wider Gaussian, and of all of them but the first
_BASE = 8192  # digits of long draws, and so the size of a table
_LEFT = 89  # e^-89 < 2^-128


class DiscreteNoise(ABC):
    """A law on the integers, known in closed form and drawn exactly."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """The variance."""

    @abstractmethod
    def pmf(self, k: ArrayLike) -> Floats:
        """Return Pr[X = k]."""

    @abstractmethod
    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        """Return one value per label, int64 (n,)."""

    def draw_bound(self, source: NoiseSource, keys: Words, steps: int | Words, totals: Integers) -> Integers:
        """Return one value for each pair of a key and a step, int64 (n,), bound to true totals: others draw afresh."""
        labels = np.empty((len(keys), 2), np.uint64)
        labels[:, 0] = keys
        labels[:, 1] = steps
        return self.draw(source, source.bind(labels, totals))

    @abstractmethod
    def tail_quantile(self, beta: float) -> int:
        """Return the least integer z with Pr[X > z] <= beta."""


@dataclass(frozen=True)
class _Exponential(DiscreteNoise):
    scale: float  # up to 1e12
    two_sided: ClassVar[bool]

    def __post_init__(self) -> None:
        _check_up_to("scale", self.scale, LARGEST_SCALE)

    @override
    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        tables = _geometric_tables(self.scale, two_sided=self.two_sided)
        words = noise.words(labels, lanes=len(tables))
        value = tables[0].quantile(words[:, 0])
        sign = value >> 63  # of the leading digit
        value ^= sign
        for lane, table in enumerate(tables[1:], start=1):
            value *= _BASE
            value += table.quantile(words[:, lane])
        return value ^ sign


@dataclass(frozen=True)
class Geometric(_Exponential):
    """Pr[X = k] proportional to e^(-k/scale) on k = 0, 1, .."""

    two_sided = False

    @property
    def mean(self) -> float:
        """The mean."""
        return math.exp(-1 / self.scale) / -math.expm1(-1 / self.scale)

    @property
    @override
    def variance(self) -> float:
        return self.mean / -math.expm1(-1 / self.scale)

    @override
    def pmf(self, k: ArrayLike) -> Floats:
        k = np.asarray(k, np.float64)
        with np.errstate(over="ignore"):  # tiny scale
            return np.where(k >= 0, np.exp(-np.maximum(k, 0) / self.scale) * -math.expm1(-1 / self.scale), 0.0)

    @override
    def tail_quantile(self, beta: float) -> int:
        beta = checks.probability("beta", beta)
        return max(0, int(PRECISE.ceil(-PRECISE.log(beta) * PRECISE.mpf(self.scale))) - 1)


@dataclass(frozen=True)
class DiscreteLaplace(_Exponential):
    """Pr[X = k] proportional to e^(-|k|/scale) on all integers."""

    two_sided = True
    mean = 0.0

    @property
    @override
    def variance(self) -> float:
        return 2 * math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2

    @override
    def pmf(self, k: ArrayLike) -> Floats:
        with np.errstate(over="ignore"):  # tiny scale
            return np.exp(-np.abs(np.asarray(k, np.float64)) / self.scale) * math.tanh(0.5 / self.scale)

    @override
    def tail_quantile(self, beta: float) -> int:
        beta = PRECISE.mpf(checks.probability("beta", beta))
        scale = PRECISE.mpf(self.scale)
        q = PRECISE.exp(-1 / scale)
        if beta * (1 + q) < q:
            return int(PRECISE.ceil(-scale * PRECISE.log(beta * (1 + q)))) - 1
        return -int(PRECISE.floor(-scale * PRECISE.log((1 - beta) * (1 + q))))


@dataclass(frozen=True)
class DiscreteGaussian(DiscreteNoise):
    """Pr[X = k] proportional to e^(-k^2 / (2 sigma^2)) on all integers; sigma up to 1e15.

    Up to sigma 1000 a draw is one table lookup. Beyond, it has several digits to base 256: each mass is within a
    factor 1 +- 1e-31 of the law's, for a parameter within 3e-15 of sigma (docs/proofs/counters.md, Lemma 2), far less
    than the 1e-12 by which callers raise sigma.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check_up_to("sigma", self.sigma, LARGEST_SIGMA)

    @cached_property
    def digits(self) -> tuple[float, ...]:
        """The parameters of the digits, lowest first."""
        low, sigma = 0, self.sigma
        while sigma > _LARGEST_TABLE_SIGMA:
            low, sigma = low + 1, math.nextafter(math.sqrt(sigma**2 - _LOW_SIGMA**2) / _UNIT, math.inf)
        return (*[_LOW_SIGMA] * low, sigma)

    @property
    @override
    def variance(self) -> float:  # a little below sigma^2 for small sigma
        if self.sigma > 10:
            return self.sigma**2
        k = np.arange(-400, 401)
        return float(self.pmf(k) @ k**2)

    @override
    def pmf(self, k: ArrayLike) -> Floats:
        total = self.sigma * math.sqrt(2 * math.pi)
        if self.sigma <= 10:
            total = float(self._weights(np.arange(-400, 401)).sum())
        return self._weights(k) / total

    def _weights(self, k: ArrayLike) -> Floats:
        with np.errstate(over="ignore"):  # tiny sigma
            return np.exp(-0.5 * (np.asarray(k, np.float64) / self.sigma) ** 2)

    @override
    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        *low, high = self.digits
        if not low:
            return _gaussian_table(high).draw(noise, labels)
        value = _gaussian_table(high).draw(noise.derive("digit", len(low)), labels)
        for place in reversed(range(len(low))):
            value *= _UNIT
            value += _gaussian_table(low[place]).draw(noise.derive("digit", place), labels)
        return value

    @override
    def tail_quantile(self, beta: float) -> int:
        beta = checks.probability("beta", beta)
        if self.sigma > _LARGEST_TABLE_SIGMA:
            # Midpoint rule: off by one where the exact quantile is within 1 / sigma of an integer, at most.
            return math.ceil(-self.sigma * float(special.ndtri(beta)) - 0.5)
        reach = math.ceil(39 * self.sigma) + 1
        k = np.arange(-reach, reach + 1)
        above = np.cumsum(self.pmf(k)[::-1])[::-1]  # Pr[X >= k]
        return int(k[np.count_nonzero(above > beta) - 1])


SymmetricNoise = DiscreteLaplace | DiscreteGaussian


def _check_up_to(name: str, value: float, largest: float) -> None:
    if checks.positive(name, value) > largest:
        raise ValueError(f"{name} must be <= {largest:g}, got {value}: a larger epsilon needs less noise")


@lru_cache(maxsize=256)
def _geometric_tables(scale: float | Fraction, *, two_sided: bool) -> tuple[IntegerLaw, ...]:
    """Return the laws of the independent base-8192 digits of a geometric variable, leading digit first.

    With `two_sided` the leading digit carries the sign: d >= 0, or -1 - d where the variable is -1 - (digits).
    """
    scale = Fraction(scale)  # here, where it is made once: to make and to hash a fraction takes as long as a small draw
    unit, tables = 1, []
    while _LEFT * scale * (1 + two_sided) > _BASE * unit:
        tables.append(_digit_table(scale, unit))
        unit *= _BASE
    ratio = exp_minus(unit / scale)
    powers = [1 << FIXED]
    while to_word(powers[-1]):
        powers.append(powers[-1] * ratio >> FIXED)
    if not two_sided:
        return IntegerLaw.from_cumulative(0, [ONE - to_word(p) for p in powers[1:]]), *reversed(tables)
    one_step = exp_minus(1 / scale)
    total = (1 << FIXED) + one_step
    below = [c for p in reversed(powers) if (c := to_word(p * one_step // total))]
    above = [ONE - to_word((p << FIXED) // total) for p in powers[1:]]
    return IntegerLaw.from_cumulative(-len(below), below + above), *reversed(tables)


def _digit_table(scale: Fraction, unit: int) -> IntegerLaw:
    """Return the law of the digit at `unit`, geometric with ratio e^(-unit/scale) truncated to [0, 8192)."""
    ratio = exp_minus(unit / scale)
    total = (1 << FIXED) - exp_minus(_BASE * unit / scale)
    power, cumulative = 1 << FIXED, []
    for _ in range(_BASE - 1):
        power = power * ratio >> FIXED
        cumulative.append(to_word((((1 << FIXED) - power) << FIXED) // total))
    return IntegerLaw.from_cumulative(0, cumulative)


@lru_cache(maxsize=64)
def _gaussian_table(sigma: float | Fraction) -> IntegerLaw:
    """Return the table of a discrete Gaussian; weights by the recurrence w(k+1) = w(k) e^(-(2k+1) / (2 sigma^2))."""
    sigma = Fraction(sigma)
    reach = math.ceil(14 * sigma) + 1
    step, square = exp_minus(1 / (2 * sigma**2)), exp_minus(1 / sigma**2)
    weight = 1 << FIXED
    weights = [weight]
    for _ in range(reach):
        weight = weight * step >> FIXED
        weights.append(weight)
        step = step * square >> FIXED
    total = 2 * sum(weights) - weights[0]
    bits, twice = WORD_BITS + 1, 2 * total
    nearest = [((tail << bits) + total) // twice for tail in accumulate(reversed(weights[1:]))]  # multiple of 2^-128
    lower = IntegerLaw.from_cumulative(0, nearest[bisect_left(nearest, 1) :])
    high, low = lower.high[::-1], lower.low[::-1]
    above = ~high + (low == 0), ~low + np.uint64(1)  # 2^128 less than zero
    return IntegerLaw(-len(high), np.concatenate([lower.high, above[0]]), np.concatenate([lower.low, above[1]]))


def least_noise(epsilon: float, delta: float, l1: float, l2: float, changes: int = 1) -> SymmetricNoise:
    """Return the noise of less variance, of the kinds that delta allows, on integers that move by such norms."""
    laplace = DiscreteLaplace(math.nextafter(l1 / epsilon, math.inf))
    if delta == 0:
        return laplace
    gaussian = DiscreteGaussian(gaussian_sigma(largest_shift(epsilon, delta), l2, changes))
    return gaussian if gaussian.variance < laplace.variance else laplace


SERIES = 2.11  # more than the sum of 1 / (n ln^2 n) from n = 2 on

_LONGEST = 1 << 21  # cells of a convolution; wider laws are drawn together
_COARSER = 4  # by which they are
_REACH = 40.0  # e^-40 is below what float64 resolves


@dataclass(frozen=True)
class NoiseSum:
    """The sum of independent noises: `raising` are geometric with these scales, `lowering` are subtracted ones.

    The law is tilted by e^(rate x) so that the quantile asked for becomes its mean, convolved exactly (a discrete
    Fourier transform of its closed form), and tilted back: full relative precision however small the tail. Noises are
    given by their scale, how many have it, and the whole number by which these are multiplied. A discrete Laplace noise
    is the difference of two geometric ones.
    """

    raising: tuple[tuple[float, int, int], ...]
    lowering: tuple[tuple[float, int, int], ...]

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
        length = scipy.fft.next_fast_len(math.ceil(2 * reach) + 2)
        first = math.floor(mean - length / 2)
        frequencies = 2j * np.pi * scipy.fft.fftfreq(length)
        log_transform = np.zeros(length, np.complex128)
        for slope, number, weight in slopes:
            q = math.exp(-slope)
            log_transform += number * (math.log(-math.expm1(-slope)) - np.log(1 - q * np.exp(weight * frequencies)))
        masses = scipy.fft.fft(np.exp(log_transform - first * frequencies)).real / length
        return first, np.maximum(masses, 0.0)


@lru_cache(maxsize=4096)
def tail_quantile(noises: NoiseSum, log_beta: float) -> int:
    """Return the least z >= 0 with Pr[sum > z] <= e^log_beta, or a bound near it for very wide laws."""
    sums = noises.raising + noises.lowering
    if not sums or math.log(sum(n for _, n, _ in sums)) - 1 / max(b for b, _, _ in sums) <= log_beta:
        return 0  # all noises are 0 with probability 1 - e^log_beta
    # Scales that are so small as to overflow may be larger, which have larger tails.
    drawable = (tuple((max(b, 1 / 700), n, w) for b, n, w in part) for part in (noises.raising, noises.lowering))
    noises = NoiseSum(*drawable)
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
        return min(int(chernoff), _COARSER * tail_quantile(coarse, log_beta) + off)
    first, masses = law
    with np.errstate(divide="ignore"):
        logs = np.log(masses) - rate * (first + np.arange(len(masses))) + noises.log_moment(rate)
    at_least = np.logaddexp.accumulate(logs[::-1])[::-1]  # ln Pr[sum >= first + i]
    enough = np.flatnonzero(at_least <= log_beta)
    exact = first + int(enough[0]) - 1 if len(enough) else chernoff
    return int(max(0, min(exact, chernoff)))


def _log_rest(slope: float) -> float:
    """Return ln(1 - e^-slope)."""
    return math.log(-math.expm1(-slope))


def sum_quantile(parts: Sequence[tuple[SymmetricNoise, int, int]], log_beta: float) -> int:
    """Return z that |sum| exceeds with probability at most e^log_beta, for noises of each law, times a weight.

    All are of one kind. Exact for discrete Laplace noises. Discrete Gaussian ones are subgaussian, with parameter sigma
    each (Canonne, Kamath, Steinke 2020, Corollary 17).
    """
    gaussian = [(law, number, weight) for law, number, weight in parts if isinstance(law, DiscreteGaussian)]
    if gaussian:
        sigma = math.sqrt(sum(number * (weight * law.sigma) ** 2 for law, number, weight in gaussian))
        return math.floor(sigma * math.sqrt(2 * (math.log(2) - log_beta)))
    laplace = tuple((law.scale, n, weight) for law, n, weight in parts if n and isinstance(law, DiscreteLaplace))
    return tail_quantile(NoiseSum(laplace, laplace), log_beta - math.log(2))


def series_share(number: int) -> float:
    """Return the share of a failure probability that falls to number = 1, 2, ..; all together at most 1."""
    return 1 / (SERIES * (number + 1) * math.log(number + 1) ** 2)
