"""Which fields of the input are read."""

from __future__ import annotations

import argparse

from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.sources.fields import DEFAULT_STREAM, FieldMapping


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
    return FieldMapping(
        user="" if unread else arguments.user_field,
        item=arguments.item_field,
        time=arguments.time_field,
        stream=stream,
        time_unit=arguments.time_unit,
    )
