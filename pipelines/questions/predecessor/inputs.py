"""What `predecessor` takes from its file of queries."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from privstream.pipelines.questions.point_queries import asked_in, give_timed
from privstream.transforms.rows import PredecessorQuery

inputs = partial(give_timed, PredecessorQuery)


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan need not say it.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    asked = asked_in(PredecessorQuery, given)
    return asked | {"standing": tuple(point for (point,) in asked["standing"])}
