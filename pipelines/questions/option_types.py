"""Durations as people write them on a command line or in Beam YAML. Imports no Beam."""

from __future__ import annotations

from collections.abc import Mapping

UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""How many seconds there are in each unit."""

RULE = "must be a number of seconds, or a number with its unit, such as 500ms, 90s, 30m, 1h, 1d or 1w"


def seconds(text: str) -> float:
    """Return how many seconds a text means.

    Raises:
        ValueError: it is neither a number nor one with a unit.

    >>> seconds("90"), seconds("1.5h"), seconds("1d")
    (90.0, 5400.0, 86400.0)
    """
    number = text.rstrip("".join(UNITS))
    try:
        return float(number) * UNITS[text.removeprefix(number)]
    except (ValueError, KeyError):
        raise ValueError(RULE) from None
