"""What predecessor mechanisms are asked, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms.points.dynamic_points import Integers, Updates

NO_POINT = 0
NO_DISTANCE = -1


@dataclass(frozen=True, eq=False)
class PredecessorStep:
    """Input of a step: updates, and the queries to be answered after them.

    Attributes:
        updates: insertions and, where they are allowed, deletions, in order; private.
        queries: integers, shape (n,), in 1 .. universe; public.
    """

    updates: Updates
    queries: ArrayLike = ()


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Answers to queries q, int64 (n,) each.

    Attributes:
        predecessors: some x <= q with a point in [x, q] and few of them; 0 if there are few points up to q.
        successors: some x >= q with a point in [q, x] and few of them; 0 if there are few points from q on.
        distances: from q to the nearer of both, which is no less than to the nearest point; -1 if there is neither.
        errors: how many points are "few", on either side, with the probability that the mechanism states; no secret.
    """

    predecessors: Integers
    successors: Integers
    distances: Integers
    errors: Integers

    @classmethod
    def of(cls, queries: Integers, predecessors: Integers, successors: Integers, errors: Integers) -> Neighbours:
        """Add the distances."""
        far = np.iinfo(np.int64).max
        below = np.where(predecessors == NO_POINT, far, queries - predecessors)
        above = np.where(successors == NO_POINT, far, successors - queries)
        nearest = np.minimum(below, above)
        return cls(predecessors, successors, np.where(nearest == far, NO_DISTANCE, nearest), errors)
