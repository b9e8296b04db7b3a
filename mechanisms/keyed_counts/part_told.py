"""Which part of all contributions limits leave out, by noisy totals: numbers and words that need nothing but numpy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats

ASSUMED = "what limits leave out is like what counts, and little of it is of people with far more than they allow"
"""What full numbers and their intervals rest on: of one person, only so much of what limits leave out is told."""

TOLD_IN_PART = "of a person with far more than limits allow, only a part is in this"

_SHOWN = 1.0, 4.0  # standard deviations of noise from which on something seems to be there, and all of it is
NORMAL = 1.96  # standard deviations of an interval of 95%, to one side


def firmly(deviations: ArrayLike) -> Floats:
    """Return how much of an estimate is taken to be so, in [0, 1], that is so many standard deviations from nothing.

    It rises evenly from 0 at one to 1 at four of them: firm shrinkage (Gao and Bruce 1997), without a jump.
    """
    return np.clip((np.asarray(deviations) - _SHOWN[0]) / (_SHOWN[1] - _SHOWN[0]), 0.0, 1.0)


def part_left_out(kept: float, left_out: float, variances: tuple[float, float]) -> tuple[float, float, float] | None:
    """Return which part of all contributions limits leave out, and the ends of its interval of 95%, all in [0, 1].

    The interval is that of Fieller (1954) for a quotient. None where noise is too large to tell anything.

    Privacy: post-processing.

    Args:
        kept: sum of the noisy totals of what counts.
        left_out: sum of those of what limits leave out.
        variances: of the noise of both sums.
    """
    came, square = kept + left_out, NORMAL**2
    of_kept, of_left_out = (square * variance for variance in variances)
    slope = came**2 - of_kept - of_left_out
    if came <= 0 or slope <= 0:
        return None
    middle, constant = left_out * came - of_left_out, left_out**2 - of_left_out
    root = math.sqrt(max(0.0, middle**2 - slope * constant))
    part, lower, upper = (
        min(1.0, max(0.0, end)) for end in (left_out / came, (middle - root) / slope, (middle + root) / slope)
    )
    return part, lower, upper
