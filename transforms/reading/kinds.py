"""What the fields of a filter are read as: numbers, texts, or truth values; none where an event has no value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.columns import as_text, is_text, read_text, text_column, value_column, value_of
from privstream.transforms.reading.fields import MISSING, TYPE, BrokenRuleError, Marks, null_rows

NUMBER, TEXT, TRUTH = "a number", "text", "true or false"
KINDS: Mapping[str, pa.DataType] = {NUMBER: pa.float64(), TEXT: pa.string(), TRUTH: pa.bool_()}
"""What a field may be read as, and how Arrow holds it."""


def read_as(name: str, kind: str | None, value: Any) -> float | str | bool | None:
    """Return a value as the kind that a condition needs; None for no value."""
    if value is None or (isinstance(value, str) and not value):
        return None
    if kind is None:
        return True
    try:
        if kind != TRUTH:
            return value_of(value, whole=False) if kind == NUMBER else read_text("where", value)
    except BrokenRuleError as rule:
        raise _of_filter(name, kind, rule) from None
    truths = {"true": True, "false": False}
    found = truths.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool | np.bool_):
        raise wrong_kind(name, kind)
    return bool(found)


def column_of_kind(name: str, kind: str | None, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column as the kind that a condition needs, null where it has no value, and which rows break a rule.

    Args:
        name: of the field.
        kind: what it is read as; None if it is only asked whether it is there.
        column: its text need not be valid, but text that is bytes must be called text (`unchecked_text`).
    """
    column = as_text(column) if kind == TEXT else column
    text = is_text(column.type)
    if pa.types.is_dictionary(column.type) and not text:
        column = column.dictionary_decode()
    whole, truth = pa.types.is_integer(column.type), pa.types.is_boolean(column.type)
    number = whole or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if not text and not {NUMBER: number, TEXT: whole, TRUTH: truth, None: True}[kind]:
        return pa.nulls(len(column), KINDS[str(kind)]), [(~null_rows(column), wrong_kind(name, str(kind)))]
    if not text and kind in (TRUTH, None):
        return column, []
    read = value_column(column, whole=False) if kind == NUMBER else text_column("where", column)
    found, marks = with_nulls(*read)
    if kind is None:
        return found, []
    marks = [(mask, _of_filter(name, kind, rule)) for mask, rule in marks]
    if kind != TRUTH:
        return found, marks
    lower = pc.utf8_lower(found)
    known = pc.fill_null(pc.or_(pc.equal(lower, "true"), pc.equal(lower, "false")), True)
    return pc.equal(lower, "true"), [*marks, (~known.to_numpy(zero_copy_only=False), wrong_kind(name, TRUTH))]


def with_nulls(column: pa.Array, marks: Marks) -> tuple[pa.Array, Marks]:
    """Return a column with null where a value is missing, which then breaks no rule."""
    missing = np.zeros(len(column), np.bool_)
    for mask, rule in marks:
        missing |= mask & rule.code.endswith(f"_{MISSING}")
    others = [(mask & ~missing, rule) for mask, rule in marks if not rule.code.endswith(f"_{MISSING}")]
    return pc.if_else(pa.array(missing), pa.scalar(None, column.type), column), others


def _of_filter(name: str, kind: str, rule: BrokenRuleError) -> BrokenRuleError:
    """Return a rule about a field of an event as one about a field of the filter."""
    what = rule.code.rpartition("_")[2]
    return BrokenRuleError("where", TYPE if what == MISSING else what, str(wrong_kind(name, kind)))


def wrong_kind(name: str, kind: str) -> BrokenRuleError:
    """Return the rule that a field is of a kind."""
    whole = {NUMBER: "a finite number", TEXT: "valid text that is not too long, or an integer"}.get(kind, kind)
    return BrokenRuleError("where", TYPE, f"field `{name}`, which where reads, must be {whole}")
