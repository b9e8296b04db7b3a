"""What the questions about points take from their options, without Beam unless a file says what is asked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE, widest_range
from privstream.pipelines.questions.spec import loaded
from privstream.transforms.points.parameters import MOST_STANDING


def asked_in(read: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say of queries, as arguments of a transform; `read` is what reads their file.

    Raises:
        ValueError, TypeError: `answers` is out of range, or the file breaks a rule.
    """
    answers = given["answers"]
    if answers is not None:
        checks.integer("answers", answers, minimum=1)
    if given["queries"] is None:
        return {"standing": (), "queries": answers}
    asked = loaded(f"questions.point_queries.{read}")(given["queries"])  # loads Beam, which a plan of numbers needs not
    return {"standing": tuple(asked.standing), "queries": len(asked.timed) if answers is None else answers}


def prepare_predecessor(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan need not say it.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    asked = asked_in("read_predecessor_queries", given)
    return asked | {"standing": tuple(point for (point,) in asked["standing"])}


def prepare_ranges(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan may give the number of ranges in place of a file.

    Where all queries of a file are for every window, no others are asked.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    number = given.get("ranges")
    if (number is None) == (given["queries"] is None):
        raise ValueError("one of --ranges and --queries must be given")
    asked = asked_in("read_range_queries", given)
    if number is None:
        alone = bool(asked["standing"]) and asked["queries"] == 0 and not given.get("consistent")
        return asked | ({"only_standing": True} if alone else {})
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
