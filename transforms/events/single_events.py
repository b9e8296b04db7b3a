"""Single events: pairs, rows and mappings, and what each says."""

from __future__ import annotations

import dataclasses
import json
import numbers
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import Row
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.broken_rule import MISSING, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.dead_letters import LOG, set_aside, text_of
from privstream.transforms.events.event_columns import (
    FARTHEST_POINT,
    LONGEST_TEXT,
    empty,
    missing,
    no_number,
    no_unicode,
    too_long,
    value_of,
    wrong_type,
)
from privstream.transforms.events.event_fields import NUMBER, TEXT, UNREAD, WHOLE, EventFields
from privstream.transforms.events.item_columns import join_item
from privstream.transforms.events.times import TimeForm, micros_of, micros_of_stamp, read_micros

if TYPE_CHECKING:
    from privstream.transforms.events.filters import Filter

FORMS = "a pair (user, item), a row or an Arrow record batch"
NO_STAMP = "event must have a timestamp: that of a pair (user, item), or of a row without a field time, is its time"


class Said(NamedTuple):
    """What an event says, as `EventFields` asks; what is not read is empty."""

    user: str | int
    item: str | list[str]
    time: int
    stream: str
    value: float


def read_event(element: Any, timestamp: Timestamp, fields: EventFields) -> Said:
    """Return what an event says, or raise with the rule that it breaks."""
    if is_row(element):
        for name in fields.required_of_rows:
            if not hasattr(element, name):
                raise no_field(name)
        user, item = getattr(element, "user", None), getattr(element, "item", None)
        if fields.timed and not hasattr(element, "time"):
            micros = _stamped(timestamp)
        else:
            time = getattr(element, "time", None)
            micros = 0 if time is None and not fields.timed else micros_of(time)
        stream, value = getattr(element, "stream", None), getattr(element, "value", None)
    elif isinstance(element, tuple | list) and len(element) == 2:
        user, item = element
        micros = _stamped(timestamp) if fields.timed else micros_of_stamp(timestamp) or 0
        stream, value = None, None
    else:
        raise BrokenRuleError("event", TYPE, f"event must be {FORMS}, got {type(element).__name__}")
    return Said(
        _user(user, fields.user),
        _item(item, lists=fields.lists) if fields.item else "",
        micros,
        read_text("stream", stream) if fields.streams else "",
        value_of(value, whole=fields.value == WHOLE) if fields.value != UNREAD else 0.0,
    )


def _stamped(timestamp: Timestamp) -> int:
    """Return the microseconds since 1970 of an element whose own timestamp is its time, or raise if it has none."""
    micros = micros_of_stamp(timestamp)
    if micros is None:
        raise BrokenRuleError("time", MISSING, NO_STAMP)
    return micros


def is_row(element: Any) -> bool:
    """Tell whether an element has named fields."""
    return hasattr(element, "_fields") or isinstance(element, Row) or dataclasses.is_dataclass(element)


def no_field(name: str) -> BrokenRuleError:
    """Return the rule that a row has a field."""
    return BrokenRuleError(name, MISSING, f"row must have a field {name}")


def _user(value: Any, kind: str) -> str | int:
    """Return a person, or a point."""
    if kind == TEXT:
        return read_text("user", value)
    if kind != NUMBER:
        return ""
    text = read_text("user", value)
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19) or abs(int(text)) > FARTHEST_POINT:
        raise no_number("user")
    return int(text)


def _item(value: Any, *, lists: bool) -> str | list[str]:
    """Return an item, or several."""
    if not (lists and isinstance(value, list | tuple)):
        return read_text("item", value)
    texts = [read_text("item", each, least=0) for each in value]
    if sum(map(len, texts)) > LONGEST_TEXT:
        raise too_long("item")
    return texts


