"""From rows with any field names, and times in any usual form, to events."""

import json
import numbers
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.broken_rule import BrokenRuleError, broken_by
from privstream.transforms.events.dead_letters import set_aside, text_of
from privstream.transforms.events.times import micros_of

EVENTS = "events"
UNIT, SYNTAX = "unit", "syntax"


class Event(NamedTuple):
    """What a row says: who, what, when (a Timestamp), and in which stream; None for what is not read."""

    user: Any
    item: Any
    time: Any
    stream: Any


class ReadRows(beam.DoFn):
    """Turn rows into events; those without a usable time become dead letters, other rules are checked further on."""

    def __init__(
        self,
        *,
        user_field: str | None,
        item_field: str | None,
        time_field: str,
        stream_field: str | None,
        time_unit: str | None,
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.stream_field = stream_field
        self.time_unit = time_unit

    def process(self, row: Any) -> Iterator[Any]:
        """Read one row."""
        fields = (self.user_field, self.item_field, self.stream_field)
        try:
            micros = to_micros("time", getattr(row, self.time_field), self.time_unit)
            user, item, stream = (None if field is None else getattr(row, field) for field in fields)
        except Exception as error:
            yield set_aside(broken_by(error, "row"), _as_json(row), "row")
            return
        yield Event(user, item, Timestamp(micros=micros), stream)


def _as_json(row: Any) -> str:
    """Return a row as JSON, whatever it holds."""
    try:
        return json.dumps(row._asdict(), default=str)
    except Exception:  # it may hold anything, and what cannot be shown must not end the run
        return text_of(row)


def to_micros(name: str, value: Any, unit: str | None) -> int:
    """Return a time in microseconds since 1970 UTC, or raise with the rule that it breaks.

    Args:
        name: what the time is called.
        value: ISO 8601 text (UTC if it names no zone), a timestamp, or a number or its text.
        unit: the unit of numbers; None if there must be none.
    """
    value = _parse(name, value) if isinstance(value, str) else value
    if unit is None and isinstance(value, numbers.Real) and not isinstance(value, bool):
        raise BrokenRuleError(name, UNIT, f"{name} must not be a plain number without a time_unit")
    return micros_of(value, unit or "s", name)


def _parse(name: str, text: str) -> Any:
    """Read text as an integer, a number or a time."""
    for kind in (int, float, datetime.fromisoformat):
        try:
            return kind(text.upper())
        except ValueError:
            pass
    raise BrokenRuleError(name, SYNTAX, f"{name} must be ISO 8601 text or a number")
