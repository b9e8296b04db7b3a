"""What `ranges` takes from its file of queries, and what its plan takes for ranges that are not known yet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE, widest_range
from privstream.pipelines.questions.point_queries import asked_in, give_timed
from privstream.transforms.points.point_transform import MOST_STANDING
from privstream.transforms.rows import RangeQuery

inputs = partial(give_timed, RangeQuery)


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan may give the number of ranges in place of a file.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    number = given.get("ranges")
    if (number is None) == (given["queries"] is None):
        raise ValueError("one of --ranges and --queries must be given")
    asked = asked_in(RangeQuery, given)
    if number is None:
        return asked
    return {"standing": any_ranges(number, given["universe"]), "queries": asked["queries"] or 0}


def any_ranges(number: int, universe: int) -> tuple[tuple[int, int], ...]:
    """Return so many ranges, or all that there are: what bounds the errors of these bounds those of any.

    One of them consists of as many dyadic intervals as any range does, and the bound for all goes by the most.
    """
    if checks.integer("ranges", number, minimum=1) > MOST_STANDING:
        raise ValueError(f"ranges must be <= {MOST_STANDING}, got {number}")
    universe = min(checks.integer("universe", universe, minimum=1), LARGEST_UNIVERSE)  # a larger one is refused later
    widest = widest_range(universe)
    points = range(1, universe + 1)
    others = ((low, high) for low in points for high in points[low - 1 :] if (low, high) != widest)
    return (widest, *itertools.islice(others, number - 1))
