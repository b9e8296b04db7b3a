"""From plain values, of a command line or of Beam YAML, to the arguments of a question's transform."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.input_end import is_unbounded
from privstream.pipelines.questions.option_types import OPTION_TYPES, SPANS
from privstream.pipelines.questions.options import STREAMS, options_of
from privstream.pipelines.questions.spec import STREAMS_PER_PERSON, QuestionSpec, loaded

NOTHING: Mapping[str, Any] = {}

PER_WINDOW = "person_in_window"
"""The unit for which limits over the whole run mean nothing."""


MOMENT = "Moment"
"""The type of times, which the clocks of `time_zone` may have shown."""


def read(type: str, name: str, value: Any, **more: Any) -> Any:
    """Return the argument that a plain value of a type gives."""
    return loaded(OPTION_TYPES[type].read)(name, value, **more)


def by_clocks(window: float | str, zone: str | None) -> float | str:
    """Return the length of a window, whose days begin by the clocks of a zone if it is one of the calendar."""
    return f"{window} {zone}" if zone is not None and isinstance(window, str) and " " not in window else window


def arguments_of(
    spec: QuestionSpec, given: Mapping[str, Any], *, streams: bool, known: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the arguments of a question's transform, but for the noise, from plain values.

    Args:
        spec: the question.
        given: plain values by name, of all options or some; None is as if it was not given.
        streams: whether events have a stream.
        known: arguments that are there already.

    Raises:
        ValueError, TypeError: a value breaks the rule of its type, or an option is about streams that are not read.
    """
    own = spec.signature.arguments
    kinds = {option.name: option.type for option in options_of(spec)}
    zone = {"zone": given["time_zone"]} if given.get("time_zone") is not None else {}
    found = {
        name: read(kinds[name], name, given[name], **(zone if kinds[name] == MOMENT else {}))
        for name in own
        if name in kinds and given.get(name) is not None
    }
    if "window" in found:
        found["window"] = by_clocks(found["window"], given.get("time_zone"))
    if spec.prepare is not None:
        found |= loaded(spec.prepare)(given)
    found |= known
    if not streams:
        for name in (STREAMS, STREAMS_PER_PERSON):
            if found.get(name) is not None:
                instead = "name its field with stream_field, or in a plan their number with streams"
                raise ValueError(f"{name} must not be given when no stream is read: {instead}")
    elif found.get(STREAMS) is None and not spec.all_streams:
        raise ValueError("streams must be given with stream_field")
    elif spec.one_stream and found.get(STREAMS_PER_PERSON) is None and found.get("unit") != PER_WINDOW:
        found[STREAMS_PER_PERSON] = 1
    return found


def check_span(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return no further arguments; refuse a plan that does not say how many windows a duration has.

    Raises:
        ValueError: no window is given.
    """
    if given.get("over") not in (None, *SPANS) and given.get("window") is None:
        raise ValueError("window must be given where over is a duration")
    return {}


def settle_heavy_hitters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Say of a run by counts that could remember items whether it forgets them: it was once another run."""
    until = any(given.get(name) is not None for name in ("end", "windows", "horizon", "renew_every"))
    alone = given.get("period") is None and given.get("method") in (None, "auto", "counts")
    if not alone or given.get("start") is None or not until:
        return {}
    if given.get("domain") is not None and any(given.get(name) is not None for name in ("end", "windows", "horizon")):
        return {}
    return {"forget": bool(given.get("forget"))}


def bind_histogram(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether noise is bound to the data, as it must be if a run may be restored; of a run alone.

    Raises:
        ValueError: an event may have several categories, and files have no lists.
    """
    if "input" not in given:
        return {}
    if given["separator"] is None and given["categories_per_row"] > 1:
        raise ValueError("separator must be given when an event may have several categories")
    return {"restartable": given["restartable"] or is_unbounded(argparse.Namespace(**given)) or None}


def planned_queries(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return for how many queries accuracy is stated."""
    return {"queries": given["planned"]}
