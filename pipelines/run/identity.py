"""What a run draws, and of which records: see `RunIdentity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.run_identity import RunIdentity, identity_of, reading
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import EventFile

INPUT = "input"


def identify(
    monitor: Monitor,
    given: Mapping[str, Mapping[str, Any]],
    fields: Mapping[str, FieldMapping],
    files: Iterable[EventFile],
    output: str,
    *,
    unbounded: bool,
) -> RunIdentity:
    """Return what all questions draw, and of what.

    Args:
        monitor: with the questions.
        given: arguments of their transforms, by name.
        fields: what they read, by name.
        files: of events.
        output: where rows go.
        unbounded: whether something is read without an end.
    """
    releases, readings = {}, {}
    watched = {each.info.watched for each in monitor.questions.values()} if unbounded else set()
    for name, question in monitor.questions.items():
        key = "" if monitor.single else name
        made = question.transform({**given[name], "noise": KeyedNoise.random()}, unbounded=unbounded)
        releases[key] = made.release
        info = question.info
        further = {file: getattr(question, file) for file in info.files} if info.watched != INPUT else {}
        forms = {"watermark": monitor.data.watermark, "input_format": monitor.data.input_format} if unbounded else {}
        readings[key] = reading(fields[name], further, watched, forms)
    return identity_of(releases, readings, monitor.data.input, output, files, watched)
