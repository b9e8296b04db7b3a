"""How much noise counts and sums of keys need, and from which noisy counts on a key is published, or found."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from privstream.mechanisms.keyed_counts.dropped import DROPPED_SHARE
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.running import (
    LARGEST_HORIZON,
    IndependentNoise,
    RunningNoise,
    ToeplitzNoise,
    laplace_tree,
)
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, SlackCurve, gaussian_sigma, largest_shift
from typing_extensions import override

NOISE_SHARE = 0.75
"""Of delta, for Gaussian noise; the rest is for keys that one person makes known."""

LIST_SHARE = 0.2
"""Of the budget, a squared shift, for the list of different people."""

MOST_PURE = 16
"""Contributions up to which discrete Laplace noise is tried: with more, Gaussian noise is smaller."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one unit can do, and what is asked: all that noise depends on apart from epsilon and delta."""

    since_start: bool  # whether answers are about all steps so far, and not about one window each
    horizon: int  # steps of the run
    contributions: int  # of one person in all; since the start each to another key
    largest: int | None  # value of a contribution to a sum, or None without sums
    min_people: int | None  # that a key must have; None if the list of keys is public
    listed: int = 0  # keys per person on the list of different people; 0 without one
    dropped: bool = False  # whether the share of contributions that limits drop is released

    @property
    def steps(self) -> int:
        """Steps that noise is correlated over."""
        return self.horizon if self.since_start else 1

    @property
    def of_counts(self) -> float:
        """The part of the budget, a squared shift or epsilon, that the share of dropped contributions leaves."""
        return 1 - DROPPED_SHARE if self.dropped else 1.0

    @property
    def values(self) -> tuple[tuple[int, float], ...]:
        """Largest value and share of the budget of counts, and then of sums."""
        share = (1 - LIST_SHARE if self.listed else 1.0) * self.of_counts
        return ((1, share),) if self.largest is None else ((1, share / 2), (self.largest, share / 2))


@dataclass(frozen=True)
class KeyLaw:
    """Noise, thresholds and the privacy curve."""

    noises: tuple[RunningNoise, ...]  # of counts, and of sums if there are any
    curve: GaussianCurve | PureDp  # of the noise alone
    slack: float  # probability with which a key that one person makes known may be published, in the whole run
    bounds: Bounds

    @property
    def whole_curve(self) -> GaussianCurve | PureDp | SlackCurve:
        """All (epsilon, delta) of the run."""
        return SlackCurve(curve=self.curve, slack=self.slack) if self.slack else self.curve

    @property
    def tail(self) -> float:
        """What `slack` leaves for one contribution."""
        return self.slack / self.bounds.contributions

    def threshold(self, step: int) -> int | None:
        """Return the least noisy count at which a key is published: docs/proofs/keyed_counts.md, section 4.

        Tests at a step have a part of delta that grows as counts do. None if the list of keys is public.
        """
        if self.bounds.min_people is None:
            return None
        steps = self.bounds.steps
        share = 2 * step / (steps * (steps + 1))
        return self.bounds.min_people + self.noises[0].tail_bound(step, self.tail * share) + 1


@functools.lru_cache(maxsize=64)
def calibrate(epsilon: float, delta: float, bounds: Bounds) -> KeyLaw:
    """Return the law with the smallest threshold at the last step or, for public keys, the smallest deviation.

    Raises:
        ValueError: no noise that can be drawn is enough.
    """
    return min(
        laws(epsilon, delta, bounds),
        key=lambda law: (law.threshold(bounds.steps) or 0, law.noises[0].variance(bounds.steps)),
    )


def laws(epsilon: float, delta: float, bounds: Bounds) -> list[KeyLaw]:
    """Return the laws that are enough: Gaussian noise if there is a delta; discrete Laplace noise for few contributions
    or where there is none.

    Raises:
        ValueError: the noise cannot be drawn.
    """
    found, slack = [], 0.0 if bounds.min_people is None else delta
    if delta > 0:
        own = slack * (1 - NOISE_SHARE)
        shift = largest_shift(epsilon, delta - own)
        noises = tuple(gaussian_noise(shift * math.sqrt(part), largest, bounds) for largest, part in bounds.values)
        found.append(KeyLaw(noises, GaussianCurve(shift=shift), own, bounds))
    if delta == 0 or not (bounds.listed or bounds.contributions > MOST_PURE):
        with suppress(ValueError) if found else nullcontext():
            noises = tuple(_laplace_noise(epsilon * part, largest, bounds) for largest, part in bounds.values)
            found.append(KeyLaw(noises, PureDp(epsilon), slack, bounds))
    return found


def _laplace_noise(epsilon: float, largest: int, bounds: Bounds) -> RunningNoise:
    """Return discrete Laplace noise, per window or in a tree."""
    scale = bounds.contributions * largest / epsilon
    if bounds.steps == 1:
        return IndependentNoise(DiscreteLaplace(math.nextafter(scale, math.inf)))
    try:
        return laplace_tree(bounds.steps, scale, combined=True)
    except ValueError:
        raise ValueError(_too_large(largest, bounds)) from None


def gaussian_noise(shift: float, largest: int, bounds: Bounds) -> RunningNoise:
    """Return the noise on one answer, in which a change of the data is a shift of `shift` deviations."""
    norm = largest * math.sqrt(bounds.contributions)
    if bounds.steps == 1:
        changes = bounds.contributions if largest == 1 else 1
        return IndependentNoise(DiscreteGaussian(gaussian_sigma(shift, norm, changes)))
    if bounds.steps > LARGEST_HORIZON:
        raise ValueError(f"horizon must be <= {LARGEST_HORIZON}, got {bounds.steps}")
    try:
        return ToeplitzNoise.of(bounds.steps, shift, norm=norm, touched=bounds.contributions, largest=largest)
    except ValueError:
        raise ValueError(_too_large(largest, bounds)) from None


def _too_large(largest: int, bounds: Bounds) -> str:
    return f"max_value must be smaller for noise over {bounds.steps:,} windows, got {largest:,}"


LENGTHS = (1, 4, 16, 64)
"""Windows of blocks."""

MOST_LISTED = 32
"""Keys per person on the list of different people."""

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
        """Return how many people an item needs in each of a number of windows, wherever they lie, for an even chance.

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
    """Return the steps after which a list is read, the last of the run among them."""
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
