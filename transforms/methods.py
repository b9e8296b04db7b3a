"""Which method answers a question: the one that is asked for, or the best one that can, by what a user gets to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from privstream.mechanisms import checks

AUTO = "auto"

USUAL_CONTRIBUTIONS = 100
"""Of a person to counts or quantiles where nobody says how many."""

Mechanism = TypeVar("Mechanism")


def choose_method(
    method: str,
    makers: Mapping[str, Callable[[], Mechanism]],
    error: Callable[[Mechanism], Any],
    may_stop: Callable[[Mechanism], bool] = lambda made: False,
) -> tuple[str, Mechanism]:
    """Return a method's name and its mechanism.

    *Privacy*: the choice depends on public parameters alone.

    Args:
        method: one of the names, or "auto" for the one with the least error; the first of several that are equal.
        makers: what makes the mechanism of each method; raises a ValueError where its parameters do not allow it.
        error: of a mechanism, in the unit of the question, or several things by which methods are ordered; may raise a
            ValueError, too.
        may_stop: tells whether "auto" takes a mechanism only where no other one can answer; else nothing is calibrated
            to find its error.

    Raises:
        ValueError: there is no such method, or it cannot answer with these parameters; with "auto", none can.
    """
    if checks.one_of("method", method, (AUTO, *makers)) != AUTO:
        return method, makers[method]()
    made: dict[str, Mechanism] = {}
    reasons: dict[str, ValueError] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ValueError as reason:
            reasons[name] = reason
    for last in (False, True):
        errors: dict[str, Any] = {}
        for name in [name for name, mechanism in made.items() if may_stop(mechanism) is last]:
            try:
                errors[name] = error(made[name])
            except ValueError as reason:
                reasons[name] = reason
        if errors:
            best = min(errors, key=errors.__getitem__)
            return best, made[best]
    raise next(reasons[name] for name in makers)
