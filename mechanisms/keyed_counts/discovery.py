"""When a key that nobody knew is found: blocks of windows of several lengths, and the noisy sums that they need."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, laws
from privstream.mechanisms.keyed_counts.key_noise import ToeplitzNoise

MOST_SCALES = 9
"""Lengths of blocks: 1, 2, 4, .. up to 256 windows."""

MOST_PURE = 16
"""Contributions up to which discrete Laplace noise is tried: with more, Gaussian noise is smaller."""

_OVERLAP = 4  # parts of a block by which the next one of its length begins later
_PRUNED = 0.02  # of the noise that a test allows for: a key with less in a block is not tested, and costs no noise


@dataclass(frozen=True)
class Scale:
    """Blocks of one length. They end at the multiples of `stride`, the first one with window `windows`.

    Attributes:
        windows: of a block.
        stride: windows between the ends of two blocks.
        least: contributions in a block without which a key is not tested.
        threshold: the least noisy sum over a block with which a key is found.
    """

    windows: int
    stride: int
    least: int
    threshold: int

    def is_due(self, step: int) -> bool:
        """Return whether a block ends with this step."""
        return step >= self.windows and step % self.stride == 0

    def people(self, lasting: int, margin: float = 0.0) -> float:
        """Return how many people an item needs in each of so many windows, wherever they lie, for an even chance.

        `margin`: for a better one, how low the noise of a window may be with this probability.
        """
        overlap = min(
            max(
                min(end, lasting) - max(end - self.windows, 0)
                for end in range(first, lasting + self.windows, self.stride)
            )
            for first in range(1, self.stride + 1)
        )
        return (self.threshold + margin * math.sqrt(self.windows)) / overlap


@dataclass(frozen=True)
class DiscoveryLaw(KeyLaw):
    """Noise, thresholds of all scales, and the privacy curve.

    Attributes:
        scales: by length, the shortest first.
    """

    scales: tuple[Scale, ...]


def scales_of(horizon: int | None) -> int:
    """Return how many scales a run of so many windows has."""
    return MOST_SCALES if horizon is None else min(MOST_SCALES, horizon.bit_length())


@functools.lru_cache(maxsize=64)
def calibrate_discovery(epsilon: float, delta: float, bounds: Bounds, number: int) -> DiscoveryLaw:
    """Return the law whose thresholds, of so many scales, have the least product.

    Raises:
        ValueError: no noise that can be drawn is enough.
    """
    found, refused = [], []
    for law in laws(epsilon, delta, bounds):
        try:
            found.append(_with_scales(law(), number))
        except ValueError as error:
            refused.append(error)
    if not found:
        raise refused[-1]
    return min(found, key=lambda law: functools.reduce(lambda product, scale: product * scale.threshold, law.scales, 1))


def _with_scales(law: KeyLaw, number: int) -> DiscoveryLaw:
    """Return a law with the thresholds of its scales: docs/proofs/keyed_counts.md, section 9.

    Raises:
        ValueError: it is not tried.
    """
    noise = law.noises[0]
    assert isinstance(noise, ToeplitzNoise) and law.tail is not None
    if noise.is_laplace and law.bounds.contributions > MOST_PURE:
        raise ValueError("max_contributions must be smaller for discrete Laplace noise")
    scales = tuple(_scale(noise, law.tail / number, law.bounds, 1 << level) for level in range(number))
    return DiscoveryLaw(law.noises, law.curve, law.tail, law.bounds, scales)


def _scale(noise: ToeplitzNoise, tail: float, bounds: Bounds, windows: int) -> Scale:
    """Return the blocks of one length; `tail` is what a contribution may cost at this scale."""
    stride = max(1, windows // _OVERLAP)
    blocks = windows // stride  # in which a contribution lies
    summed = noise.summed(windows)
    most = min(bounds.contributions, windows)
    needed = [own + summed.exceeded(windows, own * tail / blocks) + 1 for own in {1, most}]
    pruned = math.ceil(_PRUNED * max(needed)) if windows > 1 else int(_PRUNED * max(needed))
    least = max(pruned, ((bounds.min_people or 1) - 1) * windows) + 1
    return Scale(windows, stride, least, least - 1 + max(needed))
