"""Which share of all contributions the limits of a person drop: three noisy numbers of a run, and an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.discrete import WideGaussian
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import SMALLEST_SIGMA, SMOOTHING
from privstream.mechanisms.privacy.noisy_counts import rounded_up

DROPPED_SHARE = 1 / 20
"""Of the budget, a squared shift, that the share costs."""

CLIP = 5
"""Of a person, so many limits are counted as dropped at most."""

DROPPED, COUNTED, BEYOND = 0, 1, 2

_PARTS = (0.5, 0.1, 0.4)  # of the squared shift, for each number
_EXCESS = 8.0  # limits beyond the clip that the upper end allows for, on average, of a person who may be there
_SURELY = 1.0  # standard deviations from which on there are people beyond the clip: one false alarm in six runs
_NORMAL = 1.96  # of an interval of 95%, to one side
_WIDEST = 0.5  # an interval that is wider says nothing
_SEEN = 3.0  # standard deviations without which the sum of all contributions is noise
_LEAST = 0.01  # a lower end without an upper one says nothing below


class Share(NamedTuple):
    """The share of contributions that limits drop, with the ends of its interval of 95%; all in [0, 1].

    `upper` is None where some people have more than is counted as dropped: then `share` is at least so much.
    """

    share: float
    lower: float
    upper: float | None


@dataclass(frozen=True)
class DroppedShare:
    """Releases, once or in increments, what limits drop of the contributions of all people, and what they count.

    Of a person, dropped contributions are clipped at `CLIP` limits of the whole run, whichever windows they are in. How
    many people have more is released too, so that a share that the clip makes too small is known to be that.

    Privacy: the numbers are Gaussian, with a squared shift of `shift` ** 2 for all that one person does, in one release
    or in increments: docs/proofs/limits_of_people.md, Theorem 3. Noise is a function of the key, the label of the
    reading and the true number.

    Args:
        limit: contributions that count of a person in the run, at most.
        shift: that one person may cause, in standard deviations of all numbers together, > 0.
        largest: contributions that a person can have, by public parameters; None if there is no such number.

    Raises:
        ValueError, TypeError: an argument is out of range; there is nothing to drop.
    """

    limit: int
    shift: float
    largest: int | None = None

    def __post_init__(self) -> None:
        checks.integer("limit", self.limit, minimum=1)
        checks.positive("shift", self.shift)
        if self.largest is not None and checks.integer("largest", self.largest, minimum=1) <= self.limit:
            raise ValueError(f"largest must be above {self.limit}, the limit, got {self.largest}")
        _ = self.laws

    @cached_property
    def clip(self) -> int:
        """What is counted as dropped of a person, at most."""
        most = CLIP * self.limit
        return most if self.largest is None else min(most, self.largest - self.limit)

    @property
    def clips(self) -> bool:
        """Whether a person can have more than that."""
        return self.largest is None or self.largest > self.limit + self.clip

    @cached_property
    def laws(self) -> tuple[WideGaussian, ...]:
        """The noise of each number; the last one is there only where a person can have more than is counted."""
        parts = _PARTS if self.clips else (_PARTS[0] + _PARTS[2], _PARTS[1])
        moved = (self.clip, self.limit, 1)
        return tuple(
            WideGaussian(rounded_up(max(SMALLEST_SIGMA, math.sqrt(most**2 / (self.shift**2 * part) + SMOOTHING))))
            for most, part in zip(moved, parts, strict=False)
        )

    def of_people(self, came: Integers, counted: Integers, before: Integers) -> tuple[Integers, Integers]:
        """Return the three exact numbers that people add, int64 (3,), and what each has dropped now.

        Args:
            came: contributions of each person, the counted ones too, int64 (n,).
            counted: those that count.
            before: what each has dropped before, at most one more than `clip`; the second result is to be added to it.
        """
        now = np.minimum(before + (came - counted), self.clip + 1)
        added = np.minimum(now, self.clip) - np.minimum(before, self.clip)
        beyond = (now > self.clip) & (before <= self.clip)
        return np.array([added.sum(), counted.sum(), beyond.sum()], np.int64), now - before

    def release(self, reading: int, sums: Integers, noise: NoiseSource) -> Integers:
        """Return the numbers with noise, int64 (3,): of all that came since the reading before.

        Args:
            reading: 1, 2, ..
            sums: the exact numbers, int64 (3,).
            noise: of this run, for these numbers alone.
        """
        # Laws are in the label: of one number, noise of two scales would give it away.
        laws = repr((self.limit, self.clip, [law.sigma for law in self.laws]))
        source, noisy = noise.derive("dropped share", laws), np.zeros(3, np.int64)
        for place, law in enumerate(self.laws):
            total = sums[place : place + 1]
            labels = np.array([[reading, place]], np.uint64)
            noisy[place] = total[0] + law.draw(source, source.bind(labels, total))[0]
        return noisy

    def share(self, noisy: Integers, readings: int = 1) -> Share | None:
        """Return the share, from the sum of what so many readings released; None where noise hides it.

        The interval is that of Fieller (1954) for a quotient. Its upper end allows for people with more than the clip
        whom noise may hide, each with eight limits more on average. No private release can rule out a few with very
        much more.

        Privacy: post-processing.
        """
        variances = [readings * law.variance for law in self.laws]
        found = _quotient(float(noisy[DROPPED]), float(noisy[COUNTED]), variances[DROPPED], variances[COUNTED])
        if readings < 1 or found is None:
            return None
        share, lower, upper = found
        if self.clips:
            beyond, of_beyond = float(noisy[BEYOND]), variances[BEYOND]
            if beyond > _SURELY * math.sqrt(of_beyond):
                return Share(share, lower, None) if lower >= _LEAST else None
            each = _EXCESS * self.limit
            dropped = noisy[DROPPED] + each * max(0.0, beyond)
            widened = variances[DROPPED] + each**2 * of_beyond
            more = _quotient(float(dropped), float(noisy[COUNTED]), widened, variances[COUNTED])
            if more is None:
                return None
            upper = max(upper, more[2])
        return Share(share, lower, upper) if upper - lower <= _WIDEST else None

    @classmethod
    def of(cls, limit: int, shift: float, largest: float | None) -> Self | None:
        """Return what releases the share of a run whose noise has such a shift in all; None where nothing is dropped.

        `largest`: what a person can have by public parameters, perhaps `math.inf`.
        """
        if largest is not None and largest <= limit:
            return None
        most = None if largest is None or math.isinf(largest) else int(largest)
        return cls(limit, shift * math.sqrt(DROPPED_SHARE), most)


def _quotient(
    dropped: float, counted: float, of_dropped: float, of_counted: float
) -> tuple[float, float, float] | None:
    """Return dropped / (dropped + counted) and the ends of its interval, in [0, 1]; None where noise hides the sum."""
    came, square = dropped + counted, _NORMAL**2
    slope = came**2 - square * (of_dropped + of_counted)
    if came <= _SEEN * math.sqrt(of_dropped + of_counted):
        return None
    middle, constant = dropped * came - square * of_dropped, dropped**2 - square * of_dropped
    root = math.sqrt(max(0.0, middle**2 - slope * constant))
    share, lower, upper = (
        min(1.0, max(0.0, end)) for end in (dropped / came, (middle - root) / slope, (middle + root) / slope)
    )
    return share, lower, upper
