"""The noise of running sums: a function of key, step and true total. Independent, correlated, in trees, by epochs."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.noise.correlated import ROUNDING_VARIANCE, BandedFactor, Factor, whole_counts
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import NoiseSum, sum_quantile
from privstream.mechanisms.privacy.accounting import SMOOTHING
from scipy import special
from typing_extensions import override

_TOGETHER = 1 << 18  # numbers that are drawn in one call
_SMALL_PART = 1e-6  # of a tail probability: for what noise that is rounded to integers may add to continuous noise
_ROUNDED_SIGMA = 2.0  # of that part: docs/proofs/counters.md, Lemma 1


class RunningNoise(ABC):
    """Noise on the answers about keys, at steps 1, 2, .. of the run, whenever a key was first seen."""

    law: DiscreteGaussian | DiscreteLaplace

    @property
    def is_laplace(self) -> bool:
        """Whether numbers are drawn from a discrete Laplace law, and not from a Gaussian one."""
        return isinstance(self.law, DiscreteLaplace)

    @property
    @abstractmethod
    def rows(self) -> int:
        """Numbers that a key has to remember from one step to the next."""

    @abstractmethod
    def advance(
        self, memory: Floats, step: int, keys: Words, facts: Sequence[Integers], source: NoiseSource
    ) -> Integers:
        """Return the noise of `keys` at `step`, int64 (keys,), and bring `memory` (rows, keys) up to date in place.

        The noise that is first used at this step is bound to facts about the keys, each int64 (keys,), so that a
        repetition in which one of them is another draws it afresh.
        """

    def remember(self, memory: Floats, before: int, keys: Words, source: NoiseSource) -> None:
        """Bring empty `memory` to where it is before step `before`, for keys to which nobody has contributed yet."""
        assert not self.rows

    @abstractmethod
    def variance(self, step: int) -> float:
        """Return the variance of the noise at `step`."""

    @abstractmethod
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        """Return z >= 0 with Pr[sum of the noise of so many keys at `step` > z] <= tail.

        The law is symmetric up to the rounding of halves.
        """


@dataclass(frozen=True)
class ToeplitzNoise(RunningNoise):
    """Sums of w = R^-1 z over the last `span` steps, or over all, z independent on a grid of 2^-fraction.

    Attributes:
        factor: R.
        law: of z where its level is 1, in units of the grid; discrete Laplace only with R the identity.
        fraction: fractional bits of the grid.
        span: number of steps, or None for all.
    """

    factor: Factor
    law: DiscreteGaussian | DiscreteLaplace
    fraction: int
    span: int | None

    @property
    def rows(self) -> int:
        """Those of the factor, the last w in a ring where they are to be subtracted again, and the sum of w."""
        if self.span == 1:
            return self.factor.rows
        return self.factor.rows + 1 + (self.span or 0)

    def advance(
        self, memory: Floats, step: int, keys: Words, facts: Sequence[Integers], source: NoiseSource
    ) -> Integers:
        """Return the noise of one step."""
        return self._correlated(self._law(step).draw(source, _bound(source, _labels(keys, step), facts)), memory, step)

    def independent(self, keys: Words, steps: Words, facts: Sequence[Integers], source: NoiseSource) -> Integers:
        """Return what `advance` returns for pairs of a key and a step, int64 (pairs,), where nothing is remembered."""
        assert not self.rows
        return self.law.draw(source, _bound(source, _labels(keys, steps), facts))

    def summed(self, steps: int) -> ToeplitzNoise:
        """Return the noise of sums of the answers of so many steps, each about one; R must be the identity."""
        assert self.factor.exact and self.span == 1
        return replace(self, factor=BandedFactor(steps, 1), span=steps)

    def remember(self, memory: Floats, before: int, keys: Words, source: NoiseSource) -> None:
        """Draw what is remembered, for many steps at once, bound to totals of zero."""
        assert self.span in (1, None)  # keys of several windows are public, and never late
        start, together = 1, max(1, _TOGETHER // max(1, len(keys)))
        while self.rows and len(keys) and start < before:
            same_law = int(np.searchsorted(self.factor.levels, self.factor.levels[start - 1], side="right"))
            steps = np.arange(start, 1 + min(start - 1 + together, before - 1, same_law))
            labels = _labels(np.tile(keys, len(steps)), np.repeat(steps, len(keys)).astype(np.uint64))
            drawn = self._law(start).draw(source, _bound(source, labels, [np.zeros(len(labels), np.int64)]))
            for step, values in zip(steps.tolist(), drawn.reshape(len(steps), len(keys)), strict=True):
                self._correlated(values, memory, step)
            start += len(steps)

    def _correlated(self, drawn: Integers, memory: Floats, step: int) -> Integers:
        """Return the noise of a step of which z has been drawn."""
        if not self.rows:
            return drawn
        values = drawn.astype(np.float64)
        self.factor.correct(values, memory[: self.factor.rows], step)
        if self.span != 1:
            values = self._summed(values, memory[self.factor.rows :], step)
        return whole_counts(values, self.fraction)

    def _summed(self, values: Floats, memory: Floats, step: int) -> Floats:
        memory[0] += values  # whole numbers below 2^53, see `calibration`: exact
        if self.span is not None:
            oldest = memory[1 + step % self.span]
            memory[0] -= oldest
            oldest[:] = values
        total: Floats = memory[0]
        return total

    def _law(self, step: int) -> DiscreteGaussian | DiscreteLaplace:
        level = 1.0 if self.span == 1 else float(self.factor.levels[step - 1])
        return self.law if isinstance(self.law, DiscreteLaplace) or level == 1 else _levelled(self.law.sigma, level)

    def _square(self, step: int) -> float:
        """Return the variance of the noise at `step` for sigma 1."""
        squares = _squares(self.factor, self.span)
        return float(squares[min(step, len(squares)) - 1])

    def variance(self, step: int) -> float:
        """Return the variance of the noise on counts at `step`, with that of rounding to whole counts."""
        rounding = ROUNDING_VARIANCE if self.fraction else 0.0
        return math.ldexp(self.law.variance, -2 * self.fraction) * self._square(step) + rounding

    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        """Return z with Pr[noise > z] <= tail: docs/proofs/keyed_counts.md, Lemma 3."""
        square = self._square(step)
        if isinstance(self.law, DiscreteLaplace):
            return _laplace_quantile(self.law, round(square) * number, tail)
        norm = math.sqrt(square * number)
        normal = -self.law.sigma * norm * float(special.ndtri(tail * (1 - _SMALL_PART)))
        if math.isinf(normal):
            raise ValueError(f"delta must be larger: no threshold is exceeded by noise with a probability of {tail}")
        if self.factor.exact and normal >= self.law.sigma * norm:  # a sum of discrete Gaussians is one
            return math.ceil(normal - 0.5)
        moved = norm * float(self.factor.levels[-1])
        corrections = 0.0 if self.factor.exact else moved * math.sqrt(step * number)
        rounded = moved * _rounded(tail)
        return max(0, math.ceil(math.ldexp(normal + rounded + corrections, -self.fraction) + number / 2 - 1))


def correlated_noise(factor: Factor, sigma: float, fraction: int) -> ToeplitzNoise:
    """Return noise of sums over all steps, from Gaussian z of that sigma on a grid of 2^-fraction."""
    return ToeplitzNoise(factor, _levelled(sigma, 1.0), fraction, None)


@dataclass(frozen=True)
class NodeNoise(RunningNoise):
    """The noise of nodes of a tree over steps: that of a prefix is the sum of a few nodes.

    Attributes:
        horizon: steps of the run.
        law: of a node.
    """

    horizon: int
    law: SymmetricNoise

    @abstractmethod
    def nodes(self, step: int) -> Sequence[tuple[int, int, int]]:
        """Return height, position and sign of the nodes that add up to the first `step` steps."""

    @abstractmethod
    def most_nodes(self, step: int) -> int:
        """Return how many nodes a prefix of at most `step` steps has at most."""

    def walks(self, step: int) -> int:
        """Return how many times as likely one of the steps 1 .. `step` is beyond a bound as the worst one, at most."""
        return step

    @override
    def variance(self, step: int) -> float:
        return len(self.nodes(step)) * self.law.variance

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:
        return sum_quantile([(self.law, _few(len(self.nodes(step)) * number))], math.log(2 * tail))


@dataclass(frozen=True)
class TreeNoise(NodeNoise):
    """A k-ary tree with subtraction: every node is drawn again from its label, so that nothing is remembered.

    Nodes are used before their data are there, so they are not bound to totals: docs/proofs/counters.md, section 3.
    """

    law: DiscreteLaplace

    rows = 0

    @override
    def nodes(self, step: int) -> Sequence[tuple[int, int, int]]:
        return list(prefix_nodes(best_base(self.horizon), step))

    @override
    def advance(
        self, memory: Floats, step: int, keys: Words, facts: Sequence[Integers], source: NoiseSource
    ) -> Integers:
        noise = np.zeros(len(keys), np.int64)
        for height, node, sign in self.nodes(step):
            noise += sign * self.law.draw(source, _labels(keys, height << 48 | node))
        return noise

    @override
    def most_nodes(self, step: int) -> int:
        base = best_base(self.horizon)
        return base // 2 * tree_height(base, step)

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1) -> int:  # at any step: few quantiles are computed
        return _laplace_quantile(self.law, _few(self.most_nodes(self.horizon) * number), tail)


@dataclass(frozen=True)
class CompleteTreeNoise(NodeNoise):
    """A tree of complete nodes, each bound to the totals after its last step: docs/proofs/counters.md, section 2.

    Attributes:
        base: children of a node.
    """

    base: int

    @property
    @override
    def rows(self) -> int:
        # In row h the noise at the last step that is a multiple of base^h. A step is in as many nodes.
        return len(plain_digits(self.base, self.horizon))

    @override
    def nodes(self, step: int) -> Sequence[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for height, digit in reversed(list(enumerate(plain_digits(self.base, step)))):
            end = step // self.base**height
            found += [(height, position, 1) for position in range(end - digit, end)]
        return found

    @override
    def advance(
        self, memory: Floats, step: int, keys: Words, facts: Sequence[Integers], source: NoiseSource
    ) -> Integers:
        height = next(h for h in itertools.count() if step % self.base ** (h + 1))  # of the node that ends here
        noise = memory[height] + self.law.draw(source, _bound(source, _labels(keys, step), facts))
        memory[: height + 1] = noise  # whole numbers: the caller keeps them below 2^53
        return np.asarray(noise, np.int64)

    @override
    def most_nodes(self, step: int) -> int:
        return _most_digits(self.base, step)

    @override
    def walks(self, step: int) -> int:
        return min(step, 2 * (step // self.base + 1))  # steps that differ in their last digit count twice: Levy


LENGTHS = (10, 147, 2_916, 171_366, 5_315_625, 1 << 40)
"""Of epochs where the horizon is not known."""


@dataclass(frozen=True)
class EpochNoise(RunningNoise):
    """One noise after the other, the last one again and again: noise grows with the steps done, not with a horizon.

    Past epochs count with their noise at their ends: docs/proofs/counters.md, section 5.

    Attributes:
        epochs: the noise of each.
        lengths: the steps of each.
    """

    epochs: tuple[RunningNoise, ...]
    lengths: tuple[int, ...]

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
    def advance(
        self, memory: Floats, step: int, keys: Words, facts: Sequence[Integers], source: NoiseSource
    ) -> Integers:
        *_, (number, epoch, _, done) = self.begun(step)
        own = memory[1 : 1 + epoch.rows]
        noise = epoch.advance(own, done, keys, facts, source.derive("epoch", number)) + memory[0].astype(np.int64)
        if done == self.lengths[min(number, len(self.lengths) - 1)]:
            memory[0], memory[1:] = noise, 0.0
        return np.asarray(noise)

    @override
    def variance(self, step: int) -> float:
        return sum(epoch.variance(done) for _, epoch, _, done in self.begun(step))

    @override
    def tail_bound(self, step: int, tail: float, number: int = 1, *, so_far: bool = False) -> int:
        """Return z with Pr[sum of the noise of so many keys > z] <= tail: at `step`, or at any one step `so_far`."""
        if any(found := self.laws(step, largest=so_far)):
            sums = [[(law, _few(each * number)) for law, each in laws] for laws in found]
            return max(sum_quantile(laws, math.log(2 * tail)) for laws in (sums if so_far else sums[-1:]))
        begun = [(epoch, done) for _, epoch, _, done in self.begun(step)]
        return sum(epoch.tail_bound(done, tail / len(begun), number) for epoch, done in begun)

    def tail_up_to(self, step: int, tail: float) -> int:
        """Return z with Pr[noise at any of the steps 1 .. `step` > z] <= tail; it grows with the step."""
        begun = [(epoch, done) for _, epoch, _, done in self.begun(step)]
        log_share = math.log(2 * tail / len(begun))
        if any(most := self.laws(step, largest=True)):
            walks = [epoch.walks(done) for epoch, done in begun if isinstance(epoch, NodeNoise)]
            return max(sum_quantile(laws, log_share - math.log(each)) for laws, each in zip(most, walks, strict=True))
        return sum(epoch.tail_bound(done, tail / len(begun) / done) for epoch, done in begun)

    def laws(self, step: int, *, largest: bool = False) -> list[list[tuple[SymmetricNoise, int]]]:
        """Return of how many nodes of each law the noise is, up to each epoch; nothing where it is not of nodes.

        Of the last steps of all epochs but the last one, and of `step`; or of any steps up to these, at most.
        """
        past: list[tuple[SymmetricNoise, int]] = []
        found = []
        for _, epoch, _, done in self.begun(step):
            if isinstance(epoch, NodeNoise):
                ends = (epoch.law, len(epoch.nodes(done)))
                found.append([*past, (epoch.law, epoch.most_nodes(done)) if largest else ends])
                past.append(ends)
        return found or [[]]


def tree_nodes(horizon: int) -> int:
    """Return in how many nodes of `TreeNoise` one step is."""
    return tree_height(best_base(horizon), horizon)


@functools.lru_cache(maxsize=64)
def _squares(factor: Factor, span: int | None) -> Floats:
    return factor.squares(span)


@functools.lru_cache(maxsize=256)
def _levelled(sigma: float, level: float) -> DiscreteGaussian:
    """Return the law of z at a level: docs/proofs/keyed_counts.md, section 2."""
    return DiscreteGaussian(math.sqrt((sigma**2 - SMOOTHING) / level**2 + SMOOTHING))


@functools.lru_cache(maxsize=4096)
def _laplace_quantile(law: DiscreteLaplace, number: int, tail: float) -> int:
    """Return z with Pr[sum of so many > z] <= tail."""
    if number == 1:
        return max(0, law.tail_quantile(tail))
    return NoiseSum.laplace([(law.scale, number)]).quantile(math.log(tail))


def _few(number: int) -> int:
    """Return a number of noises, rounded up to six leading binary digits: few quantiles are computed."""
    rest = max(0, number.bit_length() - 6)
    return -(-number >> rest) << rest


def _rounded(tail: float) -> float:
    """Return what noise that is rounded to integers may add to continuous noise, per unit of the L2 norm."""
    return _ROUNDED_SIGMA * math.sqrt(-2 * math.log(tail * _SMALL_PART))


def _bound(source: NoiseSource, labels: Words, facts: Sequence[Integers]) -> Words:
    """Return labels that depend on all facts."""
    for fact in facts:
        labels = source.bind(labels, fact)
    return labels


def _labels(keys: Words, low: int | Words) -> Words:
    labels = np.empty((len(keys), 2), np.uint64)
    labels[:, 0] = keys
    labels[:, 1] = low
    return labels


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
        base = max(2, round(horizon ** (1 / height)) - 1)
        bases.append(next(base for base in itertools.count(base) if base**height > horizon))
    return min(bases, key=lambda base: len(plain_digits(base, horizon)) ** 2 * _most_digits(base, horizon))


_LARGEST_BASE = 99


def tree_height(base: int, horizon: int) -> int:
    """Return the least h with (base^h - 1) / 2 >= horizon."""
    return next(h for h in itertools.count(1) if (base**h - 1) // 2 >= horizon)


def digits(base: int, step: int) -> list[int]:
    """Return the balanced digits of a step, lowest first."""
    found = []
    while step:
        digit = (step + base // 2) % base - base // 2
        found.append(digit)
        step = (step - digit) // base
    return found


def prefix_nodes(base: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Return height, position and sign of the nodes that add up to the first `step` steps: balanced digits."""
    numbers, position = digits(base, step), 0
    for height in reversed(range(len(numbers))):
        position, number = position * base, numbers[height]
        for node in range(min(position, position + number), max(position, position + number)):
            yield height, node, 1 if number > 0 else -1
        position += number


def total_digits(base: int, horizon: int) -> int:
    """Return the sum over steps 1 .. horizon of the absolute values of their balanced digits."""
    side, total = base // 2, 0
    period = side * (side + 1)
    for level in range(tree_height(base, horizon)):
        unit = base**level
        quotients, rest = divmod(horizon + unit // 2 + 1, unit)  # steps -unit//2 .. horizon share digits in runs

        def below(count: int) -> int:
            """Return the sum of |digit| of the quotients 0 .. count - 1."""
            cycles, part = divmod(count, base)
            return cycles * period + sum(abs((q + side) % base - side) for q in range(part))

        total += unit * below(quotients) + rest * (below(quotients + 1) - below(quotients))
    return total


@functools.lru_cache(maxsize=256)
def best_base(horizon: int) -> int:
    """Return the odd base with the least mean variance over the horizon."""
    bases = range(3, _LARGEST_BASE + 1, 2)
    return min(bases, key=lambda base: tree_height(base, horizon) ** 2 * total_digits(base, horizon))
