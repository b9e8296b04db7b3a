"""Times as microseconds since 1970, one by one, as text and in columns; numbers are seconds, unless a unit is named."""

from __future__ import annotations

import math
import numbers
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.columns import is_text
from privstream.transforms.reading.fields import (
    RANGE,
    TYPE,
    BrokenRuleError,
    Marks,
    marked,
    missing,
    not_finite,
    null_rows,
    spread,
)
from privstream.transforms.reading.local_times import EPOCH, SECONDS, has_zone, parse, parse_column, zone_clock
from privstream.transforms.timing.steps import MICROS

PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS, "ns": 1_000_000_000}
NAME = "time"

SYNTAX, UNIT, ZONE, SKIPPED = "syntax", "unit", "zone", "skipped"
NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")  # tries each digit once, however many
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
ISO_8601 = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d++)?)?)?(?P<zone>[Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""What text is a time, if its date exists. Arrow reads a part of that, and the same from it; a test compares them."""

TIME_TEXT = "ISO 8601 text with dashes and colons, such as 2030-01-31T12:00:00Z"

DIGITS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
CUT = Context(prec=60, rounding=ROUND_DOWN)
DIGITS_ALONE = r"^[0-9]{1,20}(\.[0-9]{1,9})?$"
LONGEST_INTEGER = 20  # characters; longer numbers are read as floats


def micros_of(value: Any, unit: str = "s", name: str = "time") -> int:
    """Return a Timestamp of Beam, a datetime (UTC if it names no zone) or a number in microseconds since 1970 UTC."""
    value = _plain(value)
    if is_timestamp(value):
        micros = int(value.micros)
    elif isinstance(value, datetime):
        micros = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise missing(name) if value is None else _wrong_type(name, type(value).__name__)
    elif isinstance(value, float) and not math.isfinite(value):
        raise not_finite(name)
    elif not 0 <= value < SECONDS * PER_SECOND[unit]:
        raise _out_of_range(name)
    elif isinstance(value, int):
        micros = value * MICROS // PER_SECOND[unit]
    elif isinstance(value, Decimal):
        micros = int(value.scaleb(DIGITS[unit], CUT))
    else:
        micros = math.floor(Fraction(repr(value)) * Fraction(MICROS, PER_SECOND[unit]))  # 0.1 is a tenth
    if not 0 <= micros < SECONDS * MICROS:
        raise _out_of_range(name)
    return micros


def is_timestamp(value: Any) -> bool:
    """Tell whether a value is a Timestamp of Beam, which is not loaded for that: nobody has one without it."""
    beam = sys.modules.get("apache_beam.utils.timestamp")
    return beam is not None and isinstance(value, beam.Timestamp)


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python: short ones cannot be compared with large ones; a duration is none."""
    if isinstance(value, np.floating):
        return float(value)
    return int(value) if isinstance(value, np.integer) and not isinstance(value, np.timedelta64) else value


@dataclass(frozen=True, kw_only=True)
class TimeForm:
    """How times are written where they are no timestamps.

    Attributes:
        unit: of numbers: s, ms, us or ns; None if there must be none.
        form: of text, as `strptime` reads it, or several with `|` between; None for ISO 8601, beside which there may be
            numbers as text.
        zone: of times that do not say how far they are from UTC; None if there must be none.
    """

    unit: str | None = None
    form: str | None = None
    zone: str | None = "UTC"


def read_micros(name: str, value: Any, written: TimeForm) -> int:
    """Return a text, a timestamp or a number in microseconds since 1970 UTC, or raise with the rule that it breaks."""
    found = _of_text(name, value, written) if isinstance(value, str) else value
    if written.unit is None and isinstance(found, numbers.Real | Decimal) and not isinstance(found, bool):
        raise BrokenRuleError(name, UNIT, f"{name} must not be a plain number without a time_unit")
    if isinstance(found, datetime) and found.tzinfo is None:
        times, marks = _column_at_zone((np.array([micros_of(found, name=name)]), []), written.zone, name)
        for mask, rule in marks:
            if mask[0]:
                raise rule
        return int(times[0])
    return micros_of(found, written.unit or "s", name)


def _of_text(name: str, text: str, written: TimeForm) -> datetime | int | float | Decimal:
    """Return the time or the number that a text is."""
    if written.form is not None:
        found = parse(text, written.form)
        if found is not None:
            return found
    elif ISO_8601.fullmatch(text):
        with suppress(ValueError):  # there is no such day
            return datetime.fromisoformat(text.upper())
    elif NUMBER.fullmatch(text) or (written.unit is not None and NOT_FINITE.fullmatch(text)):
        if NOT_FINITE.fullmatch(text):
            return float(text)
        return int(text) if text.lstrip("+-").isdecimal() and len(text) <= LONGEST_INTEGER else Decimal(text)
    raise BrokenRuleError(name, SYNTAX, f"{name} must be {TIME_TEXT}, or a number")


def micros_column(column: pa.Array, unit: str = "s") -> tuple[np.ndarray, Marks]:
    """Return timestamps or numbers in microseconds, int64, and which rows break a rule: what they are is not defined.

    A column of another type raises the rule.
    """
    kind = column.type
    nulls = null_rows(column)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), marked((nulls, partial(missing, NAME)))
    if pa.types.is_floating(kind):
        return _from_floats(column.cast(pa.float64()).fill_null(0.0).to_numpy(), nulls, PER_SECOND[unit])
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
        kind = column.type
    if pa.types.is_decimal(kind):
        return _from_decimals(column, nulls, PER_SECOND[unit])
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
    return micros, marked((nulls, partial(missing, NAME)), (outside, partial(_out_of_range, NAME)))


def read_times(column: pa.Array, written: TimeForm) -> tuple[np.ndarray, Marks]:
    """Return timestamps, numbers or text as `micros_column` does; text need not be valid UTF-8, and is no time then."""
    if pa.types.is_dictionary(column.type):
        times, marks = read_times(column.dictionary, written)
        rows, marks = spread(NAME, column, marks)
        return np.append(times, 0)[rows], marks
    if not is_text(column.type):
        timestamps = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
        if written.unit is None and not (timestamps or pa.types.is_null(column.type)):
            raise BrokenRuleError(NAME, UNIT, f"{NAME} must not be plain numbers without a time_unit")
        found = micros_column(column, written.unit or "s")
        return (
            _column_at_zone(found, written.zone) if timestamps and getattr(column.type, "tz", None) is None else found
        )
    if written.form is not None and not has_zone(written.form):
        return _of_form(column, written.form, written.zone)
    return (None if written.form is not None else _at_once(column, written)) or _one_by_one(column, written)


def _of_form(column: pa.Array, form: str, zone: str | None) -> tuple[np.ndarray, Marks]:
    """Return the times of texts of a form without a zone."""
    nulls = null_rows(column) | (pc.fill_null(pc.binary_length(column.cast(pa.binary())), 0).to_numpy() == 0)
    micros, read = parse_column(column, form)
    outside = read & ((micros < 0) | (micros >= SECONDS * MICROS))
    other = partial(BrokenRuleError, NAME, SYNTAX, f"{NAME} must be of the form {form}")
    marks = marked((nulls, partial(missing, NAME)), (~read & ~nulls, other), (outside, partial(_out_of_range, NAME)))
    return _column_at_zone((np.where(outside, 0, micros), marks), zone)


def _column_at_zone(found: tuple[np.ndarray, Marks], zone: str | None, name: str = NAME) -> tuple[np.ndarray, Marks]:
    """Return when the clocks of a zone showed a column of times."""
    local, marks = found
    if zone is None:
        said = "such as Z or +01:00, or with_fields(time_zone=..) by which clocks"
        rule = partial(BrokenRuleError, name, ZONE, f"{name} must say how far it is from UTC, {said}")
        return local, marks + marked((np.ones(len(local), np.bool_), rule))
    if zone == "UTC":
        return found
    times, skipped = zone_clock(zone).to_utc(local)
    left_out = f"{name} must be one that clocks show: they leave out an hour in spring"
    outside = (times < 0) | (times >= SECONDS * MICROS)
    rules = partial(BrokenRuleError, name, SKIPPED, left_out), partial(_out_of_range, name)
    return times, marks + marked(*zip((skipped, outside), rules, strict=True))


def _at_once(column: pa.Array, written: TimeForm) -> tuple[np.ndarray, Marks] | None:
    """Parse ISO 8601 or numbers at once, if all of the column is of one form; None if it is not.

    A number in another form than digits might be something else to Arrow: hexadecimal, or an exponent that takes its
    process down (pyarrow 25.0). Floats would round over a window's end.
    """
    forms: list[pa.DataType] = [pa.timestamp("ns", "UTC"), pa.timestamp("ns")]
    if pa.types.is_string_view(column.type):
        return None
    if written.unit is not None and pc.all(pc.match_substring_regex(column, DIGITS_ALONE)).as_py():
        forms = [pa.decimal128(38, 9)]
    for form in forms:
        with suppress(pa.ArrowInvalid):
            found = micros_column(column.cast(form), written.unit or "s")
            local = pa.types.is_timestamp(form) and form.tz is None
            return _column_at_zone(found, written.zone) if local else found
    return None


def _one_by_one(column: pa.Array, written: TimeForm) -> tuple[np.ndarray, Marks]:
    """Read text of several forms, or with wrong ones among it."""
    times = np.zeros(len(column), np.int64)
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, data in enumerate(column.cast(pa.binary()).to_pylist()):
        try:
            times[row] = read_micros(NAME, data.decode("utf-8", "replace") if data else None, written)
        except BrokenRuleError as rule:
            broken.setdefault(rule.code, (np.zeros(len(column), np.bool_), rule))[0][row] = True
    return times, list(broken.values())


def _from_floats(values: np.ndarray, nulls: np.ndarray, per_second: int) -> tuple[np.ndarray, Marks]:
    finite = np.isfinite(values)
    farthest = float(SECONDS * per_second)
    given = np.clip(np.where(finite, values, 0.0), -1.0, farthest)
    micros = _floored(given, per_second)
    outside = (given < 0) | (micros >= SECONDS * MICROS)
    rules = partial(missing, NAME), partial(not_finite, NAME), partial(_out_of_range, NAME)
    return micros, marked(*zip((nulls, ~finite, outside), rules, strict=True))


def _from_decimals(column: pa.Array, nulls: np.ndarray, per_second: int) -> tuple[np.ndarray, Marks]:
    rough = column.cast(pa.float64()).fill_null(0.0).to_numpy()
    outside = (rough < 0) | (rough >= SECONDS * per_second)
    fitting = pc.if_else(pa.array(outside | nulls), pa.scalar(Decimal(0), column.type), column)
    parts = max(1, MICROS // per_second)
    whole = fitting.cast(pa.decimal128(38, len(str(parts)) - 1), safe=False)  # which cuts further digits off
    numbers = np.frombuffer(whole.buffers()[1], np.int64)[::2][whole.offset : whole.offset + len(whole)]
    micros = numbers // max(1, per_second // MICROS)
    return micros, marked((nulls, partial(missing, NAME)), (outside, partial(_out_of_range, NAME)))


def _floored(values: np.ndarray, per_second: int) -> np.ndarray:
    """Return numbers in microseconds, cut down; those that are near a whole one are decided by their decimals."""
    micros = values * (MICROS / per_second)
    found = np.floor(micros).astype(np.int64)
    near = np.abs(micros - np.rint(micros)) <= np.spacing(np.abs(micros)) * 2
    for row in np.flatnonzero(near & (values != np.floor(values))).tolist():
        found[row] = math.floor(Fraction(repr(float(values[row]))) * Fraction(MICROS, per_second))
    whole = values == np.floor(values)
    if per_second <= MICROS:
        found[whole] = values[whole].astype(np.int64) * (MICROS // per_second)
    return found


def _wrong_type(name: str, kind: str) -> BrokenRuleError:
    return BrokenRuleError(name, TYPE, f"{name} must be a timestamp or a number of seconds since 1970, got {kind}")


def _out_of_range(name: str) -> BrokenRuleError:
    return BrokenRuleError(name, RANGE, f"{name} must be between 1970-01-01 and 2200-01-01")
