"""How much noise counts and sums of keys need, and from which noisy count on a key is published."""

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

NOISE_SHARE = 0.75
"""Of delta, for Gaussian noise; the rest is for keys that one person makes known."""

LIST_SHARE = 0.2
"""Of the budget, a squared shift, for the list of different people."""

MOST_PURE = 16
"""Contributions up to which discrete Laplace noise is tried: with more, Gaussian noise is smaller."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one unit can do, and what is asked: all that noise depends on beside epsilon and delta."""

    since_start: bool  # whether answers are about all steps so far, and not about one window each
    horizon: int  # steps of the run
    contributions: int  # of one person in all; since the start each to another key
    largest: int | None  # value of a contribution to a sum, or None without sums
    min_people: int | None  # that a key must have; None if the list of keys is public
    listed: int = 0  # keys of a person on a list of different people; 0 without one
    dropped: bool = False  # whether the share of contributions that limits drop is released

    @property
    def steps(self) -> int:
        """Steps that noise is correlated over."""
        return self.horizon if self.since_start else 1

    @property
    def of_counts(self) -> float:
        """The part of the budget, a squared shift, that the share of dropped contributions leaves."""
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
    if delta == 0 or not (bounds.listed or bounds.dropped or bounds.contributions > MOST_PURE):
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
    """Return the noise on one answer, of which a change of the data is seen as a shift of so many deviations."""
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
