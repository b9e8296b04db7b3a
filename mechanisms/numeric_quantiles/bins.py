"""The public bins that numbers are sorted into: equal widths, or equal ratios."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SCALES = ("linear", "log")
LARGEST_RESOLUTION = 1 << 16


@dataclass(frozen=True)
class Bins:
    """So many bins [edge, next edge) from `low` to `high`; the last one includes `high`.

    Attributes:
        low: the first edge, finite; > 0 with equal ratios.
        high: the last edge, finite and > `low`.
        resolution: number of bins, from 2 to 65,536.
        scale: "linear" for bins of equal width, "log" for bins whose edges have equal ratios.

    Raises:
        ValueError, TypeError: a field breaks its rule, or bins are so narrow that floats cannot tell their edges apart.
    """

    low: float
    high: float
    resolution: int
    scale: str

    def __post_init__(self) -> None:
        low, high = checks.real("low", self.low), checks.real("high", self.high)
        checks.integer("resolution", self.resolution, minimum=2, maximum=LARGEST_RESOLUTION)
        if checks.one_of("scale", self.scale, SCALES) == "log" and low <= 0:
            raise ValueError(f"low must be > 0 with a log scale, got {self.low}")
        if high <= low:
            raise ValueError(f"high must be > low, got {self.high} <= {self.low}")
        if not np.isfinite(high / low if self.scale == "log" else high - low):
            raise ValueError(f"low and high must not be so far apart, got {self.low} and {self.high}")
        if np.any(np.diff(self.edges) <= 0):
            raise ValueError(f"resolution must be smaller for edges that floats tell apart, got {self.resolution}")

    @cached_property
    def edges(self) -> Floats:
        """All edges, shape (resolution + 1,), increasing."""
        return self.at(np.arange(self.resolution + 1.0))

    def at(self, places: Floats) -> Floats:
        """Return the values at places from 0 to `resolution`, counted in bins."""
        parts = places / self.resolution
        low, high = float(self.low), float(self.high)
        values = low * (high / low) ** parts if self.scale == "log" else low + (high - low) * parts
        return np.where(parts >= 1, high, np.minimum(values, high))

    def count(self, values: ArrayLike) -> Integers:
        """Return how many values each bin has, int64 (resolution,); see `places`."""
        return np.bincount(self.places(values), minlength=self.resolution)

    def places(self, values: ArrayLike) -> Integers:
        """Return the bin of each value; those below `low` are in the first one, those above `high` in the last one.

        Raises:
            ValueError: a value is not a number.
        """
        given = np.asarray(values, np.float64)
        if np.isnan(given).any():
            raise ValueError("values must be numbers, got nan")
        return np.clip(np.searchsorted(self.edges, given, side="right") - 1, 0, self.resolution - 1)
