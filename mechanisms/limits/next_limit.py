"""The limit of a later period from what an earlier one has published: post-processing of public numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.limits.suggested_limits import LaterRun

FACTOR = 2
"""A limit is at most so many times the one before, and at least one of so many parts of it: farther away, what was
published of one limit says little of another."""

STEPS = 8
"""Limits that are compared on either side."""

LEAST_LEFT = 1e-3
"""Share of all contributions that is taken to be left out at least: a noisy number may be 0 or less."""


class PeriodTold(NamedTuple):
    """What one period has published of its limit, all of it with noise.

    Attributes:
        limit: contributions of a person in the period, at most.
        kept: contributions that count, of all people.
        left_out: those that limits leave out.
        used_up: people who have used up the limit by the end of the period.
        row: mean number of people of the largest items in a window, without limits.
    """

    limit: int
    kept: float
    left_out: float
    used_up: float
    row: float


def next_limit(told: PeriodTold, run: LaterRun) -> int:
    """Return the limit with which most is predicted to be shown of a period that is like the one before.

    A person who has used up the limit would have one contribution more with a limit larger by one: so what limits leave
    out falls at first by `used_up` for each. It is taken to fall exponentially, as it does where the numbers of people
    have an exponential tail. Limits up to twice as large or half as large are compared by the errors and the finds
    that `LaterRun` predicts.

    Privacy: post-processing; a function of what is published and of public parameters, on every machine the same.

    Args:
        told: of the period before.
        run: of the next period.

    Raises:
        ValueError: the limit is not a whole number >= 1.
    """
    limit = checks.integer("limit", told.limit, minimum=1)
    total = max(1.0, told.kept + max(0.0, told.left_out))
    left = max(told.left_out, LEAST_LEFT * total)
    rate = max(0.0, told.used_up) / left
    factors = np.exp(np.linspace(-math.log(FACTOR), math.log(FACTOR), 2 * STEPS + 1))
    limits = np.unique(np.maximum(1, np.rint(limit * factors)))
    shares = np.minimum(1.0, left / total * np.exp(np.minimum(-(limits - limit) * rate, 700.0)))
    found = run.predict(limits, shares, max(1.0, told.row))
    return int(limits[int(np.argmax([one.worth for one in found]))])
