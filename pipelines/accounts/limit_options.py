"""Limits and their periods as text, and the data set of a run that names none."""

from __future__ import annotations

import argparse
import math
import re

DEFAULT_DATASET = "default"

RULE = "must be year, month, or whole days such as 30d"
DAYS = re.compile(r"([1-9]\d{0,4})d")


def limit(text: str) -> tuple[float, float | None]:
    """Return the largest epsilon, and the largest delta, that are allowed; without a delta, None."""
    try:
        epsilon, *rest = (float(part) for part in text.split(","))
        (delta,) = rest or (None,)
    except ValueError:
        epsilon, delta = math.nan, None
    if not (0 < epsilon < math.inf) or not (delta is None or 0 <= delta < 1):
        rule = "must be EPSILON or EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1)"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
    return epsilon, delta


def period(text: str) -> str:
    """Return a period as it is written down.

    Raises:
        ValueError: it is none.

    >>> period("year"), period("30d")
    ('year', '30d')
    """
    if text not in ("year", "month") and not DAYS.fullmatch(text):
        raise ValueError(RULE)
    return text
