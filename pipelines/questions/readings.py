"""From plain values, of a command line or of Beam YAML, to the arguments of a question's transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.option_types import OPTION_TYPES, SPANS
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.spec import QuestionSpec, loaded

NOTHING: Mapping[str, Any] = {}

PUBLIC = {"Items", "tuple[AlertRule, ...]", "Thresholds"}
"""The types of public lists, which are read as the input is."""

MOMENT = "Moment"
"""The type of times, which the clocks of `time_zone` may have shown."""


def read(type: str, name: str, value: Any, **more: Any) -> Any:
    """Return the argument that a plain value of a type gives."""
    return loaded(OPTION_TYPES[type].read)(name, value, **more)


def by_clocks(window: float | str, zone: str | None) -> float | str:
    """Return the length of a window, whose days begin by the clocks of a zone if it is one of the calendar."""
    return f"{window} {zone}" if zone is not None and isinstance(window, str) and " " not in window else window


def arguments_of(spec: QuestionSpec, given: Mapping[str, Any], known: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Return the arguments of a question's transform, but for the noise, from plain values.

    Args:
        spec: the question.
        given: plain values by name, of all options or some; None is as if it was not given.
        known: arguments that are there already.

    Raises:
        ValueError, TypeError: a value breaks the rule of its type.
    """
    own = spec.signature.arguments
    kinds = {option.name: option.type for option in options_of(spec)}
    zone = {"zone": given["time_zone"]} if given.get("time_zone") is not None else {}
    more: dict[str, dict[str, Any]] = {MOMENT: zone}
    if any(kinds.get(name) in PUBLIC and given.get(name) is not None for name in own):
        reading = loaded("questions.public_lists.Reading").of(given)
        more |= {kind: {"reading": reading} for kind in PUBLIC}
    found = {
        name: read(kinds[name], name, given[name], **more.get(kinds[name], {}))
        for name in own
        if name in kinds and given.get(name) is not None
    }
    if "window" in found:
        found["window"] = by_clocks(found["window"], given.get("time_zone"))
    if spec.prepare is not None:
        found |= loaded(spec.prepare)(given)
    return {**found, **known}


def check_span(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return no further arguments; refuse a plan that does not say how many windows a duration has.

    Raises:
        ValueError: no window is given.
    """
    if given.get("over") not in (None, *SPANS) and given.get("window") is None:
        raise ValueError("window must be given where over is a duration")
    return {}


def check_categories(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return no further arguments; refuse several categories of an event that nothing parts: files have no lists.

    Raises:
        ValueError: no separator is given.
    """
    if "input" in given and given["separator"] is None and given["categories_per_row"] > 1:
        raise ValueError("separator must be given when an event may have several categories")
    return {}


def planned_queries(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return for how many queries accuracy is stated."""
    return {"queries": given["planned"]}
