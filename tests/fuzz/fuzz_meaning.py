"""What a record means by the documented rules, found by other means than the readers': Python's csv and json modules.

A record means one event, or nothing. Users, items and streams are text or integers, not empty, not too long, UTF-8;
times are ISO 8601 or, in a stated unit, numbers, from 1970 until 2200. Where a number is read in place of the item, it
is finite, and text that is one has decimal digits, with a point and an exponent at most.
"""

import csv
import io
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any, NamedTuple

from fuzz_values import CANARY, EPOCH, UNITS

END_MICROS = 7_258_118_400_000_000
ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?([Zz]|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
CSV_FIELD = r'(?:[^",\r\n]*|"(?:[^"\r]|\r\n|"")*")'
CSV_RECORD = re.compile(f"{CSV_FIELD}(?:,{CSV_FIELD})*")
LONGEST_NUMBER = 400
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Event(NamedTuple):
    """A person, an item (or a number, as Python writes it), microseconds since 1970, a stream."""

    user: str
    item: str
    time: int
    stream: str = ""


class Stamp(int):
    """Microseconds since 1970 that need no unit, as timestamps of files do."""


@dataclass(frozen=True)
class Rules:
    """The options that decide what a record means; files have users also where nobody reads them.

    With `numbers` the field of the item has a number, and no item is read.
    """

    stream: str = ""
    time_unit: str | None = None
    max_item_bytes: int = 1 << 14
    user: str = "user"
    item: str = "item"
    time: str = "time"
    reads_users: bool = True
    numbers: bool = False

    def options(self) -> dict[str, Any]:
        """Return the arguments of a `FieldMapping`."""
        given = {key: value for key, value in vars(self).items() if key not in ("reads_users", "numbers")}
        given |= {"item": "", "value": self.item} if self.numbers else {}
        return given if self.reads_users else given | {"user": ""}

    @property
    def plain_item(self) -> str:
        """Return what an item may be."""
        return "2.5" if self.numbers else f"{CANARY} 0"

    def names(self) -> list[str]:
        """Return the fields that mean something."""
        return [self.user, self.item, self.time, *([self.stream] if self.stream else [])]


def of_values(values: dict[str, Any], rules: Rules) -> Event | None:
    """Return what a record with these Python values means."""
    user = _text(values.get(rules.user), rules) if rules.reads_users else ""
    item = (_number if rules.numbers else _text)(values.get(rules.item), rules)
    stream = _text(values.get(rules.stream), rules) if rules.stream else ""
    time = _time(values.get(rules.time), rules.time_unit)
    if user is None or item is None or stream is None or time is None:
        return None
    return Event(user, item, time, stream)


def of_json_line(line: bytes, rules: Rules) -> Event | None:
    try:
        values = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return of_values(values, rules) if isinstance(values, dict) else None


def of_csv_record(record: bytes, header: list[str], rules: Rules) -> Event | None:
    """Return what one record of a CSV file means: by RFC 4180, so without quotes in what is not quoted, and bare CR."""
    text = record.decode("utf-8", "surrogateescape").removesuffix("\r\n").removesuffix("\n")
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    if len(rows) != 1 or len(rows[0]) != len(header) or not CSV_RECORD.fullmatch(text):
        return None
    return of_values(dict(zip(header, rows[0], strict=True)), rules)


def _text(value: Any, rules: Rules) -> str | None:
    """Return a user, an item or a stream, or None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not value:
        return None
    try:
        return value if len(value.encode()) <= rules.max_item_bytes else None
    except UnicodeEncodeError:
        return None


def _number(value: Any, rules: Rules) -> str | None:
    """Return a finite number as Python writes it, or None if it is none."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (len(value) > LONGEST_NUMBER or not NUMBER.fullmatch(value)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return repr(number) if math.isfinite(number) else None


def _time(value: Any, unit: str | None) -> int | None:
    """Return microseconds since 1970, or None if it is no time."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, Stamp):
        micros = int(value)
    elif isinstance(value, str):
        found = _time_of_text(value, unit)
        if found is None:
            return None
        micros = found
    elif isinstance(value, int | float) and not isinstance(value, bool) and unit is not None:
        found = _time_of_number(value, unit)
        if found is None:
            return None
        micros = found
    else:
        return None
    return micros if 0 <= micros < END_MICROS else None


def _time_of_text(text: str, unit: str | None) -> int | None:
    """Read ISO 8601, or a number of a unit."""
    if unit is not None and NUMBER.fullmatch(text):
        digits = text.lstrip("+-").isdecimal() and len(text) <= 20
        return _time_of_number(int(text) if digits else float(text), unit)
    found = ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC
        )
        if zone and zone not in "Zz":
            sign = -1 if zone[0] == "-" else 1
            hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or 0)
            if minutes > 59:
                return None
            moment = moment.replace(tzinfo=timezone(sign * timedelta(hours=hours, minutes=minutes)))
    except ValueError:
        return None
    return (moment - EPOCH) // timedelta(microseconds=1) + int((fraction or "0")[:6].ljust(6, "0"))


def _time_of_number(number: float, unit: str) -> int | None:
    """Turn a number of a unit into microseconds: integers downwards, others to the nearest."""
    if isinstance(number, float):
        if not math.isfinite(number) or number < 0:
            return None
        scale = UNITS[unit] or 0.001
        scaled = number * scale
        return round(scaled) if scaled < 2 * END_MICROS else None
    if number < 0:
        return None
    return math.floor(Fraction(number) * (UNITS[unit] or Fraction(1, 1000)))
