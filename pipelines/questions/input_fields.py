"""Which fields of the input are read."""

from __future__ import annotations

import argparse

from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.sources.fields import DEFAULT_STREAM, DEFAULT_VALUE, FieldMapping


def input_fields(spec: QuestionSpec, arguments: argparse.Namespace) -> FieldMapping:
    """Return which fields are read; a stream only where the options ask for one, a user where it matters who it is.

    Raises:
        ValueError, TypeError: naming the option.
    """
    stream = getattr(arguments, "stream_field", None)
    if stream is None:
        stream = "" if getattr(arguments, "streams", None) is None else DEFAULT_STREAM
    unread = getattr(arguments, "unit", None) in spec.units_without_users
    if not unread and not arguments.user_field:
        raise ValueError("user_field must not be empty")
    if spec.item and not arguments.item_field:
        raise ValueError("item_field must not be empty")
    return FieldMapping(
        user="" if unread else arguments.user_field,
        item=arguments.item_field if spec.item else "",
        time=arguments.time_field,
        stream=stream,
        value=_value_field(spec, arguments),
        whole=spec.whole_values,
        time_unit=arguments.time_unit,
    )


def _value_field(spec: QuestionSpec, arguments: argparse.Namespace) -> str:
    """Return the field with the number, if one is read."""
    field = getattr(arguments, "value_field", None)
    if field == "":
        raise ValueError("value_field must not be empty")
    if spec.value and (not spec.values_with or getattr(arguments, spec.values_with) is not None):
        return DEFAULT_VALUE if field is None else str(field)
    if field is not None:
        raise ValueError(f"{spec.values_with} must be given with value_field")
    return ""
