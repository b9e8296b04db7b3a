"""Numbers that events have beside their items, in whatever form a file has them."""

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from privstream.pipelines.sources.fields import is_text
from privstream.pipelines.sources.texts import Marks
from privstream.transforms.events.broken_rule import BrokenRuleError
from privstream.transforms.events.values import VALUE, value_column, value_of


def read_values(values: pa.Array | list[Any], *, whole: bool) -> tuple[pa.Array, Marks]:
    """Turn a column into numbers, float64, and tell which rows break a rule.

    Args:
        values: numbers, or text or bytes that are numbers in decimal digits; in a list, anything.
        whole: whether they must be whole numbers.
    """
    if isinstance(values, list):
        return _from_list(values, whole=whole)
    if is_text(values.type) and not pa.types.is_dictionary(values.type):
        try:
            values = values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:  # bytes that are no text are no number either
            return _from_list(values.cast(pa.binary()).to_pylist(), whole=whole)
    numbers, broken = value_column(values, whole=whole)
    marks: Marks = {}
    for mask, rule in broken:
        if mask.any():
            name = _rule(rule)
            marks[name] = mask | marks.get(name, np.zeros(len(mask), bool))
    return numbers, marks


def _from_list(values: list[Any], *, whole: bool) -> tuple[pa.Array, Marks]:
    """Turn Python values into numbers, at once where they are of one kind."""
    if set(map(type, values)) <= {int, float}:
        with suppress(OverflowError):
            return read_values(pa.array([float(value) for value in values], pa.float64()), whole=whole)
    numbers = np.zeros(len(values))
    marks: Marks = {}
    for row, value in enumerate(values):
        read = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        try:
            numbers[row] = value_of(read, whole=whole)
        except BrokenRuleError as error:
            marks.setdefault(_rule(error), np.zeros(len(values), bool))[row] = True
    return pa.array(numbers), marks


def _rule(error: BrokenRuleError) -> str:
    """Return the kind of a rule."""
    return error.code.removeprefix(f"{VALUE}_")
