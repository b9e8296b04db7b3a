"""Which share of all contributions the limits per person drop: three noisy numbers of a run, and an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, SymmetricNoise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, gaussian_sigma

DROPPED_SHARE = 1 / 10
"""Of the budget, a squared shift or a pure epsilon, that the share costs."""

KNOTS = (1, 2, 5)
"""Limits at which people are counted by what they drop; more counts as the last."""
WHOLE = 1024
"""A person at a knot, in the units that are added up: one between two knots is parted between them."""

_COUNTED_PART = 0.05  # of the squared shift, for what counts
_COUNTED_EPSILON = 0.2  # of a pure epsilon
_SURELY = 1.75  # standard deviations from which on there are people at a knot: one false alarm in 25
_PERHAPS = 2.5  # the same at the last one, where people who drop more would be
_NORMAL = 1.96  # of an interval of 95%, to one side
_WIDEST = 0.5  # an interval that is wider says nothing
_SEEN = 3.0  # standard deviations of what is surely no noise
_LEAST = 0.01  # a lower end without an upper one says nothing below


class Share(NamedTuple):
    """The share of contributions that limits drop, with the ends of its interval of 95%; all in [0, 1].

    `upper` is None where some people have more than is counted as dropped: then the share is at least `share`.
    """

    share: float
    lower: float
    upper: float | None


@dataclass(frozen=True)
class DroppedShare:
    """Releases, once or several times, how many people drop how much, and what limits count of all people.

    What a person drops in the whole run, whichever windows it is in, is a point between two of the `knots`, and counts
    for each of these by how near it is: people at knots times these are all that is dropped, but for what is beyond the
    last one. That people are there is seen too.

    Privacy: the numbers of all readings are Gaussian, with a squared shift of `shift` ** 2 in all for what one person
    does, or have Laplace noise of a pure `epsilon`: docs/proofs/limits_of_people.md, Theorem 3. Noise is a function of
    the key, the label of the reading and the true number.
    """

    limit: int  # contributions per person that count in the run, at most
    shift: float  # that a person may cause, in standard deviations of all numbers of all readings together
    largest: int | None = None  # contributions that a person can have, by public parameters, if they say so
    readings: int = 1  # how often the numbers are released, each time of all that came until then
    epsilon: float = 0.0  # of all numbers of all readings, if it is not 0; there is no shift then

    def __post_init__(self) -> None:
        if self.largest is not None and self.largest <= self.limit:
            raise ValueError(f"largest must be above {self.limit}, the limit, got {self.largest}")
        _ = self.laws

    @cached_property
    def knots(self) -> Integers:
        """Dropped contributions per person at each knot, increasing, int64 (knots,)."""
        all_of = np.array(KNOTS, np.int64) * self.limit
        return all_of if self.largest is None else np.unique(np.minimum(all_of, self.largest - self.limit))

    @property
    def clip(self) -> int:
        """What is counted as dropped per person, at most."""
        return int(self.knots[-1])

    @cached_property
    def laws(self) -> tuple[SymmetricNoise, ...]:
        """The noise of what counts, and of the people at each knot, in each reading."""
        part = _COUNTED_EPSILON if self.epsilon else _COUNTED_PART
        moved = ((self.limit, part), *((WHOLE, 1 - part) for _ in self.knots))
        if self.epsilon:
            epsilon = self.epsilon / self.readings
            return tuple(DiscreteLaplace(math.nextafter(most / (epsilon * part), math.inf)) for most, part in moved)
        shift = self.shift / math.sqrt(self.readings)
        return tuple(DiscreteGaussian(gaussian_sigma(shift * math.sqrt(part), most)) for most, part in moved)

    def of_people(self, came: Integers, counted: Integers, before: Integers) -> tuple[Integers, Integers]:
        """Return what people add to the exact numbers, int64 (1 + knots,), and what each has dropped now.

        `came` are contributions of each person, the `counted` ones too; `before` is what each has dropped before, at
        most `clip`, to which the second result is to be added; all int64 (n,).
        """
        now = np.minimum(before + (came - counted), self.clip)
        return np.append(counted.sum(), self._at_knots(now) - self._at_knots(before)), now - before

    def _at_knots(self, dropped: Integers) -> Integers:
        """Return how many people are at each knot, in units of 1 / WHOLE, int64 (knots,)."""
        gaps = np.diff(self.knots, prepend=0)[:, None]
        climbed = np.clip(dropped - self.knots[:, None] + gaps, 0, gaps) * WHOLE // gaps
        found: Integers = -np.diff(climbed.sum(axis=1), append=0)
        return found

    def release(self, reading: int, sums: Integers, noise: NoiseSource) -> Integers:
        """Return the exact numbers of all that came until reading 1, 2, .. with noise, int64 (1 + knots,).

        `noise` is that of this run, for these numbers alone.
        """
        # Laws are in the label: of one number, noise of two scales would give it away.
        laws = repr((self.limit, self.knots.tolist(), self.laws))
        source, noisy = noise.derive("dropped share", laws), np.zeros_like(sums)
        for place, law in enumerate(self.laws):
            total = sums[place : place + 1]
            labels = np.array([[reading, place]], np.uint64)
            noisy[place] = total[0] + law.draw(source, source.bind(labels, total))[0]
        return noisy

    def share(self, noisy: Integers, readings: int = 1) -> Share | None:
        """Return the share, from what a number of readings released: the sum of the last ones of all periods.

        None where noise hides it. People at knots above the last one where there surely are any do not count; the upper
        end of the interval allows for those whom noise may hide at the next one, or at all of them if there are none
        anywhere. No private release can rule out a few with very much more.

        Privacy: post-processing.
        """
        periods = math.ceil(readings / self.readings)
        of_counted, spread = (math.sqrt(periods * law.variance) for law in self.laws[:2])
        counted, people, spread = float(noisy[0]), noisy[1:] / WHOLE, spread / WHOLE
        if readings < 1 or counted <= _SEEN * of_counted:
            return None

        def share_of(dropped: float) -> float:
            return max(0.0, dropped) / (max(0.0, dropped) + counted)

        last = int(np.flatnonzero(people > _SURELY * spread).max(initial=-1))
        some = max(last, 0) + 1
        most = last + 2 if last >= 0 else len(people)
        own, above = self.knots[:some], self.knots[some:most]
        dropped, error = float(own @ people[:some]), _NORMAL * spread * float(np.linalg.norm(own))
        share = share_of(dropped)
        by_counted = _NORMAL * of_counted / counted * share * (1 - share)
        sure = max(0, int(np.flatnonzero(people > _SEEN * spread).max(initial=0))) + 1  # more people only add
        least = float(own[:sure] @ people[:sure])
        off = _NORMAL * spread * float(np.linalg.norm(own[:sure]))
        lower = max(0.0, share_of(least) - math.hypot(share_of(least) - share_of(least - off), by_counted))
        clips = self.largest is None or self.largest > self.limit + self.clip  # whether a person can have more
        if clips and last >= len(people) - 2 and people[-1] > _PERHAPS * spread:
            return Share(share, lower, None) if lower >= _LEAST else None
        hidden = float(above @ people[some:most].clip(0))
        error = math.hypot(error, _NORMAL * spread * float(np.linalg.norm(above)))
        upper = min(1.0, share + math.hypot(share_of(dropped + hidden + error) - share, by_counted))
        return Share(share, lower, upper) if upper - lower <= _WIDEST else None

    @classmethod
    def of(cls, limit: int, whole: GaussianCurve | PureDp, largest: float | None) -> Self | None:
        """Return what releases the share of a run whose noise is, in all, as `whole`; None where nothing is dropped.

        `largest`: what a person can have by public parameters, perhaps `math.inf`.
        """
        if largest is not None and largest <= limit:
            return None
        most = None if largest is None or math.isinf(largest) else int(largest)
        if isinstance(whole, PureDp):
            return cls(limit, 0.0, most, epsilon=whole.at_epsilon * DROPPED_SHARE)
        return cls(limit, whole.shift * math.sqrt(DROPPED_SHARE), most)
