"""Times as microseconds since 1970 UTC, whatever a file holds them as."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.fields import TIME_UNITS, is_text
from privstream.pipelines.sources.texts import MISSING, TYPE, Marks, spread

SYNTAX, FINITE, RANGE, UNIT = "syntax", "finite", "range", "unit"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(2200, 1, 1, tzinfo=UTC)
SECONDS = int((LAST - EPOCH).total_seconds())

NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")  # tries each digit once, however many
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
ISO_8601 = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d++)?)?)?(?P<zone>[Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""What text is a time, if its date exists. Arrow reads a part of that, and the same from it; a test compares them."""

LONGEST_INTEGER = 20  # characters; longer numbers are read as floats


def read_times(values: pa.Array | list[Any], unit: str | None) -> tuple[np.ndarray, Marks]:
    """Turn a column into microseconds since 1970 UTC.

    Args:
        values: timestamps, numbers or text; in a list, anything.
        unit: the unit of plain numbers: s, ms, us, ns; None if there must be none.

    Returns:
        int64, shape (rows,), with anything at all where a rule is broken, and the broken rules.
    """
    array = _to_array(values, unit) if isinstance(values, list) else values
    if isinstance(array, pa.Array):
        if isinstance(array, pa.DictionaryArray):
            times, marks = read_times(array.dictionary, unit)
            return np.append(times, 0)[pc.fill_null(array.indices, len(times)).to_numpy()], spread(array, marks)
        found = _from_array(array, unit)
        if found is not None:
            return found
        values = (array.cast(pa.binary()) if is_text(array.type) else array).to_pylist()  # it may be no UTF-8
    return _one_by_one(values, unit)


def _to_array(values: list[Any], unit: str | None) -> pa.Array | list[Any]:
    """Turn Python values of one kind into an Arrow array; leave others."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds <= {str}:
            return pa.array(values, pa.string())
        if kinds <= {int} and unit:
            return pa.array(values, pa.int64())
        if kinds <= {int, float} and unit and unit != "ns":
            return pa.array(values, pa.float64())
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        pass
    return values


def _from_array(array: pa.Array, unit: str | None) -> tuple[np.ndarray, Marks] | None:
    """Turn an Arrow array into times at once; None if its values have to be looked at one by one."""
    if is_text(array.type):
        try:
            return _from_text(array.cast(pa.binary()).cast(pa.string()), unit)
        except pa.ArrowInvalid:
            return None
    marks = {MISSING: array.is_null().to_numpy(zero_copy_only=False)} if array.null_count else {}
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64), marks
    if pa.types.is_timestamp(array.type):
        unit, array = array.type.unit, array.cast(pa.int64())
    if unit is None:
        raise ValueError("plain numbers must have a time_unit")
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    times, wrong = _from_floats(numbers, unit) if numbers.dtype.kind == "f" else _from_integers(numbers, unit)
    return times, marks | wrong


def _from_text(array: pa.StringArray, unit: str | None) -> tuple[np.ndarray, Marks] | None:
    """Parse ISO 8601 or numbers at once, if all of the column is of the first value's form; None if it is not."""
    form = next((_form(text, unit) for text in array.drop_null()[:1].to_pylist()), pa.timestamp("ns"))
    if form is None or (pa.types.is_int64(form) and _beyond_integers(array)):
        return None
    try:
        parsed = array.cast(form)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_float64(form) and not pc.all(pc.is_finite(parsed)).as_py():
        return None
    return _from_array(parsed, unit)


def _form(text: str, unit: str | None) -> pa.DataType | None:
    """Return the Arrow type that reads text of the same form, or None."""
    iso = ISO_8601.fullmatch(text)
    if iso:
        return pa.timestamp("ns", "UTC") if iso["zone"] else pa.timestamp("ns")
    if unit is None or not NUMBER.fullmatch(text):
        return None
    return pa.int64() if unit == "ns" else pa.float64()  # floats are too short for nanoseconds


def _beyond_integers(array: pa.StringArray) -> bool:
    """Tell whether Arrow might read as an integer what is none here: hexadecimal, or a long row of zeros."""
    longest = pc.max(pc.binary_length(array)).as_py()
    return bool(longest > LONGEST_INTEGER or pc.any(pc.match_substring_regex(array, "[xX]")).as_py())


def _from_integers(numbers: np.ndarray, unit: str) -> tuple[np.ndarray, Marks]:
    """Turn integers of a unit into microseconds, rounding down."""
    per_second = TIME_UNITS[unit]
    outside = (numbers < 0) | (numbers >= SECONDS * per_second)
    inside = np.where(outside, 0, numbers).astype(np.int64) if outside.any() else numbers.astype(np.int64)
    times = inside * (1_000_000 // per_second) if per_second <= 1_000_000 else inside // (per_second // 1_000_000)
    return times, {RANGE: outside} if outside.any() else {}


def _from_floats(numbers: np.ndarray, unit: str) -> tuple[np.ndarray, Marks]:
    """Turn floats of a unit into microseconds, rounding to the nearest."""
    finite = np.isfinite(numbers)
    values = np.where(finite, numbers, 0.0).astype(np.float64)
    outside = (values < 0) | (values >= SECONDS * TIME_UNITS[unit])
    scaled = np.rint(np.where(outside, 0.0, values) * (1_000_000 / TIME_UNITS[unit]))
    outside |= scaled >= SECONDS * 1_000_000
    times = np.where(outside, 0.0, scaled).astype(np.int64)
    marks = {FINITE: ~finite, RANGE: outside}
    return times, {rule: mask for rule, mask in marks.items() if mask.any()}


def _one_by_one(values: list[Any], unit: str | None) -> tuple[np.ndarray, Marks]:
    """Read times of several kinds, or with wrong ones among them."""
    times = np.zeros(len(values), np.int64)
    marks: Marks = {}
    for row, value in enumerate(values):
        time = _read_one(value, unit)
        if isinstance(time, str):
            marks.setdefault(time, np.zeros(len(values), bool))[row] = True
        else:
            times[row] = time
    return times, marks


def _read_one(value: object, unit: str | None) -> int | str:
    """Return microseconds since 1970, or the name of the rule that the value breaks."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return TYPE
    if isinstance(value, str):
        if ISO_8601.fullmatch(value):
            return _read_iso(value)
        if not NUMBER.fullmatch(value) and (unit is None or not NOT_FINITE.fullmatch(value)):
            return SYNTAX
        value = int(value) if value.lstrip("+-").isdecimal() and len(value) <= LONGEST_INTEGER else float(value)
    return UNIT if unit is None else _read_number(value, unit)


def _read_number(value: float, unit: str) -> int | str:
    """Turn a number of a unit into microseconds, by the rules for arrays."""
    if isinstance(value, float) and not math.isfinite(value):
        return FINITE
    if not 0 <= value < SECONDS * TIME_UNITS[unit]:
        return RANGE
    numbers = np.array([value], np.int64 if isinstance(value, int) else np.float64)
    times, marks = (_from_integers if isinstance(value, int) else _from_floats)(numbers, unit)
    return RANGE if marks else int(times[0])


def _read_iso(text: str) -> int | str:
    """Parse ISO 8601; a time without an offset is UTC."""
    try:
        time = datetime.fromisoformat(text.upper())
    except ValueError:
        return SYNTAX
    micros = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
    return micros if 0 <= micros < SECONDS * 1_000_000 else RANGE
