"""SharedCounts: counts of people who may be in most of them, with one noise in all beside that of each."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.correlated import ROUNDING_VARIANCE, whole_counts
from privstream.mechanisms.noise.discrete import WideGaussian
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import SMOOTHING, GaussianCurve, PrivacyCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from scipy import special

WORTH_SHARING = 0.95
"""Noise that counts of a window share is taken where the deviation of one count is at most so many times as large."""

FRACTION = 8
"""Fractional bits of the grid on which noise is drawn: far finer than the shared noise, as the proof needs."""

LARGEST_CELLS = 1 << 30
_LEAST_GRID_VARIANCE = 4.0  # tau^2 of the proof, in units of the grid
_PARTS = np.linspace(0.0, 0.5, 501)  # of a person that the shared noise hides, which are tried out
_ROUNDED = 1e-12  # relative, of parameters of wide laws


@dataclass(frozen=True, kw_only=True)
class SharedCounts:
    """Publishes a known number of counts, each once, with Gaussian noise: one in all of them, and one in each.

    A person who is in all counts moves all of them by 1, which noise that all have in common hides at little cost. So
    noise of d counts is (sqrt(d) + 1) / 2 times that of one where independent noise is sqrt(d) times. The noise of a
    mean of n counts does not fall below the part in common.

    Privacy:
        Unit: one person, added or removed, who moves each count by at most 1, all in one direction, and at most
        `contributions` of them. (epsilon, delta)-DP for all `cells` counts together, and for any part of them; what is
        counted may depend on all counts published before. Public: the parameters. The noise of a count is bound to it;
        that in common is drawn once for each stream. A repetition with other data is a second release, which costs no
        more than the first one.

    Accuracy:
        `stddev(n)` of the mean of n counts is exact, up to what rounding to integers adds to means;
        `sum_tail_bound(n, tail)` bounds the noise of their sum.

    Attributes:
        epsilon: finite and > 0.
        delta: in (0, 1).
        cells: number of counts of the whole run, from 2 to 2^30.
        contributions: counts that one person moves at most, from 1 to `cells`.
        horizon: steps of the run, for its guarantee.
        streams: streams, each with so many counts and a noise in common of its own, that one person takes part in at
            most; the guarantee is for all. At most 2^30 counts in all of these.

    Raises:
        ValueError, TypeError: a field is out of range or of another type, or noise that is wide enough for the proof
            cannot be drawn.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = SharedCounts(epsilon=1.0, delta=1e-6, cells=24, contributions=24, horizon=24)
        >>> round(counts.stddev(), 1), round(4.2247 * 24**0.5, 1)
        (12.5, 20.7)
        >>> noisy = counts.release("window", 1, np.array([500]), SeededNoise(1))
        >>> bool(abs(noisy[0] - 500) < 70)
        True

    Source: Lebeda, Better Gaussian Mechanism using Correlated Noise (2024, arXiv 2408.06853);
    docs/proofs/keyed_counts.md, section 14, which adds limits, streams and adaptive inputs.
    """

    epsilon: float
    delta: float
    cells: int
    contributions: int
    horizon: int
    streams: int = 1

    @classmethod
    def possible(cls, **arguments: Any) -> SharedCounts | None:
        """Return such counts, or None where these parameters are out of range or leave nothing to share."""
        try:
            return cls(**arguments)
        except ValueError:
            return None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta)
        streams = checks.integer("streams", self.streams, minimum=1)
        checks.integer("cells", self.cells, minimum=2, maximum=LARGEST_CELLS // streams)
        if checks.integer("contributions", self.contributions, minimum=1) > self.cells:
            raise ValueError(f"contributions must be <= cells {self.cells}, got {self.contributions}")
        checks.integer("horizon", self.horizon, minimum=1)
        if self.variances[1] == 0:
            raise ValueError(f"contributions must be larger for noise that counts share, got {self.contributions}")
        if not is_wide_enough(*self.variances, self.cells):
            raise ValueError(f"epsilon must be smaller for noise that counts share, got {self.epsilon}")
        _ = self._laws  # noise that cannot be drawn is refused now

    @cached_property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of the run."""
        return GaussianCurve(shift=largest_shift(self.epsilon, self.delta))

    @cached_property
    def variances(self) -> tuple[float, float]:
        """Variance of the noise of a count by itself, and of the one in common, whose sum is least."""
        shift = largest_shift(self.epsilon, self.delta) / math.sqrt(self.streams)
        return least_variances(shift, self.cells, self.contributions)

    @cached_property
    def _laws(self) -> tuple[WideGaussian, WideGaussian]:
        """Both laws, in units of the grid."""
        return laws_on_grid(*self.variances)

    @property
    def best_seen(self) -> int:
        """In how many counts of a stream the noise hides a person least: `largest_square`, in whole counts."""
        own, common = self.variances
        ones = round((own + self.cells * common) / (2 * common))
        return min(self.contributions, ones)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of all counts together."""
        of_each = "" if self.streams == 1 else f" of each of at most {self.streams:,} streams"
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(f"A person is in at most {self.contributions:,} of {self.cells:,} counts{of_each}.",),
            public=("all parameters",),
            proof="docs/proofs/keyed_counts.md, Theorem 7",
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
            horizon=self.horizon,
            curve=self.curve,
        )

    def release(self, group: str | bytes, step: int, counts: Integers, noise: NoiseSource) -> Integers:
        """Return counts, int64 (n,), with noise; `group` and `step` say which ones they are, and are public.

        The same source must be given for all counts of the run: it has the noise in common.
        """
        source = self._source(noise)
        own = source.derive("own", group, step)
        return self._noisy(source, own, own.bind(len(counts), counts), counts)

    def release_steps(self, steps: Integers, counts: Integers, noise: NoiseSource) -> Integers:
        """Return one count of each of these steps, int64 (n,), with noise; of one stream, whose noise is given.

        The same source must be given for all counts of the stream, and another one for another stream.
        """
        source = self._source(noise)
        own = source.derive("own")
        return self._noisy(source, own, own.bind(steps.astype(np.uint64), counts), counts)

    def _source(self, noise: NoiseSource) -> NoiseSource:
        """Return noise that no counts with other parameters draw. (One stream is what there was at first.)"""
        values = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        if self.streams == 1:
            del values["streams"]
        return noise.derive("shared counts", json.dumps(list(values.values())))

    def _noisy(self, source: NoiseSource, own: NoiseSource, labels: Words, counts: Integers) -> Integers:
        """Return counts with noise of their own, by label, and with that in common, which `source` has."""
        alone, common = self._laws
        drawn = alone.draw(own, labels) + common.draw(source.derive("common"), 1)
        return counts + whole_counts(drawn.astype(np.float64), FRACTION)

    @property
    def stddevs(self) -> tuple[float, float]:
        """Standard deviations of the noise of a count by itself, with rounding, and of that in common."""
        own, common = (math.ldexp(law.variance, -2 * FRACTION) for law in self._laws)
        return math.sqrt(own + ROUNDING_VARIANCE), math.sqrt(common)

    def stddev(self, number: int = 1) -> float:
        """Return the standard deviation of the noise on the mean of so many counts."""
        own, common = self.stddevs
        return math.sqrt(own**2 / number + common**2)

    def sum_tail_bound(self, number: int, tail: float) -> int:
        """Return z with Pr[noise on the sum of so many counts > z] <= tail, and the same below."""
        own, common = self._laws
        normal = -math.sqrt(number * own.variance + number**2 * common.variance) * float(special.ndtri(tail))
        return max(0, math.ceil(math.ldexp(normal + number + 1, -FRACTION) + number / 2 - 1))

    def difference_bound(self, tail: float) -> int:
        """Return z with |difference of two counts - that without noise| <= z where the noises of both by themselves are
        within what each one is beyond with a probability of `tail`, above it and below; that in common has no part.
        """
        own, _ = self._laws
        normal = -math.sqrt(own.variance) * float(special.ndtri(tail))
        return math.floor(2 * math.ldexp(normal + 1, -FRACTION) + 1)  # each count is rounded by 1/2 at most


def largest_square(own: float, common: float, cells: int, contributions: float) -> float:
    """Return the largest v (own I + common 1 1')^-1 v of vectors v of zeros and ones, at most so many, rounded up.

    With k ones it is (k - k^2 r) / own, r = common / (own + cells common): a parabola. So it is also the largest mean
    of that over groups of counts in which a person moves so many on the mean.
    """
    ratio = common / (own + cells * common)
    ones = float(contributions) if ratio == 0 else min(float(contributions), 1 / (2 * ratio))
    return (ones - ones**2 * ratio) / own


def least_variances(shift: float, cells: int, contributions: float) -> tuple[float, float]:
    """Return the variances of the noise of a count by itself and of that in common, whose sum is least.

    A person who moves so many of these counts, on the mean of several groups of them, is seen as `shift` in each; the
    second one is 0 where that is best.
    """
    left = contributions * (1 - 2 * _PARTS) + cells * _PARTS**2  # of a person, if so much of each is seen in common
    best = int(np.argmin(np.sqrt(left) + _PARTS))
    root, part = math.sqrt(left[best]), float(_PARTS[best])
    own, common = root * (root + part), part * (root + part)
    worst = largest_square(own, common, cells, contributions) * (1 + _ROUNDED)
    return own * worst / shift**2, common * worst / shift**2


def is_wide_enough(own: float, common: float, cells: int) -> bool:
    """Tell whether noise of these variances is as wide on the grid as the proof needs: tau there."""
    return math.ldexp(own * common / (own + cells * common), 2 * FRACTION) >= _LEAST_GRID_VARIANCE


def laws_on_grid(own: float, common: float) -> tuple[WideGaussian, WideGaussian]:
    """Return the laws of the noise of a count by itself and of that in common, in units of the grid.

    Raises:
        ValueError: noise as wide as that cannot be drawn.
    """
    alone, shared = (math.ldexp(variance, 2 * FRACTION) * (1 + _ROUNDED) for variance in (own, common))
    return WideGaussian(math.sqrt(alone + SMOOTHING)), WideGaussian(math.sqrt(shared))
