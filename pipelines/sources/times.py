"""Times as microseconds since 1970 UTC, in whatever form a file has them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.fields import is_text
from privstream.pipelines.sources.texts import Marks, spread
from privstream.transforms.events.broken_rule import BrokenRuleError
from privstream.transforms.events.times import (
    ISO_8601,
    LONGEST_INTEGER,
    NAME,
    NUMBER,
    micros_column,
    read_micros,
)


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
    if unit is None and not (pa.types.is_timestamp(array.type) or pa.types.is_null(array.type)):
        raise ValueError("plain numbers must have a time_unit")
    times, broken = micros_column(array, unit or "s")
    return times, {_name(rule): rows for rows, rule in broken if rows.any()}


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
    try:
        return read_micros(NAME, None if value == "" else value, unit)
    except BrokenRuleError as rule:
        return _name(rule)


def _name(rule: BrokenRuleError) -> str:
    """Return the name of a rule."""
    return rule.code.removeprefix(f"{NAME}_")
