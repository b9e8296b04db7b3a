"""From rows with any field names, and times in any usual form, to events."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.broken_rule import broken_by
from privstream.transforms.events.dead_letters import set_aside, text_of
from privstream.transforms.events.times import read_micros

EVENTS = "events"


class Event(NamedTuple):
    """What a row says: who, what, when (a Timestamp), in which stream, and a number; None for what is not read."""

    user: Any
    item: Any
    time: Any
    stream: Any
    value: Any


class ReadRows(beam.DoFn):
    """Turn rows into events; those without a usable time become dead letters, other rules are checked further on."""

    def __init__(
        self,
        *,
        user_field: str | None,
        item_field: str | None,
        time_field: str,
        stream_field: str | None,
        value_field: str | None,
        time_unit: str | None,
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.stream_field, self.value_field = stream_field, value_field
        self.time_unit = time_unit

    def process(self, row: Any) -> Iterator[Any]:
        """Read one row."""
        fields = (self.user_field, self.item_field, self.stream_field, self.value_field)
        try:
            micros = read_micros("time", getattr(row, self.time_field), self.time_unit)
            user, item, stream, value = (None if field is None else getattr(row, field) for field in fields)
        except Exception as error:
            yield set_aside(broken_by(error, "row"), _as_json(row), "row")
            return
        yield Event(user, item, Timestamp(micros=micros), stream, value)


def _as_json(row: Any) -> str:
    """Return a row as JSON, whatever it contains."""
    try:
        return json.dumps(row._asdict(), default=str)
    except Exception:  # it may hold anything, and what cannot be shown must not end the run
        return text_of(row)
