"""From rows with any field names, and times in any usual form, to events."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.timing.steps import MICROS

EVENTS = "events"
PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS, "ns": 1_000_000_000}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(2200, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    """What a row says: who, what, when (microseconds since 1970 UTC), and in which stream."""

    user: Any
    item: Any
    time: int
    stream: Any


class ReadRows(beam.DoFn):
    """Turn rows into events; those without a usable time become dead letters, other rules are checked further on."""

    def __init__(
        self, *, user_field: str, item_field: str, time_field: str, stream_field: str | None, time_unit: str | None
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.stream_field = stream_field
        self.time_unit = time_unit
        self.malformed = Metrics.counter("privstream", "events_malformed")

    def process(self, row: Any) -> Iterator[Any]:
        """Read one row."""
        try:
            time = to_micros("time", getattr(row, self.time_field), self.time_unit)
        except (TypeError, ValueError) as error:
            self.malformed.inc()
            yield TaggedOutput(DEAD_LETTERS, DeadLetter(str(error), "", "", json.dumps(row._asdict(), default=str)))
            return
        stream = "" if self.stream_field is None else getattr(row, self.stream_field)
        yield Event(getattr(row, self.user_field), getattr(row, self.item_field), time, stream)


def to_micros(name: str, value: Any, unit: str | None) -> int:
    """Return a time in microseconds since 1970 UTC, or raise with the rule that it breaks, without quoting it.

    Args:
        name: what the time is called.
        value: ISO 8601 text (UTC if it names no zone), a timestamp, or a number or its text.
        unit: the unit of numbers; None if there must be none.
    """
    value = _parse(name, value) if isinstance(value, str) else value
    if isinstance(value, Timestamp):
        micros = value.micros
    elif isinstance(value, datetime):
        micros = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be ISO 8601 text, a timestamp or a number, got {type(value).__name__}")
    elif unit is None:
        raise ValueError(f"{name} must not be a plain number without a time_unit")
    elif not 0 <= value < (LAST - EPOCH).total_seconds() * PER_SECOND[unit]:
        micros = -1
    elif isinstance(value, int):
        micros = value * MICROS // PER_SECOND[unit]
    else:
        micros = round(value * (MICROS / PER_SECOND[unit]))
    if not 0 <= micros < (LAST - EPOCH) // timedelta(microseconds=1):
        raise ValueError(f"{name} must be between 1970-01-01 and 2200-01-01")
    return micros


def _parse(name: str, text: str) -> Any:
    """Read text as an integer, a number or a time."""
    for kind in (int, float, datetime.fromisoformat):
        try:
            return kind(text.upper())
        except ValueError:
            pass
    raise ValueError(f"{name} must be ISO 8601 text or a number")
