"""Numbers that events have, such as a price or a duration: single ones, and columns of them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.events.broken_rule import FINITE, TYPE, BrokenRuleError
from privstream.transforms.events.text_columns import check_kind, checked, empty, missing, text_column
from privstream.transforms.events.times import Marks, null_rows

VALUE, WHOLE_NUMBER = "value", "whole"
_LONGEST = 400
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,4})?$"


def value_of(value: Any, *, whole: bool) -> float:
    """Return the value of an event, or raise with the rule that it breaks.

    Args:
        value: a number, or text that is one in decimal digits, with a point and an exponent at most.
        whole: whether it must be a whole number; 5.0 is one.
    """
    if value is None:
        raise missing(VALUE)
    if isinstance(value, str):
        if not value:
            raise empty(VALUE)
        if len(value) > _LONGEST or not re.fullmatch(_NUMBER, value, re.ASCII):
            raise _no_value("text")
    elif not isinstance(value, Real | Decimal) or isinstance(value, bool | np.timedelta64):
        raise _no_value(type(value).__name__)
    try:
        number = float(value)
    except (OverflowError, ValueError):  # an integer that is too large, a signalling NaN
        number = math.inf
    if not math.isfinite(number):
        raise _not_finite()
    if whole and not number.is_integer():
        raise _not_whole()
    return number


def value_column(column: pa.Array, *, whole: bool) -> tuple[pa.Array, Marks]:
    """Return a column of values, float64, and which rows break a rule; what stands in these rows is not defined.

    Raises:
        BrokenRuleError: the column is damaged, or of a type that has no numbers.
    """
    column = checked(VALUE, column)
    if pa.types.is_dictionary(column.type):
        found, marks = value_column(column.dictionary, whole=whole)
        rows = pc.fill_null(column.indices.cast(pa.int64()), len(found)).to_numpy()
        spread = [(np.append(mask, False)[rows], rule) for mask, rule in marks]
        return pa.array(np.append(found.to_numpy(), 0.0)[rows]), [(null_rows(column.indices), missing(VALUE)), *spread]
    numbers, marks = _numbers(column)
    finite = np.isfinite(numbers)
    marks.append((~finite, _not_finite()))
    if whole:
        marks.append((finite & (numbers != np.floor(numbers)), _not_whole()))
    return pa.array(numbers), marks


def _numbers(column: pa.Array) -> tuple[np.ndarray, Marks]:
    """Return the numbers in a column that is no dictionary."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        numbers = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
        return numbers, [(null_rows(column), missing(VALUE))]
    try:
        check_kind(VALUE, kind)
    except BrokenRuleError:
        raise _no_value(kind) from None
    texts, marks = text_column(VALUE, column)
    fits = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    fits &= pc.binary_length(texts).to_numpy(zero_copy_only=False) <= _LONGEST
    usable = pc.if_else(pa.array(fits), texts, "0")
    try:
        numbers = usable.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # it does not read all that Python reads, such as +5
        numbers = np.array([float(text) for text in usable.to_pylist()], np.float64)
    return numbers, [*marks, (~fits, _no_value("text"))]


def _no_value(kind: object) -> BrokenRuleError:
    """Return the rule that a value is a number."""
    return BrokenRuleError(VALUE, TYPE, f"value must be a number, got {kind}")


def _not_finite() -> BrokenRuleError:
    """Return the rule that a value is finite."""
    return BrokenRuleError(VALUE, FINITE, "value must be finite")


def _not_whole() -> BrokenRuleError:
    """Return the rule that a value is a whole number."""
    return BrokenRuleError(VALUE, WHOLE_NUMBER, "value must be a whole number")
