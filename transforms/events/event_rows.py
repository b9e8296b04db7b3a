"""From rows or mappings with any field names, and times in any usual form, to events."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.broken_rule import broken_by
from privstream.transforms.events.dead_letters import LOG, set_aside, text_of
from privstream.transforms.events.times import read_micros


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
        time_field: str | None,
        stream_field: str | None,
        value_field: str | None,
        time_unit: str | None,
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.stream_field, self.value_field = stream_field, value_field
        self.time_unit = time_unit

    @property
    def names(self) -> dict[str, str]:
        """The names of the fields that are read, by argument."""
        names = ("user_field", "item_field", "time_field", "stream_field", "value_field")
        return {name: field for name in names if (field := getattr(self, name)) is not None}

    def process(self, row: Any) -> Iterator[Any]:
        """Read one row."""
        fields = (self.user_field, self.item_field, self.time_field, self.stream_field, self.value_field)
        try:
            user, item, time, stream, value = (_read(row, field) for field in fields)
            micros = 0 if self.time_field is None else read_micros("time", time, self.time_unit)
        except Exception as error:
            LOG.read(1)  # the others are counted where they are gathered
            yield set_aside(broken_by(error, "row"), _as_json(row), "row")
            return
        yield Event(user, item, Timestamp(micros=micros), stream, value)


def _read(row: Any, field: str | None) -> Any:
    """Return what a field contains; None for a field that is not read."""
    if field is None:
        return None
    if not isinstance(row, Mapping):
        return getattr(row, field)
    return row[field]


def _as_json(row: Any) -> str:
    """Return a row as JSON, whatever it contains."""
    try:
        return json.dumps(row if isinstance(row, Mapping) else row._asdict(), default=str)
    except Exception:  # it may hold anything, and what cannot be shown must not end the run
        return text_of(row)
