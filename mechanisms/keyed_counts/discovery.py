"""When a key that nobody knew is found: blocks of windows of several lengths, and the noisy sums that they need."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from privstream.mechanisms.keyed_counts.calibration import LIST_SHARE, Bounds, KeyLaw, laws
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.noise.running import IndependentNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, gaussian_sigma
from scipy import special
from typing_extensions import override

LENGTHS = (1, 4, 16, 64)
"""Windows of blocks."""

MOST_LISTED = 32
"""Keys of a person on the list of different people."""

_EARLY = 0.1  # of its budget that each reading but the last has
_OVERLAP = 4  # parts of a block by which the next one of its length begins later
_PRUNED = 0.02  # of the noise that a test allows for: a key with less in a block is not tested, and costs no noise


@dataclass(frozen=True)
class Scale:
    """Blocks of one length. They end at the multiples of `stride`, the first one with window `windows`."""

    windows: int  # of a block
    stride: int  # windows between the ends of two blocks
    least: int  # contributions in a block without which a key is not tested
    threshold: int  # the least noisy sum over a block with which a key is found

    def is_due(self, step: int) -> bool:
        """Return whether a block ends with this step."""
        return step >= self.windows and step % self.stride == 0

    def people(self, lasting: int, margin: float = 0.0) -> float:
        """Return how many people an item needs in each of so many windows, wherever they lie, for an even chance.

        `margin`: for a better one, how low the noise of a window may be with this probability.
        """
        apart = abs(self.windows - lasting)
        overlap = min(self.windows, lasting) - max(0, self.stride - apart) // 2  # at the worst place
        return (self.threshold + margin * math.sqrt(self.windows)) / overlap


@dataclass(frozen=True)
class PeopleList:
    """How many different people have a key is tested at some steps; a person counts for a limited number of keys."""

    noises: tuple[IndependentNoise, ...]  # of each test, independent, on the number of all people until then
    steps: tuple[int, ...]  # increasing
    least: tuple[int, ...]  # people without whom a key is not tested at these steps
    thresholds: tuple[int, ...]  # the least noisy numbers of people with which a key is found then

    def people(self, probability: float) -> float:
        """Return how many people an item needs in each window of a run, others in each, to be found: the best test
        counts, with normal noise."""
        margin = float(special.ndtri(probability))
        tests = zip(self.noises, self.thresholds, self.steps, strict=True)
        return min((needed + margin * math.sqrt(noise.variance(1))) / step for noise, needed, step in tests)


@dataclass(frozen=True)
class DiscoveryLaw(KeyLaw):
    """Noise, thresholds of all scales, and the privacy curve."""

    scales: tuple[Scale, ...]  # by length, the shortest first
    people: PeopleList | None = None  # the list of different people

    @override
    def threshold(self, step: int) -> int:
        return self.scales[0].threshold


@functools.lru_cache(maxsize=64)
def calibrate_discovery(epsilon: float, delta: float, bounds: Bounds) -> DiscoveryLaw:
    """Return the law whose thresholds have the least product: docs/proofs/keyed_counts.md, section 9.

    Raises:
        ValueError: no noise that can be drawn is enough.
    """
    found = [_with_tests(law) for law in laws(epsilon, delta, bounds)]
    return min(found, key=lambda law: math.prod(scale.threshold for scale in law.scales))


def _with_tests(law: KeyLaw) -> DiscoveryLaw:
    """Return a law with the thresholds of its scales and its list, which has as much of delta as one scale."""
    noise, bounds = law.noises[0], law.bounds
    assert isinstance(noise, IndependentNoise)
    lengths = [windows for windows in LENGTHS if windows <= bounds.horizon]
    share = law.tail / (len(lengths) + (1 if bounds.listed else 0))
    scales = tuple(_scale(noise, share, bounds, windows) for windows in lengths)
    people = _people_list(law, share) if bounds.listed else None
    return DiscoveryLaw(law.noises, law.curve, law.slack, bounds, scales, people)


def list_steps(horizon: int) -> tuple[int, ...]:
    """Return the steps after which a list is read, in a run of so many: the last one is one of them."""
    return tuple(sorted({max(1, round(horizon / 2)), horizon}))


def _people_list(law: KeyLaw, tail: float) -> PeopleList:
    """Return the list of a run: docs/proofs/keyed_counts.md, section 10.

    `tail` is what a contribution to blocks would cost: all of them together have this part of delta.

    Raises:
        ValueError: its noise cannot be drawn.
    """
    assert isinstance(law.curve, GaussianCurve)
    bounds, steps = law.bounds, list_steps(law.bounds.horizon)
    parts = (*[_EARLY] * (len(steps) - 1), 1 - _EARLY * (len(steps) - 1))
    shift, norm = law.curve.shift * math.sqrt(LIST_SHARE * bounds.of_counts), math.sqrt(bounds.listed)
    sigmas = (gaussian_sigma(shift * math.sqrt(part), norm, bounds.listed) for part in parts)
    noises = tuple(IndependentNoise(DiscreteGaussian(sigma)) for sigma in sigmas)
    each = tail * bounds.contributions / (bounds.listed * len(steps))
    needed = [2 + noise.tail_bound(1, each) for noise in noises]
    least = tuple(max(int(_PRUNED * number) + 1, bounds.min_people or 1) for number in needed)
    thresholds = tuple(few - 1 + number for few, number in zip(least, needed, strict=True))
    return PeopleList(noises, steps, least, thresholds)


def _scale(noise: IndependentNoise, tail: float, bounds: Bounds, windows: int) -> Scale:
    """Return the blocks of one length; `tail` is what a contribution may cost at this scale."""
    stride = max(1, windows // _OVERLAP)
    blocks = windows // stride  # in which a contribution lies
    summed = noise.summed(windows)
    most = min(bounds.contributions, windows)
    needed = [own + summed.tail_bound(windows, own * tail / blocks) + 1 for own in {1, most}]
    pruned = math.ceil(_PRUNED * max(needed)) if windows > 1 else int(_PRUNED * max(needed))
    least = max(pruned, ((bounds.min_people or 1) - 1) * windows) + 1
    return Scale(windows, stride, least, least - 1 + max(needed))
