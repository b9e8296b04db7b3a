"""A law on the integers as a table of 128-bit cumulative numbers, and its inverse CDF over arrays."""

import itertools
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import Labels, NoiseSource

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

WORD_BITS = 128
ONE = 1 << WORD_BITS
FIXED = 320  # fractional bits of the arithmetic that makes tables
LARGEST_TABLE = 1 << 20
_LARGEST_GUIDE_BITS = 17
_mpmath_lock = threading.Lock()  # mpmath's working precision is global

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
    _guide: NDArray[np.int32] = field(init=False)
    _shift: np.uint64 = field(init=False)

    def __post_init__(self) -> None:
        bits = min(len(self.high).bit_length() + 4, _LARGEST_GUIDE_BITS)
        shift = 64 - bits
        starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(shift)
        ends = starts | np.uint64((1 << shift) - 1)
        guide = self._search(starts, np.zeros_like(starts))
        # Negative where the leading bits alone do not decide.
        guide[guide != self._search(ends, np.full_like(ends, np.iinfo(np.uint64).max))] = -1
        for table in (self.high, self.low):
            table.setflags(write=False)  # laws are shared by caches
        object.__setattr__(self, "_guide", guide.astype(np.int32))
        object.__setattr__(self, "_shift", np.uint64(shift))

    @classmethod
    def from_cumulative(cls, first: int, cumulative: Sequence[int]) -> "IntegerLaw":
        """Make the law with Pr[X <= first + j] = cumulative[j] / 2^128, nondecreasing numbers in [0, 2^128]."""
        if any(a > b for a, b in itertools.pairwise(cumulative)):
            raise ValueError("cumulative must be nondecreasing")
        if len(cumulative) and not 0 <= cumulative[0] <= cumulative[-1] <= ONE:
            raise ValueError("cumulative must be in [0, 2^128]")
        cumulative = cumulative[: bisect_left(cumulative, ONE)]
        words = np.frombuffer(b"".join(c.to_bytes(16, "big") for c in cumulative), dtype=">u8").reshape(-1, 2)
        return cls(int(first), words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64))

    @classmethod
    def from_survival(cls, first: int, survival: Callable[[int], Any]) -> "IntegerLaw":
        """Make the law on first, first + 1, .. with Pr[X > k] = survival(k), an mpf or a Fraction.

        `survival` is called for k = first, first + 1, .. with mpmath at 320 bits, until it rounds to zero at 128 bits.
        """
        cumulative: list[int] = []
        with _mpmath_lock, mpmath.workprec(FIXED):
            while True:
                value = mpmath.mpmathify(survival(first + len(cumulative)))
                rest = int(mpmath.nint(mpmath.ldexp(value, WORD_BITS)))
                if rest <= 0:
                    return cls.from_cumulative(first, cumulative)
                cumulative.append(ONE - min(rest, ONE))
                if len(cumulative) > LARGEST_TABLE:
                    raise ValueError(f"survival must vanish within {LARGEST_TABLE} integers")

    def __len__(self) -> int:
        return len(self.high) + 1

    def __repr__(self) -> str:
        return f"IntegerLaw({self.first}..{self.first + len(self.high)})"

    def quantile(self, words: Words) -> Integers:
        """Return the inverse CDF at 128-bit numbers: uint64 (.., 2), high word first, to int64 (..)."""
        high, low = words[..., 0].ravel(), words[..., 1].ravel()
        index = self._guide[high >> self._shift].astype(np.int64)
        unsure = np.flatnonzero(index < 0)
        if len(unsure):
            index[unsure] = self._search(high[unsure], low[unsure])
        index += self.first
        return np.reshape(index, words.shape[:-1])

    def draw(self, noise: NoiseSource, labels: Labels) -> Integers:
        """Return one value per label, int64 (n,)."""
        return self.quantile(noise.words(labels)[:, 0])

    def pmf(self, k: ArrayLike) -> Floats:
        """Return Pr[X = k], at full relative precision in both tails."""
        zero = np.zeros(1, dtype=np.uint64)
        high, low = np.append(self.high, zero), np.append(self.low, zero)  # 2^128 wraps to 0
        lower_high, lower_low = np.append(zero, self.high), np.append(zero, self.low)
        steps = _to_float(high - lower_high - (low < lower_low), low - lower_low)
        steps[-1] = steps[-1] or 1.0  # all of the mass, wrapped to zero
        return self._pick(steps, k, below=0.0, above=0.0)

    def cdf(self, k: ArrayLike) -> Floats:
        """Return Pr[X <= k]."""
        return self._pick(_to_float(self.high, self.low), k, below=0.0, above=1.0)

    def survival(self, k: ArrayLike) -> Floats:
        """Return Pr[X > k], at full relative precision."""
        return self._pick(self._survival_table(), k, below=1.0, above=0.0)

    @property
    def mean(self) -> float:
        """The mean."""
        support = self._support()
        return float(self.pmf(support) @ support)

    @property
    def variance(self) -> float:
        """The variance."""
        support = self._support()
        return float(self.pmf(support) @ (support - self.mean) ** 2)

    def tail_quantile(self, beta: float) -> int:
        """Return the least integer z with Pr[X > z] <= beta."""
        beta = checks.probability("beta", beta)
        return self.first + int(np.count_nonzero(self._survival_table() > beta))

    def _survival_table(self) -> Floats:
        return np.where(self.high | self.low, _to_float(~self.high, ~self.low) + math.ldexp(1, -WORD_BITS), 1.0)

    def _support(self) -> Integers:
        return self.first + np.arange(len(self), dtype=np.int64)

    def _pick(self, table: Floats, k: ArrayLike, *, below: float, above: float) -> Floats:
        extended = np.concatenate([[below], table, [above]])
        index = np.clip(np.asarray(k, dtype=np.int64) - self.first, -1, len(table))
        return np.asarray(extended[index + 1])

    def _search(self, high: Words, low: Words) -> Integers:
        """Return how many cumulative numbers are <= (high, low)."""
        index = np.searchsorted(self.high, high, side="right")
        if len(self.high):
            # Ties on the high word have probability 2^-64 a piece; settle them by the low word.
            for i in np.flatnonzero((index > 0) & (self.high[index - 1] == high)):
                begin = np.searchsorted(self.high, high[i], side="left")
                index[i] = begin + np.searchsorted(self.low[begin : index[i]], low[i], side="right")
        return index


def _to_float(high: Words, low: Words) -> Floats:
    return high * math.ldexp(1, -64) + low * math.ldexp(1, -WORD_BITS)


def exp_minus(x: Fraction) -> int:
    """Return e^-x as a fixed-point number of 320 fractional bits, rounded down."""
    value = PRECISE.exp(-PRECISE.mpf(x.numerator) / PRECISE.mpf(x.denominator))
    return int(PRECISE.floor(PRECISE.ldexp(value, FIXED)))


def to_word(fixed: int) -> int:
    """Round a fixed-point number to the nearest multiple of 2^-128."""
    return (fixed + (1 << (FIXED - WORD_BITS - 1))) >> (FIXED - WORD_BITS)
