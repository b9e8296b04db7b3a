"""Times as microseconds since 1970, one by one, as text and in columns; numbers are seconds, unless a unit is named."""

from __future__ import annotations

import math
import numbers
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from privstream.transforms.events.broken_rule import FINITE, MISSING, RANGE, TYPE, BrokenRuleError
from privstream.transforms.timing.on_time import NO_TIME
from privstream.transforms.timing.steps import MICROS, MILLISECOND

PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS, "ns": 1_000_000_000}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAME = "time"
SECONDS = int((datetime(2200, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())

SYNTAX, UNIT = "syntax", "unit"
NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")  # tries each digit once, however many
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
ISO_8601 = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d++)?)?)?(?P<zone>[Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""What text is a time, if its date exists. Arrow reads a part of that, and the same from it; a test compares them."""

TIME_TEXT = "ISO 8601 text with dashes and colons, such as 2030-01-31T12:00:00Z"

LONGEST_INTEGER = 20  # characters; longer numbers are read as floats

Marks = list[tuple[np.ndarray, BrokenRuleError]]
"""Rows of a column that break a rule, and which one."""


def micros_of(value: Any, unit: str = "s", name: str = "time") -> int:
    """Return a time in microseconds since 1970 UTC, or raise with the rule that it breaks.

    Args:
        value: a Beam Timestamp, a datetime (UTC if it names no zone), or a number.
        unit: the unit of numbers.
        name: what the time is called.
    """
    value = _plain(value)
    if isinstance(value, Timestamp):
        micros = value.micros
    elif isinstance(value, datetime):
        micros = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise _missing(name) if value is None else _wrong_type(name, type(value).__name__)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _not_finite(name)
    elif not 0 <= value < SECONDS * PER_SECOND[unit]:
        raise _out_of_range(name)
    elif isinstance(value, int):
        micros = value * MICROS // PER_SECOND[unit]
    else:
        micros = round(value * (MICROS / PER_SECOND[unit]))
    if not 0 <= micros < SECONDS * MICROS:
        raise _out_of_range(name)
    return micros


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python: short ones cannot be compared with large ones; a duration is none."""
    if isinstance(value, np.floating):
        return float(value)
    return int(value) if isinstance(value, np.integer) and not isinstance(value, np.timedelta64) else value


def read_micros(name: str, value: Any, unit: str | None) -> int:
    """Return a time in microseconds since 1970 UTC, or raise with the rule that it breaks.

    Args:
        name: what the time is called.
        value: ISO 8601 text (UTC if it names no zone), a timestamp, or a number or its text.
        unit: the unit of numbers; None if there must be none.
    """
    found = _of_text(name, value, unit) if isinstance(value, str) else value
    if unit is None and isinstance(found, numbers.Real) and not isinstance(found, bool):
        raise BrokenRuleError(name, UNIT, f"{name} must not be a plain number without a time_unit")
    return micros_of(found, unit or "s", name)


def _of_text(name: str, text: str, unit: str | None) -> datetime | int | float:
    """Return the time or the number that a text is."""
    if ISO_8601.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:  # there is no such day
            pass
    elif NUMBER.fullmatch(text) or (unit is not None and NOT_FINITE.fullmatch(text)):
        return int(text) if text.lstrip("+-").isdecimal() and len(text) <= LONGEST_INTEGER else float(text)
    raise BrokenRuleError(name, SYNTAX, f"{name} must be {TIME_TEXT}, or a number")


def micros_of_stamp(timestamp: Timestamp) -> int | None:
    """Return the microseconds since 1970 of an element's timestamp; None at the ends of time, where it says nothing."""
    says_nothing = timestamp.micros < MIN_TIMESTAMP.micros + MILLISECOND or timestamp >= NO_TIME
    return None if says_nothing else micros_of(timestamp)


def micros_column(column: pa.Array, unit: str = "s") -> tuple[np.ndarray, Marks]:
    """Return a column of times in microseconds, int64, and which rows break a rule: what they are is not defined.

    Args:
        column: timestamps or numbers.
        unit: of numbers.

    Raises:
        BrokenRuleError: the column's type cannot be a time.
    """
    kind = column.type
    nulls = null_rows(column)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), [(nulls, _missing(NAME))]
    if pa.types.is_floating(kind):
        return _from_floats(column.cast(pa.float64()).fill_null(0.0).to_numpy(), nulls, PER_SECOND[unit])
    if not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
        raise _wrong_type(NAME, str(kind))
    if pa.types.is_timestamp(kind):
        ticks, per_second = column.cast(pa.int64()), PER_SECOND[kind.unit]
    else:
        ticks, per_second = column, PER_SECOND[unit]
    values = ticks.fill_null(0).to_numpy() if nulls.any() else ticks.to_numpy()
    outside = (values < 0) | (values >= SECONDS * per_second) if values.dtype.itemsize > 4 else values < 0
    fitting = (np.where(outside, 0, values) if outside.any() else values).astype(np.int64, copy=False)
    micros = fitting * (MICROS // per_second) if per_second <= MICROS else fitting // (per_second // MICROS)
    return micros, [(nulls, _missing(NAME)), (outside, _out_of_range(NAME))]


def read_times(column: pa.Array, unit: str | None) -> tuple[np.ndarray, Marks]:
    """Return a column of timestamps, numbers or text as `micros_column` does.

    Args:
        column: its text need not be valid UTF-8; such a text is no time.
        unit: of numbers; None if there must be none.
    """
    if pa.types.is_dictionary(column.type):
        times, marks = read_times(column.dictionary, unit)
        rows = pc.fill_null(column.indices.cast(pa.int64()), len(times)).to_numpy()
        spread = [(np.append(mask, False)[rows], rule) for mask, rule in marks]
        return np.append(times, 0)[rows], [(null_rows(column.indices), _missing(NAME)), *spread]
    if not _is_text(column.type):
        if unit is None and not (pa.types.is_timestamp(column.type) or pa.types.is_null(column.type)):
            raise ValueError("plain numbers must have a time_unit")
        return micros_column(column, unit or "s")
    return _at_once(column, unit) or _one_by_one(column, unit)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _at_once(column: pa.Array, unit: str | None) -> tuple[np.ndarray, Marks] | None:
    """Parse ISO 8601 or numbers at once, if all of the column is of the first value's form; None if it is not."""
    first = column.drop_null()[:1].cast(pa.binary()).to_pylist()
    form = _form(first[0].decode("utf-8", "replace"), unit) if first else pa.timestamp("ns")
    if form is None or (pa.types.is_int64(form) and _beyond_integers(column)):
        return None
    try:
        parsed = column.cast(form)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_float64(form) and not pc.all(pc.is_finite(parsed)).as_py():
        return None
    return micros_column(parsed, unit or "s")


def _form(text: str, unit: str | None) -> pa.DataType | None:
    """Return the Arrow type that reads text of the same form, or None."""
    iso = ISO_8601.fullmatch(text)
    if iso:
        return pa.timestamp("ns", "UTC") if iso["zone"] else pa.timestamp("ns")
    if unit is None or not NUMBER.fullmatch(text):
        return None
    return pa.int64() if unit == "ns" else pa.float64()  # floats are too short for nanoseconds


def _beyond_integers(column: pa.Array) -> bool:
    """Tell whether Arrow might read as an integer what is none here: hexadecimal, or a long row of zeros."""
    column = column.cast(pa.binary())
    longest = pc.max(pc.binary_length(column)).as_py()
    return bool(longest > LONGEST_INTEGER or pc.any(pc.match_substring_regex(column, "[xX]")).as_py())


def _one_by_one(column: pa.Array, unit: str | None) -> tuple[np.ndarray, Marks]:
    """Read text of several forms, or with wrong ones among it."""
    times = np.zeros(len(column), np.int64)
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, data in enumerate(column.cast(pa.binary()).to_pylist()):
        try:
            times[row] = read_micros(NAME, data.decode("utf-8", "replace") if data else None, unit)
        except BrokenRuleError as rule:
            broken.setdefault(rule.code, (np.zeros(len(column), np.bool_), rule))[0][row] = True
    return times, list(broken.values())


def null_rows(column: pa.Array) -> np.ndarray:
    """Tell which rows of a column are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _from_floats(values: np.ndarray, nulls: np.ndarray, per_second: int) -> tuple[np.ndarray, Marks]:
    finite = np.isfinite(values)
    farthest = float(SECONDS * per_second)
    given = np.clip(np.where(finite, values, 0.0), -1.0, farthest)
    micros = np.rint(given * (MICROS / per_second)).astype(np.int64)
    outside = (given < 0) | (micros >= SECONDS * MICROS)
    return micros, [(nulls, _missing(NAME)), (~finite, _not_finite(NAME)), (outside, _out_of_range(NAME))]


def _missing(name: str) -> BrokenRuleError:
    return BrokenRuleError(name, MISSING, f"{name} must not be null")


def _wrong_type(name: str, kind: str) -> BrokenRuleError:
    return BrokenRuleError(name, TYPE, f"{name} must be a timestamp or a number of seconds since 1970, got {kind}")


def _not_finite(name: str) -> BrokenRuleError:
    return BrokenRuleError(name, FINITE, f"{name} must be finite")


def _out_of_range(name: str) -> BrokenRuleError:
    return BrokenRuleError(name, RANGE, f"{name} must be between 1970-01-01 and 2200-01-01")
