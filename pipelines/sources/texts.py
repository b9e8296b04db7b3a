"""Users, items and streams as UTF-8 columns, in whatever form a file has them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Marks = dict[str, np.ndarray]
"""Name of a rule -> bool array, shape (rows,), true where it is broken."""

MISSING, TYPE, ENCODING, LONG = "missing", "type", "encoding", "long"


def read_texts(values: pa.Array | list[Any], max_bytes: int) -> tuple[pa.Array, Marks]:
    """Turn a column into text; a dictionary stays one, without the texts that break a rule.

    Args:
        values: text, bytes or integers; in a list, anything.
        max_bytes: longest text accepted, in bytes of UTF-8.

    Returns:
        The column as text, with nulls or anything at all where a rule is broken, and the broken rules.
    """
    if isinstance(values, pa.DictionaryArray):
        texts, marks = read_texts(values.dictionary, max_bytes)
        dropped = np.logical_or.reduce(list(marks.values())) if marks else np.zeros(len(texts), bool)
        usable = pc.if_else(pa.array(~dropped), texts, None) if dropped.any() else texts
        return pa.DictionaryArray.from_arrays(values.indices, usable), spread(values, marks)
    texts, marks = _from_list(values) if isinstance(values, list) else _from_array(values)
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    refused = np.logical_or.reduce(list(marks.values())) if marks else False
    missing, long = (lengths == 0) & ~np.asarray(refused), lengths > max_bytes
    if missing.any():
        marks[MISSING] = missing
    if long.any():
        marks[LONG] = long
    return texts, marks


def spread(rows: pa.DictionaryArray, marks: Marks) -> Marks:
    """Return the rules that rows break, from those that the texts of their dictionary break; a null is missing."""
    numbers = pc.fill_null(rows.indices, len(rows.dictionary)).to_numpy()
    nulls = {MISSING: np.zeros(len(rows.dictionary), bool)} if rows.indices.null_count else {}
    found = {rule: np.append(mask, rule == MISSING)[numbers] for rule, mask in (nulls | marks).items()}
    return {rule: mask for rule, mask in found.items() if mask.any()}


def _from_array(values: pa.Array) -> tuple[pa.StringArray, Marks]:
    """Turn an Arrow column into text."""
    if pa.types.is_null(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string()), {}
    data = values.cast(pa.binary())
    try:
        return data.cast(pa.string()), {}  # checks the encoding, which Arrow does not do when it reads Parquet
    except pa.ArrowInvalid:
        return _one_by_one(data.to_pylist())


def _from_list(values: list[Any]) -> tuple[pa.StringArray, Marks]:
    """Turn Python values into text, at once where they are of one kind."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds <= {str}:
            return pa.array(values, pa.string()), {}
        if kinds == {int}:
            return pa.array(values, pa.int64()).cast(pa.string()), {}
        if kinds == {bytes}:
            return _from_array(pa.array(values, pa.binary()))
    except (UnicodeEncodeError, OverflowError):
        pass
    return _one_by_one(values)


def _one_by_one(values: list[Any]) -> tuple[pa.StringArray, Marks]:
    """Turn values of several kinds, or with wrong ones among them, into text."""
    marks = {TYPE: np.zeros(len(values), bool), ENCODING: np.zeros(len(values), bool)}
    texts: list[str | None] = []
    for row, value in enumerate(values):
        text = None
        try:
            if isinstance(value, bytes):
                text = value.decode()
            elif isinstance(value, str):
                text = value.encode().decode()
            elif isinstance(value, int) and not isinstance(value, bool):
                text = str(value)
            elif value is not None:
                marks[TYPE][row] = True
        except UnicodeError:
            marks[ENCODING][row] = True
        texts.append(text)
    return pa.array(texts, pa.string()), {rule: mask for rule, mask in marks.items() if mask.any()}
