"""From plain values, of a command line or of Beam YAML, to the arguments of a question's transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.option_types import OPTION_TYPES
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
                raise ValueError(f"{name} must not be given when no stream is read: name its field with stream_field")
    elif found.get(STREAMS) is None and not spec.all_streams:
        raise ValueError("streams must be given with stream_field")
    elif spec.one_stream and found.get(STREAMS_PER_PERSON) is None and found.get("unit") != PER_WINDOW:
        found[STREAMS_PER_PERSON] = 1
    return found
