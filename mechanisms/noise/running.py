"""The noise of running sums: a function of key, step and true total. Independent, correlated, in trees, by epochs."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.correlated import BUFFERS, DEVIATIONS, BufferedFactor
from privstream.mechanisms.noise.discrete import (
    DiscreteGaussian,
    DiscreteLaplace,
    NoiseSum,
    SymmetricNoise,
    sum_quantile,
    tail_quantile,
)
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.privacy.accounting import SMOOTHING, gaussian_sigma, largest_shift
from scipy import special
from typing_extensions import override

EXACT = 2.0**53
"""Whole floats below it are exact."""

LARGEST_HORIZON = 1 << 20
"""Steps of correlated noise."""

_LONGEST = 1 << 14  # steps of correlated noise that sums published now and then are given
_ROUNDING_VARIANCE = 1 / 12  # of rounding to whole counts
_TOGETHER = 1 << 18  # numbers that are drawn in one call
_SPARE_BITS = 9  # of the grid beyond sqrt(horizon)
_CORRECTION = 1.0  # most that a correction is off by, in units of the grid: 1/2 by rounding, and what floats round off
_FLOATS = 0.5
_SMALL_PART = 1e-6  # of a tail probability: for what noise that is rounded to integers may add to continuous noise
_ROUNDED_SIGMA = 2.0  # of that part: docs/proofs/counters.md, Lemma 1
_SCALES = 128.0  # scales that no discrete Laplace number ever leaves
_PARENT = 1 << 63  # in labels, beyond all steps
_LARGEST_TAIL = 0.1  # up to which normal tails bound discrete ones: docs/proofs/keyed_counts.md, Lemma 3


class RunningNoise(ABC):
    """Noise on the answers about keys, at steps 1, 2, .. of the run, whenever a key was first seen."""

    law: SymmetricNoise

    @property
    @abstractmethod
    def rows(self) -> int:
        """Numbers that a key has to remember from one step to the next."""

    @abstractmethod
    def advance(self, memory: Floats, step: int, keys: Words, totals: Integers, source: NoiseSource) -> Integers:
        """Return the noise of `keys` at `step`, int64 (keys,), and bring `memory` (rows, keys) up to date in place.

        What is first used at this step is bound to the true totals, int64 (keys,): other totals draw it afresh.
        """

    def remember(self, memory: Floats, before: int, keys: Words, source: NoiseSource) -> Floats:
        """Bring empty `memory` to where it is before step `before`, for keys to which nobody has contributed yet."""
        for step in range(1, before if memory.size else 1):
            self.advance(memory, step, keys, np.zeros(len(keys), np.int64), source)
        return memory

    @abstractmethod
    def variance(self, step: int) -> float:
        """Return the variance of the noise at `step`."""

    @abstractmethod
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        """Return z >= 0 with Pr[sum of the noise of `number` keys at `step` > z] <= tail; the law is symmetric."""


@dataclass(frozen=True)
class IndependentNoise(RunningNoise):
    """Each step has noise of its own; where several are added up, variance and tails are those of the sum."""

    law: SymmetricNoise  # of one step
    windows: int = 1  # steps that are added up
    rows = 0

    @override
    def advance(self, memory: Floats, step: int, keys: Words, totals: Integers, source: NoiseSource) -> Integers:
        return self.law.draw_bound(source, keys, step, totals)

    def summed(self, windows: int) -> IndependentNoise:
        """Return the noise of sums over a number of steps."""
        return replace(self, windows=windows)

    @override
    def variance(self, step: int) -> float:
        return self.windows * self.law.variance

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        drawn = self.windows * number
        if isinstance(self.law, DiscreteLaplace):
            noises = ((self.law.scale, drawn, 1),)
            return tail_quantile(NoiseSum(noises, noises), math.log(tail))
        # A sum of discrete Gaussians is one: docs/proofs/keyed_counts.md, Lemma 3.
        return math.ceil(_normal(min(tail, _LARGEST_TAIL)) * self.law.sigma * math.sqrt(drawn) - 0.5)


@dataclass(frozen=True)
class ToeplitzNoise(RunningNoise):
    """Sums of w = D^-1 R^-1 z over all steps, z independent Gaussian numbers on a grid of 2^-fraction."""

    factor: BufferedFactor  # R D
    law: DiscreteGaussian  # of z where its level is 1, in units of the grid
    fraction: int  # fractional bits of the grid
    rows = BUFFERS + 1  # those of the factor, and the sum of w

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, steps: int, shift: float, *, norm: float, touched: int, largest: int) -> Self:
        """Return the least noise with which a person is a `shift`: docs/proofs/counters.md, Theorem 2.

        `norm` is that of what the person adds, over columns, as if all of it came at one step; `touched` the columns
        that the person may move, counted with each contribution; `largest` what one column moves by, at most.

        Raises:
            ValueError: floats could not add it up exactly.
        """
        factor = BufferedFactor(steps)
        fraction = max(0, math.ceil(_SPARE_BITS + math.log2(steps * touched / norm**2) / 2))
        moved = math.ldexp(norm * math.sqrt(factor.square), fraction)
        corrected = 2 * _CORRECTION * math.sqrt(touched * float(factor.levels @ factor.levels))
        sigma = gaussian_sigma(shift, moved + corrected)
        sums = DEVIATIONS * 2 * sigma * math.sqrt(max(factor.squares.max(), factor.inverse @ factor.inverse))
        between = math.ldexp(largest * float(factor.levels[-1]), fraction)  # buffers of both worlds, at most
        if sums >= EXACT or factor.float_error(sigma + between) > _FLOATS:
            raise ValueError("noise must be nearly exact in floating point")
        return cls(factor, DiscreteGaussian(sigma), fraction)

    @override
    def advance(self, memory: Floats, step: int, keys: Words, totals: Integers, source: NoiseSource) -> Integers:
        drawn = self.law_at(step).draw_bound(source, keys, step, totals)
        self._add(drawn.astype(np.float64), memory, step)
        unit = math.ldexp(1.0, self.fraction)
        return np.asarray(np.floor((memory[BUFFERS] + unit / 2) / unit), np.int64)

    @override
    def remember(self, memory: Floats, before: int, keys: Words, source: NoiseSource) -> Floats:
        start, together = 1, max(1, _TOGETHER // max(1, len(keys)))
        while len(keys) and start < before:  # many steps at once, bound to totals of zero
            same_law = int(np.searchsorted(self.factor.levels, self.factor.levels[start - 1], side="right"))
            steps = np.arange(start, 1 + min(start - 1 + together, before - 1, same_law))
            labels = np.tile(keys, len(steps)), np.repeat(steps, len(keys)).astype(np.uint64)
            drawn = self.law_at(start).draw_bound(source, *labels, np.zeros(len(labels[0]), np.int64))
            for step, values in zip(steps.tolist(), drawn.astype(float).reshape(len(steps), len(keys)), strict=True):
                self._add(values, memory, step)
            start += len(steps)
        return memory

    def _add(self, values: Floats, memory: Floats, step: int) -> None:
        """Turn z into w, and add it to the sum of all w: whole numbers below `EXACT`."""
        self.factor.correct(values, memory[:BUFFERS], step)
        memory[BUFFERS] += values

    @property
    def horizon(self) -> int:
        """Steps of the run."""
        return self.factor.horizon

    def law_at(self, step: int) -> DiscreteGaussian:
        """Return the law of z at a step."""
        return _levelled(self.law.sigma, float(self.factor.levels[step - 1]))

    def shifts(self, totals: Floats) -> Floats:
        """Return by how much the z of all steps hide a change of the totals after each step."""
        came = np.diff(totals, prepend=0.0) * self.factor.levels[: len(totals)]
        return np.asarray(np.convolve(came, self.factor.coefficients)[: len(came)])

    @override
    def variance(self, step: int) -> float:
        found = math.ldexp(self.law.variance, -2 * self.fraction) * self._square(step)
        return found + (_ROUNDING_VARIANCE if self.fraction else 0.0)

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        # docs/proofs/keyed_counts.md, Lemma 3.
        norm = math.sqrt(self._square(step) * number)
        rounded = _ROUNDED_SIGMA * math.sqrt(-2 * math.log(tail * _SMALL_PART))
        moved = norm * float(self.factor.levels[-1]) * (rounded + math.sqrt(step * number))
        bound = math.ldexp(_normal(tail) * self.law.sigma * norm + moved, -self.fraction)
        return max(0, math.ceil(bound + number / 2 - 1))

    def _square(self, step: int) -> float:
        """Return the variance of the noise at `step` for sigma 1."""
        squares = self.factor.squares
        return float(squares[min(step, len(squares)) - 1])


@dataclass(frozen=True)
class CompleteTreeNoise(RunningNoise):
    """A tree of complete nodes, each bound to the totals after its last step: docs/proofs/counters.md, section 2.

    `combined`: the noisy value of a parent of leaves is combined with theirs; memory is in units of 1 / (base + 1).
    """

    horizon: int  # steps of the run
    law: SymmetricNoise  # of a node
    base: int  # children of a node
    combined: bool = False

    @property
    @override
    def rows(self) -> int:
        # In row h the noise at the last step that is a multiple of base^h. A step is in as many nodes.
        return len(plain_digits(self.base, self.horizon))

    def nodes(self, step: int) -> list[tuple[int, int]]:
        """Return height and position of the nodes that add up to the first `step` steps."""
        found: list[tuple[int, int]] = []
        for height, digit in reversed(list(enumerate(plain_digits(self.base, step)))):
            end = step // self.base**height
            found += [(height, position) for position in range(end - digit, end)]
        return found

    @override
    def advance(self, memory: Floats, step: int, keys: Words, totals: Integers, source: NoiseSource) -> Integers:
        height, unit = self._height(step), self._unit
        noise = self.law.draw_bound(source, keys, step, totals).astype(np.float64)
        if self.combined and height == 1:
            parent = self.law.draw_bound(source, keys, step + _PARENT, totals)
            noise += (memory[0] - memory[1]) / unit + self.base * parent
        else:
            noise *= unit
        noise += memory[height]
        memory[: height + 1] = noise  # whole numbers: the caller keeps them below 2^53
        return np.asarray((2 * noise + unit) // (2 * unit), np.int64)

    @property
    def _unit(self) -> int:
        return self.base + 1 if self.combined else 1

    def _parts(self, step: int, number: int = 1) -> list[tuple[SymmetricNoise, int, int]]:
        """Return how many noises the sum at a step has for `number` keys, and the units of each."""
        digits, unit = plain_digits(self.base, step), self._unit
        parents = number * digits[1] if self.combined and len(digits) > 1 else 0
        rest = number * sum(digits) - parents
        return [(self.law, rest, unit), (self.law, parents, self.base), (self.law, self.base * parents, 1)]

    def law_at(self, step: int) -> SymmetricNoise:
        """Return the law of a node that ends at a step."""
        return self.law

    def shifts(self, totals: Floats) -> Floats:
        """Return by how much the nodes that end at all steps hide a change of the totals after each step."""
        ends = [(step, self._height(step)) for step in range(1, len(totals) + 1)]
        ends += [(step, 0) for step, height in ends if height == 1 and self.combined]
        since = np.append(0.0, totals)
        return np.array([since[step] - since[step - self.base**height] for step, height in ends])

    def _height(self, step: int) -> int:
        """Return the height of the node that ends at a step."""
        return next(h for h in itertools.count() if step % self.base ** (h + 1))

    @override
    def variance(self, step: int) -> float:
        parts = self._parts(step)
        found = sum(many * (weight / self._unit) ** 2 for _, many, weight in parts) * self.law.variance
        return found + (_ROUNDING_VARIANCE if parts[1][1] else 0.0)

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        if not self.combined:
            return sum_quantile([(self.law, _few(self._parts(step, number)[0][1]), 1)], math.log(2 * tail))
        found = sum_quantile(self._parts(step, number), math.log(2 * tail))
        return (2 * found + number * self._unit) // (2 * self._unit)


def laplace_tree(steps: int, scale: float, *, combined: bool = False) -> CompleteTreeNoise:
    """Return the best tree whose nodes have discrete Laplace noise of `scale` times the number of its levels.

    Raises:
        ValueError: floats could not add it up exactly.
    """
    base = best_arity(steps)
    height = len(plain_digits(base, steps))
    law = DiscreteLaplace(math.nextafter(height * scale, math.inf))
    if _SCALES * law.scale * 3 * base * height * (base + 1) >= EXACT:  # else low bits would be the true ones
        raise ValueError("sums of noise must be exact in floating point")
    return CompleteTreeNoise(steps, law, base, combined)


LENGTHS = (10, 147, 2_916, 171_366, 5_315_625, 1 << 40)
"""Of epochs where the horizon is not known."""


@dataclass(frozen=True)
class EpochNoise(RunningNoise):
    """One noise after the other, the last one again and again: noise grows with the steps done, not with a horizon.

    Past epochs count with their noise at their ends: docs/proofs/counters.md, section 4.
    """

    epochs: tuple[RunningNoise, ...]  # the noise of each
    lengths: tuple[int, ...]  # the steps of each

    @classmethod
    def of(cls, make: Callable[[int], RunningNoise], first: int | None = None, longest: int = LENGTHS[-1]) -> Self:
        """Return epochs of growing lengths, up to the `longest`; of the first one the length may be given."""
        later = [min(length, longest) for length in LENGTHS if min(length, longest) > (first or 0)]
        lengths = ((first,) if first else ()) + tuple(dict.fromkeys(later))
        return cls(tuple(make(length) for length in lengths), lengths)

    def begun(self, step: int) -> Iterator[tuple[int, RunningNoise, int, int]]:
        """Return number, noise, steps before it and steps done, of each epoch that has begun when `step` is done."""
        number = before = 0
        while before < step:
            place = min(number, len(self.epochs) - 1)
            yield number, self.epochs[place], before, min(step - before, self.lengths[place])
            number, before = number + 1, before + self.lengths[place]

    @property
    @override
    def rows(self) -> int:
        # The noise of past epochs, then what the present one remembers.
        return 1 + max(epoch.rows for epoch in self.epochs)

    @override
    def advance(self, memory: Floats, step: int, keys: Words, totals: Integers, source: NoiseSource) -> Integers:
        *_, (number, epoch, _, done) = self.begun(step)
        own = memory[1 : 1 + epoch.rows]
        noise = epoch.advance(own, done, keys, totals, source.derive("epoch", number)) + memory[0].astype(np.int64)
        if done == self.lengths[min(number, len(self.lengths) - 1)]:
            memory[0], memory[1:] = noise, 0.0
        return np.asarray(noise)

    @override
    def variance(self, step: int) -> float:
        return sum(epoch.variance(done) for _, epoch, _, done in self.begun(step))

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1, *, so_far: bool = False) -> int:
        """Return z with Pr[sum of the noise of `number` keys > z] <= tail: at `step`, or at any one step `so_far`."""
        begun = [(epoch, done) for _, epoch, _, done in self.begun(step)]
        if not isinstance(begun[0][0], CompleteTreeNoise):
            return sum(epoch.tail_bound(done, tail / len(begun), number) for epoch, done in begun)
        past: list[tuple[SymmetricNoise, int, int]] = []  # nodes at the ends of past epochs
        bounds = []
        for epoch, done in begun:
            assert isinstance(epoch, CompleteTreeNoise)
            ends = sum(plain_digits(epoch.base, done))
            most = _most_digits(epoch.base, done) if so_far else ends
            bounds.append(sum_quantile([*past, (epoch.law, _few(most * number), 1)], math.log(2 * tail)))
            past.append((epoch.law, _few(ends * number), 1))
        return max(bounds) if so_far else bounds[-1]


@functools.lru_cache(maxsize=256)
def _levelled(sigma: float, level: float) -> DiscreteGaussian:
    """Return the law of z at a level: docs/proofs/keyed_counts.md, section 2."""
    return DiscreteGaussian(sigma if level == 1 else math.sqrt((sigma**2 - SMOOTHING) / level**2 + SMOOTHING))


def _few(number: int) -> int:
    """Return a number of noises, rounded up to six leading binary digits: few quantiles are computed."""
    rest = max(0, number.bit_length() - 6)
    return -(-number >> rest) << rest


def _normal(tail: float) -> float:
    """Return what a normal number exceeds with this probability, but for the part that rounding needs."""
    if math.isinf(found := -float(special.ndtri(tail * (1 - _SMALL_PART)))):
        raise ValueError(f"delta must be larger: no threshold is exceeded by noise with a probability of {tail}")
    return found


def plain_digits(base: int, step: int) -> list[int]:
    """Return the digits of a step, lowest first."""
    found = []
    while step:
        step, digit = divmod(step, base)
        found.append(digit)
    return found


def _most_digits(base: int, step: int) -> int:
    """Return the largest sum of digits of the steps 1 .. `step`."""
    lower = [step // base**place * base**place - 1 for place in range(1, len(plain_digits(base, step)))]
    return max(sum(plain_digits(base, number)) for number in (step, *lower))


@functools.lru_cache(maxsize=256)
def best_arity(horizon: int) -> int:
    """Return the number of children with the least variance at the worst step, among the least of each height."""
    bases: list[int] = []
    for height in range(1, horizon.bit_length() + 1):
        least = itertools.count(max(2, round(horizon ** (1 / height)) - 1))
        bases.append(next(base for base in least if base**height > horizon))
    return min(bases, key=lambda base: len(plain_digits(base, horizon)) ** 2 * _most_digits(base, horizon))


def sums_noise(
    epsilon: float,
    delta: float,
    touched: int,
    rows: int,
    expected: int | None = None,
    horizon: int | None = None,
    *,
    opposite: bool = False,
) -> EpochNoise:
    """Return the noise of continual column sums, for a person with a number of rows that each move some columns by 1.

    Trees of complete nodes with delta = 0, else correlated Gaussian noise; so all of it is bound to the sums. How often
    sums are expected to be published, and can be at most, is for accuracy and memory alone. `opposite`: there are two
    rows, of which the second takes back what the first adds. Proof: docs/proofs/counters.md, Theorem 2.
    """

    def correlated(steps: int) -> RunningNoise:
        norm, shift = (
            math.sqrt(rows * touched) if opposite else rows * math.sqrt(touched),
            largest_shift(epsilon, delta),
        )
        return ToeplitzNoise.of(steps, shift, norm=norm, touched=rows * touched, largest=rows)

    try:
        if delta == 0:
            scale = touched * rows / epsilon
            return EpochNoise.of(lambda steps: laplace_tree(steps, scale), expected, horizon or LENGTHS[-1])
        first = expected and min(1 << (expected - 1).bit_length(), _LONGEST)  # few different ones are made
        return EpochNoise.of(correlated, first, min(horizon or _LONGEST, _LONGEST))
    except ValueError:
        raise ValueError(f"epsilon must be larger for rows of {touched:,} columns, got {epsilon}") from None
