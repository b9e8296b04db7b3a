"""What the questions about points take from their options, without Beam unless a file says what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.spec import loaded


def asked_in(given: Mapping[str, Any], *names: str) -> list[tuple[int, ...]]:
    """Return the queries of a file, which have numbers of these names."""
    found: list[tuple[int, ...]] = loaded("questions.point_queries.read_point_queries")(given["queries"], names)
    return found


def prepare_predecessor(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked.

    Raises:
        ValueError, TypeError: the file breaks a rule.
    """
    return {"standing": tuple(point for (point,) in asked_in(given, "point"))}


def prepare_ranges(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked.

    Raises:
        ValueError, TypeError: the file breaks a rule.
    """
    return {"standing": tuple(asked_in(given, "low", "high"))}
