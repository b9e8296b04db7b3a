"""Intervals that say nothing, since they cover (nearly) all that values can be: the rule, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NOTHING_KNOWN = "nothing is known here"
NEARLY = 0.95
"""Such a part of the range from `low` to `high`, as bins divide it, is nearly all of it."""


def covers_all(lower: Any, upper: Any, parameters: Mapping[str, Any]) -> Any:
    """Tell which intervals cover the whole range of a run, or nearly; none where the range is not known.

    Args:
        lower, upper: ends of intervals, float64 of one shape.
        parameters: of the run, as its guarantee file has them: `low`, `high` and perhaps `scale`.

    Returns:
        bool, of that shape.
    """
    low, high = parameters.get("low"), parameters.get("high")
    if low is None or high is None:
        return np.zeros(np.shape(lower), bool)
    scaled = np.log if parameters.get("scale") == "log" else np.float64
    return scaled(upper) - scaled(lower) >= NEARLY * (scaled(high) - scaled(low))


def in_words(row: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a row for people: one whose interval says nothing has words in place of its estimate."""
    nothing = hasattr(row, "estimate") and hasattr(row, "lower") and covers_all(row.lower, row.upper, parameters)
    return row._replace(estimate=NOTHING_KNOWN) if nothing else row
