"""CountedTopK: the largest of many counts in each of many releases, found among noisy counts of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.free_gap.measured_top_k import RankedCounts
from privstream.mechanisms.free_gap.noisy_top_k import gaps_between, leaders
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee


@dataclass(frozen=True, kw_only=True)
class CountedTopK:
    """Publishes the `top` largest of many noisy counts in each release: which they are, their gaps, how large they are.

    All counts get noise at once, and what is published is a function of the noisy counts. So one budget pays for
    ranks, gaps and estimates together, and neither `top` nor the number of counts costs anything; the number of counts
    that a person changes does.

    Where a person may change many of the counts of a release, with delta > 0, all counts of a release have a part of
    their noise in common (`shared`). It changes no rank and no gap, and what is left for each count is smaller.

    Privacy:
        Unit: one person over all releases, who changes at most `items_per_release` counts of a release, each by at most
        1, all up or all down, in at most `releases` releases. (epsilon, delta)-DP for all releases together. Public:
        the parameters, the number and order of the counts, and when there are releases.

    Accuracy:
        With probability 1 - beta all estimates of a release are within `measure_error(beta)`, and then no count that
        was left out exceeds a published one by more than `selection_error(size, beta)`. An interval of 95% is that of
        the noise of any one count; of those that noise brought to the top fewer hold.

    Attributes:
        epsilon: privacy loss of all releases together, > 0.
        delta: in [0, 1). With 0 noise is discrete Laplace.
        size: number of counts in each release, > `top`.
        top: number of counts to publish in each release, >= 1.
        releases: releases that one person takes part in at most, >= 1.
        items_per_release: counts of a release that one person changes at most, >= 1.
        neighbouring: "add_remove" or "replace_one" person.

    Raises:
        ValueError, TypeError: a parameter is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> CountedTopK(epsilon=1.0, size=5, top=2).release([30, 900, 40, 700, 50], SeededNoise(1)).indices.tolist()
        [1, 3]

    Source: docs/proofs/top_k_windows.md, section 5; noise in common: Lebeda (2024, arXiv 2408.06853).
    """

    epsilon: float
    size: int
    delta: float = 0.0
    top: int = 1
    releases: int = 1
    items_per_release: int = 1
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        for name in ("top", "releases", "items_per_release"):
            checks.integer(name, getattr(self, name), minimum=1)
        if checks.integer("size", self.size, minimum=1) <= self.top:
            raise ValueError(f"size must be > top {self.top}, got {self.size}")
        _ = self.counts

    @cached_property
    def counts(self) -> KeyedCounts:
        """The counts of one release; contributions are those of all."""
        return KeyedCounts(
            epsilon=self.epsilon,
            delta=self.delta,
            contributions=self.releases * self.items_per_release,
            public_keys=True,
            neighbouring=self.neighbouring,
        )

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of all releases together."""
        one = self.releases == 1
        return replace(
            self.counts.guarantee,
            limits=(
                f"Each person takes part in at most {self.releases:,} release{'' if one else 's'} and changes at most "
                f"{self.items_per_release:,} of its counts, each by at most 1, all up or all down.",
            ),
            proof="docs/proofs/top_k_windows.md, section 5",
            caveats=(KEYED_NOISE,),
        )

    @property
    def stddevs(self) -> tuple[float, float]:
        """Standard deviations of the noise of a count by itself, and of that which all of a release have in common."""
        return self.counts.stddev(1), 0.0

    @property
    def estimate_variance(self) -> float:
        """Variance of the noise on each count; the estimates of those that noise brought to the top are too large."""
        own, common = self.stddevs
        return own**2 + common**2

    def measure_error(self, beta: float) -> float:
        """Return by how much some count of a release is off with probability at most beta: the bound of estimates."""
        return float(self.counts.law.noises[0].tail_bound(1, checks.probability("beta", beta) / (2 * self.size)))

    def selection_error(self, counts: int, beta: float) -> float:
        """Return by how much one of `counts` left out exceeds a published one with probability at most beta."""
        return 2.0 * self.counts.law.noises[0].tail_bound(1, checks.probability("beta", beta) / (2 * counts))

    def count(self, counts: ArrayLike, noise: NoiseSource) -> KeyedRows:
        """Publish all counts of one release, in their order: those whose largest `release` publishes.

        Args:
            counts, noise: as for `release`.

        Raises:
            ValueError: there are not `size` counts.
        """
        true = np.asarray(counts, np.int64)
        if true.shape != (self.size,):
            raise ValueError(f"counts must have shape ({self.size},), got {true.shape}")
        keys = np.arange(self.size, dtype=np.uint64)
        given = KeyedStep(step=1, keys=keys, counts=true)
        return self.counts.step(self.counts.initial_state(keys), given, noise)[1]

    def release(self, counts: ArrayLike, noise: NoiseSource, beta: float = 0.05) -> RankedCounts:
        """Publish the largest counts of one release.

        Args:
            counts: true counts in a public order, integers, shape (size,); private.
            noise: the noise of this release; give every release a source of its own.
            beta: probability that an error bound of the release does not hold, in (0, 1); changes nothing else.

        Raises:
            ValueError: there are not `size` counts, or `beta` is out of range.
        """
        rows = self.count(counts, noise)
        order = leaders(rows.counts, self.top + 1)
        chosen = order[: self.top]
        bounds = np.full(self.top, self.measure_error(beta))
        gaps = np.asarray(gaps_between(rows.counts, order), np.int64)
        estimates = rows.counts[chosen].astype(np.float64)
        ends = (np.maximum(estimates + side * rows.count_margin, 0.0) for side in (-1, 1))
        return RankedCounts(chosen, gaps, estimates, bounds, *ends)
