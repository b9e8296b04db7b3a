"""Limits as text."""

from __future__ import annotations

import argparse
import math


def limit(text: str) -> tuple[float, float]:
    """Return the largest epsilon and the largest delta that are allowed."""
    try:
        epsilon, delta = (float(part) for part in text.split(","))
    except ValueError:
        epsilon = delta = math.nan
    if not (0 < epsilon < math.inf and 0 <= delta < 1):
        rule = "must be EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), such as 4,1e-5"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
    return epsilon, delta
