"""Durations in words, for messages and guarantees."""

from __future__ import annotations

SECOND = 1_000_000
UNITS = (("day", 86_400 * SECOND), ("hour", 3_600 * SECOND), ("minute", 60 * SECOND))


def in_words(micros: int) -> str:
    """Return a duration of so many microseconds in the largest unit of which it is a whole number, or in seconds.

    >>> in_words(30 * 86_400 * SECOND), in_words(90 * 60 * SECOND), in_words(2_500_000)
    ('30 days', '90 minutes', '2.5 seconds')
    """
    unit, length = next(
        ((unit, length) for unit, length in UNITS if micros >= length and micros % length == 0), ("second", SECOND)
    )
    return f"{micros / length:,.12g} {unit}{'s' * (micros != length)}"
