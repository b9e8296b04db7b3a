"""Which method answers a question: the one that is asked for, or the most accurate one that can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from privstream.mechanisms import checks

AUTO = "auto"

Mechanism = TypeVar("Mechanism")


def choose_method(
    method: str, makers: Mapping[str, Callable[[], Mechanism]], error: Callable[[Mechanism], Any]
) -> tuple[str, Mechanism]:
    """Return a method's name and its mechanism.

    *Privacy*: the choice depends on public parameters alone.

    Args:
        method: one of the names, or "auto" for the one with the least error; the first of several that are equal.
        makers: what makes the mechanism of each method; raises a ValueError where its parameters do not allow it.
        error: of a mechanism, in the unit of the question, or several things by which methods are ordered; may raise a
            ValueError, too.

    Raises:
        ValueError: there is no such method, or it cannot answer with these parameters; with "auto", none can.
    """
    if checks.one_of("method", method, (AUTO, *makers)) != AUTO:
        return method, makers[method]()
    found: list[tuple[Any, str, Mechanism]] = []
    reasons = []
    for name, make in makers.items():
        try:
            mechanism = make()
            found.append((error(mechanism), name, mechanism))
        except ValueError as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0]
    _, name, mechanism = min(found, key=lambda each: each[0])
    return name, mechanism
