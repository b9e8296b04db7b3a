"""The part of a failure probability that falls to each of endlessly many events."""

import math

SERIES = 2.11  # more than the sum of 1 / (n ln^2 n) from n = 2 on


def series_share(number: int) -> float:
    """Return the share of a failure probability that falls to number = 1, 2, ..; all together at most 1."""
    return 1 / (SERIES * (number + 1) * math.log(number + 1) ** 2)
