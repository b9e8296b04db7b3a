"""What a configuration of Beam YAML says beside the arguments of a transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

GOOD = "good"  # Beam YAML's name for the output beside the one of `error_handling`


class Key(NamedTuple):
    """A key of configurations.

    Attributes:
        type: of its plain values.
        text: what it is.
        default: REQUIRED if there is none.
    """

    type: Any
    text: str
    default: Any = None


ADDED: Mapping[str, Key] = {
    "noise_key_file": Key(str, "file with the noise key, readable by every worker. Default: a new random key.", None),
    "noise_key_variable": Key(str, "environment variable with the noise key, set on every worker.", None),
    "run_id": Key(str, "public name of the run. A run on other data needs another name.", ""),
    "user_field": Key(
        str, "field with the person, text or an integer. Where the unit is an event, it is not read.", "user"
    ),
    "item_field": Key(str, "field with the item, text or an integer.", "item"),
    "time_field": Key(str, "field with the time: ISO 8601 text, a timestamp, or a number in time_unit.", "time"),
    "stream_field": Key(
        str, "field with the stream. Default: stream, if streams or streams_per_person is given, else none.", None
    ),
    "value_field": Key(
        str,
        "field with the number that an event has beside its item. It is read where an option is about numbers.",
        "value",
    ),
    "time_unit": Key(str, "unit of times that are plain numbers: s, ms, us or ns.", None),
    "error_handling": Key(
        dict[str, str],
        "a mapping with the key output: the name of the output for rows that cannot be used. Without it they are "
        "only counted.",
        None,
    ),
}
"""What a configuration says beside the arguments of the transform."""


def error_output(error_handling: Any) -> str | None:
    """Return the name of the output for dead letters."""
    if error_handling is None:
        return None
    if not isinstance(error_handling, Mapping) or list(error_handling) != ["output"]:
        raise ValueError("error_handling must be a mapping with the one key output")
    output = error_handling["output"]
    if not isinstance(output, str) or output in ("", GOOD):
        raise ValueError(f"error_handling.output must be a name other than {GOOD}, got {output!r}")
    return output
