"""Single events: pairs, rows and mappings, and what each says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from apache_beam.pvalue import Row
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from privstream.transforms.events.event_columns import (
    FARTHEST_POINT,
    LONGEST_TEXT,
    no_number,
    read_text,
    too_long,
    value_of,
)
from privstream.transforms.events.event_fields import (
    MISSING,
    NUMBER,
    TEXT,
    TYPE,
    UNREAD,
    WHOLE,
    BrokenRuleError,
    EventFields,
)
from privstream.transforms.events.times import micros_of
from privstream.transforms.timing.closing import NO_TIME
from privstream.transforms.timing.steps import MILLISECOND

FORMS = "a pair (user, item), a row or an Arrow record batch"
NO_STAMP = "event must have a timestamp: that of a pair (user, item), or of a row without a field time, is its time"


NO_STAMPS = "time_field must be given for Arrow batches and frames, whose rows have no timestamps"


class Said(NamedTuple):
    """What an event says, as `EventFields` asks; what is not read is empty."""

    user: str | int
    item: str | list[str]
    time: int
    value: float


def read_event(element: Any, timestamp: Timestamp, fields: EventFields) -> Said:
    """Return what an event says, or raise with the rule that it breaks."""
    if is_row(element):
        for name in fields.required_of_rows:
            if not hasattr(element, name):
                raise no_field(name)
        user, item = getattr(element, "user", None), getattr(element, "item", None)
        if fields.timed and not hasattr(element, "time"):
            micros = stamped(timestamp)
        else:
            time = getattr(element, "time", None)
            micros = 0 if time is None and not fields.timed else micros_of(time)
        value = getattr(element, "value", None)
    elif isinstance(element, tuple | list) and len(element) == 2:
        user, item = element
        micros = stamped(timestamp) if fields.timed else micros_of_stamp(timestamp) or 0
        value = None
    else:
        hint = "; with_fields() takes mappings and frames" if isinstance(element, Mapping) or is_frame(element) else ""
        raise BrokenRuleError("event", TYPE, f"event must be {FORMS}, got {type(element).__name__}{hint}")
    return Said(
        _user(user, fields.user),
        _item(item, lists=fields.lists) if fields.item else "",
        micros,
        value_of(value, whole=fields.value == WHOLE) if fields.value != UNREAD else 0.0,
    )


def micros_of_stamp(timestamp: Timestamp) -> int | None:
    """Return the microseconds since 1970 of an element's timestamp; None at the ends of time, where it says nothing."""
    says_nothing = timestamp.micros < MIN_TIMESTAMP.micros + MILLISECOND or timestamp >= NO_TIME
    return None if says_nothing else micros_of(timestamp)


def stamped(timestamp: Timestamp) -> int:
    """Return the microseconds since 1970 of an element whose own timestamp is its time, or raise if it has none."""
    micros = micros_of_stamp(timestamp)
    if micros is None:
        raise BrokenRuleError("time", MISSING, NO_STAMP)
    return micros


def is_row(element: Any) -> bool:
    """Tell whether an element has named fields."""
    return hasattr(element, "_fields") or isinstance(element, Row) or dataclasses.is_dataclass(element)


def is_frame(element: Any) -> bool:
    """Tell whether an element, or each one of a class, has columns of many events."""
    return hasattr(element, "__arrow_c_stream__") or hasattr(element, "__arrow_c_array__")


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