def read_text(name: str, value: Any, *, least: int = 1, longest: int = LONGEST_TEXT) -> str:
    """Return a user, item or stream as text, of `least` characters to `longest` bytes."""
    if value is None:
        raise missing(name)
    if is_integer(value):
        with suppress(ValueError):  # Python refuses to write very long numbers
            if len(text := str(int(value))) <= longest:
                return text
        raise too_long(name, longest)
    if not isinstance(value, str):
        raise wrong_type(name, type(value).__name__)
    text = str.__str__(value)  # itself, whatever a subclass says of it
    if len(text) < least:
        raise empty(name)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise no_unicode(name) from None
    if size > longest:
        raise too_long(name, longest)
    return text


def is_integer(value: Any) -> bool:
    """Tell whether a value is an integer, of Python or numpy, and neither a truth value nor a duration."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64)


class Event(NamedTuple):
    """What a row says: who, what, when (a Timestamp), in which stream, and a number; None for what is not read."""

    user: Any
    item: Any
    time: Any
    stream: Any
    value: Any


class ReadRows(beam.DoFn):
    """Turn rows into events; those without a usable time become dead letters, other rules are checked further on.

    Args:
        time_field: the field with the time, or None for the timestamp of the row itself.
        timed: whether the time is read at all.
        user_field, item_field, stream_field, value_field, time_unit, where: as for `with_fields`; None is not read.
    """

    def __init__(
        self,
        *,
        user_field: str | None,
        item_field: str | tuple[str, ...] | None,
        time_field: str | None,
        stream_field: str | None,
        value_field: str | None,
        time_unit: str | None,
        timed: bool = True,
        where: Filter | None = None,
    ) -> None:
        self.user_field, self.item_field, self.time_field = user_field, item_field, time_field
        self.stream_field, self.value_field = stream_field, value_field
        self.time_unit, self.timed = time_unit, timed
        self.where = where
        self.filtered = Metrics.counter("privstream", "events_filtered")

    @property
    def names(self) -> dict[str, str]:
        """The names of the fields that are read, by argument."""
        names = ("user_field", "item_field", "time_field", "stream_field", "value_field")
        found = {name: field for name in names if (field := getattr(self, name)) is not None}
        if isinstance(self.item_field, tuple):
            found.pop("item_field")
            found |= {f"item_field ({name})": name for name in self.item_field}
        return found | {f"where ({name})": name for name in (self.where.kinds if self.where else ())}

    def _item(self, row: Any) -> Any:
        """Return the item of a row; of several columns, one text for them."""
        if not isinstance(self.item_field, tuple):
            return _read(row, self.item_field)
        return join_item([read_text("item", _read(row, name)) for name in self.item_field])

    def _passes(self, row: Any) -> bool:
        """Tell whether a row passes the filter; a field that it has not has no value."""
        where = self.where
        return where is None or where.accepts({name: _read(row, name, None) for name in where.kinds})

    def process(self, row: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Read one row."""
        fields = (self.user_field, self.time_field, self.stream_field, self.value_field)
        try:
            if not self._passes(row):
                LOG.read(1)
                self.filtered.inc()
                return
            item = self._item(row)
            user, time, stream, value = (_read(row, field) for field in fields)
            micros = 0
            if self.time_field is not None:
                micros = read_micros("time", time, TimeForm(unit=self.time_unit))
            elif self.timed:
                micros = _stamped(timestamp)
        except Exception as error:
            LOG.read(1)  # the others are counted where they are gathered
            yield set_aside(broken_by(error, "row"), _as_json(row), "row")
            return
        yield Event(user, item, Timestamp(micros=micros), stream, value)


def _read(row: Any, field: str | None, *default: None) -> Any:
    """Return what a field contains; None for a field that is not read, and the default if the row has none."""
    if field is None:
        return None
    if not isinstance(row, Mapping):
        return getattr(row, field, *default)
    return row.get(field) if default else row[field]


def _as_json(row: Any) -> str:
    """Return a row as JSON, whatever it contains."""
    try:
        return json.dumps(row if isinstance(row, Mapping) else row._asdict(), default=str)
    except Exception:  # it may hold anything, and what cannot be shown must not end the run
        return text_of(row)
