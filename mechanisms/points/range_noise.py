"""The noise of range counts: a tree over time for every dyadic interval, drawn only where it is asked for."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.counters import kary_tree
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.gaussian_curve import sensitivity_sigma

Integers = NDArray[np.int64]

_TREES = ((5, 2), (7, 3), (9, 4), (13, 5), (15, 6), (17, 7), (19, 8), (21, 9))  # (k, h) of epochs, pure
_LEVELS = (5, 9, 17, 25)  # of epochs with Gaussian noise; the last one is repeated, as above
DIGEST_BYTES = 16
NO_HISTORY = bytes(DIGEST_BYTES)


class TimeNode(NamedTuple):
    """An interval of steps whose noise is in a prefix sum, added (sign 1) or subtracted (-1).

    `end` is the last step of the interval, for nodes whose noise is bound to what happened until then, else 0.
    """

    epoch: int
    level: int
    position: int
    sign: int
    end: int


@dataclass(frozen=True)
class Epoch:
    """A tree over so many steps. base 2: binary; odd: k-ary with subtraction. `height`: nodes that contain a step."""

    base: int
    height: int
    length: int
    law: DiscreteLaplace | DiscreteGaussian

    def nodes(self, number: int, before: int, done: int) -> Iterator[TimeNode]:
        """Return the nodes of the prefix of `done` steps of epoch `number`, which comes after `before` steps."""
        if self.base == 2:
            for level in range(done.bit_length()):
                if done >> level & 1:
                    yield TimeNode(number, level, (done >> level) - 1, 1, before + (done >> level << level))
            return
        digits = kary_tree.digits(self.base, done)
        position = 0
        for level in reversed(range(len(digits))):
            position *= self.base
            digit = digits[level]
            for away in range(abs(digit)):
                index = position + away if digit > 0 else position - away - 1
                yield TimeNode(number, level, index, 1 if digit > 0 else -1, 0)
            position += digit

    def most_nodes(self, done: int) -> int:
        """Return how many nodes a prefix of at most `done` steps has at most."""
        if self.base == 2:
            return max(1, (done + 1).bit_length() - 1)  # as many as 2^m - 1 <= done has ones
        return self.base // 2 * kary_tree.tree_height(self.base, done)


@dataclass(frozen=True, kw_only=True)
class RangeNoise:
    """Noise for prefix sums over time in every dyadic interval; a draw is a function of labels alone.

    Attributes:
        epsilon, delta: of the whole run.
        horizon: steps of the run, or None: epochs then follow each other, each longer than the last.
        levels: dyadic intervals that contain a point, H + 1.
        impulses: how many times one change moves the count of such an interval, by 1 each time.
        unit: changes that make up a unit of privacy.
    """

    epsilon: float
    delta: float
    horizon: int | None
    levels: int
    impulses: int
    unit: int

    def epoch(self, number: int) -> Epoch:
        """Return the tree of epoch 0, 1, .."""
        return _epoch(self, number)

    def epochs(self, step: int) -> Iterator[tuple[int, Epoch, int, int]]:
        """Return number, tree, steps before it and steps done, of each epoch that has begun when `step` is done."""
        number, before = 0, 0
        while before < step:
            epoch = self.epoch(number)
            yield number, epoch, before, min(step - before, epoch.length)
            number, before = number + 1, before + epoch.length

    def nodes(self, step: int) -> list[TimeNode]:
        """Return the nodes whose noise is in the prefix of `step` steps."""
        return [node for number, epoch, before, done in self.epochs(step) for node in epoch.nodes(number, before, done)]

    def counts(self, step: int) -> list[list[tuple[DiscreteLaplace | DiscreteGaussian, int]]]:
        """Return for each epoch up to `step` how many noises of each law are in any prefix that ends in it, at most."""
        epochs = [(epoch, done) for _, epoch, _, done in self.epochs(step)]
        ends = [(epoch.law, sum(1 for _ in epoch.nodes(0, 0, epoch.length))) for epoch, _ in epochs]
        return [[*ends[:number], (epoch.law, epoch.most_nodes(done))] for number, (epoch, done) in enumerate(epochs)]

    def variance(self, step: int) -> float:
        """Return the variance of the noise of one interval at `step`."""
        return sum(self.epoch(node.epoch).law.variance for node in self.nodes(step))

    def draw(self, intervals: Integers, step: int, history: dict[int, bytes], source: NoiseSource) -> Integers:
        """Return the noise of intervals (by number) at `step`; `history` has a digest for the end of each node."""
        total = np.zeros(len(intervals), np.int64)
        labels = intervals.astype(np.uint64)
        for node in self.nodes(step):
            bound = history[node.end] if node.end else b""
            drawn = source.derive("node", node.epoch, node.level, node.position, bound)
            total += node.sign * self.epoch(node.epoch).law.draw(drawn, labels)
        return total

    def remember(self, history: dict[int, bytes], step: int, digest: bytes) -> dict[int, bytes]:
        """Return the digests that are needed after `step`, whose own one is `digest`."""
        ends = {node.end for node in self.nodes(step) if node.end}
        return {end: digest if end == step else history[end] for end in sorted(ends)}


@lru_cache(maxsize=256)
def _epoch(noise: RangeNoise, number: int) -> Epoch:
    if noise.delta > 0:
        if noise.horizon is None:
            height = _LEVELS[min(number, len(_LEVELS) - 1)]
            length = 1 << (height - 1)
        else:
            height, length = noise.horizon.bit_length(), noise.horizon
        sensitivity = noise.unit * math.sqrt(noise.impulses * noise.levels * height)
        sigma = sensitivity_sigma(noise.epsilon, noise.delta, sensitivity)
        return Epoch(2, height, length, DiscreteGaussian(sigma))
    if noise.horizon is None:
        base, height = _TREES[min(number, len(_TREES) - 1)]
        length = base // 2 * base ** (height - 1)
    else:
        base, length = kary_tree.best_base(noise.horizon), noise.horizon
        height = kary_tree.tree_height(base, length)
    scale = noise.unit * noise.impulses * noise.levels * height / noise.epsilon
    return Epoch(base, height, min(length, LARGEST_HORIZON), DiscreteLaplace(math.nextafter(scale, math.inf)))


def next_digest(digest: bytes, points: Integers, weights: Integers) -> bytes:
    """Return what stands for the history so far and the changes of one more step."""
    parts = (digest, points.astype("<i8").tobytes(), weights.astype("<i8").tobytes())
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES, person=b"range history").digest()
