"""Columns of users, items and streams: text, integers, and lists of text, in any of Arrow's encodings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.events.broken_rule import ENCODING, LONG, MISSING, TYPE, BrokenRuleError
from privstream.transforms.events.times import Marks, null_rows

TEXT_PER_BATCH = 1 << 24  # bytes
LONGEST_TEXT = 1 << 20
"""Bytes of UTF-8 that a user, an item or a stream has at most."""

FARTHEST_POINT = 1 << 60
_AS_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_NUMBER = r"^[+-]?1?[0-9]{1,18}$"  # all that could be such a point, and nothing that int64 has no room for


def missing(name: str) -> BrokenRuleError:
    """Return the rule that a field is there."""
    return BrokenRuleError(name, MISSING, f"{name} must not be null")


def empty(name: str) -> BrokenRuleError:
    """Return the rule that a text is not empty."""
    return BrokenRuleError(name, MISSING, f"{name} must not be empty")


def wrong_type(name: str, kind: object) -> BrokenRuleError:
    """Return the rule that a field is text."""
    return BrokenRuleError(name, TYPE, f"{name} must be text or an integer, got {kind}")


def no_unicode(name: str) -> BrokenRuleError:
    """Return the rule that text can be written in UTF-8."""
    return BrokenRuleError(name, ENCODING, f"{name} must be valid Unicode")


def too_long(name: str) -> BrokenRuleError:
    """Return the rule that a text is not too long."""
    return BrokenRuleError(name, LONG, f"{name} must be at most {LONGEST_TEXT:,} bytes of UTF-8")


def damaged(name: str) -> BrokenRuleError:
    """Return the rule that a column points to its own memory."""
    return BrokenRuleError(name, TYPE, f"{name} must be a column that is not damaged")


def no_number(name: str) -> BrokenRuleError:
    """Return the rule that a point is a number."""
    return BrokenRuleError("point", TYPE, f"{name}, the point, must be a whole number between -2**60 and 2**60")


def check_kind(name: str, kind: pa.DataType, *, lists: bool = False) -> bool:
    """Refuse the type of a column that cannot be text; return whether it is one of lists.

    Raises:
        BrokenRuleError: it is none of text, integers, nulls, a dictionary of these or, with `lists`, lists of these.
    """
    if lists and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        check_kind(name, kind.value_type)
        return True
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(value) or pa.types.is_integer(value) or pa.types.is_null(value)):
        raise wrong_type(name, kind)
    return False


def _is_text(kind: pa.DataType) -> bool:
    return kind in _AS_BINARY


def checked(name: str, column: pa.Array) -> pa.Array:
    """Return a column, as bytes if its text is not all valid; one that points out of its own memory is refused."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        column = _as_binary(column)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise damaged(name) from None
    return column


def _as_binary(column: pa.Array) -> pa.Array:
    """Return text as bytes: the same memory."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, _as_binary(column.dictionary), safe=False)
    return column.cast(_AS_BINARY[kind]) if _is_text(kind) else column


def decoded_lengths(name: str, column: pa.Array) -> np.ndarray | None:
    """Return the bytes of text in each row, where Arrow's plain text, of 2 GiB, may have no room for it; else None.

    Texts that are too long count for nothing: they are never written out.
    """
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        rows, values = _flat(name, column)
        lengths = decoded_lengths(name, values)
        return None if lengths is None else np.bincount(rows, lengths, minlength=len(column)).astype(np.int64)
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        column = checked(name, column)
        lengths = np.append(_usable_lengths(column.dictionary), 0)
        return np.asarray(lengths[pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy()])
    return _usable_lengths(checked(name, column)) if kind in (pa.large_string(), pa.string_view()) else None


def _usable_lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each text that is not too long, else 0."""
    lengths = _lengths(texts)
    return np.where(lengths > LONGEST_TEXT, 0, lengths)


def _lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each text, int32 or int64; 0 for a null."""
    if not pa.types.is_string_view(texts.type):
        lengths = pc.binary_length(texts)
        return np.asarray((pc.fill_null(lengths, 0) if texts.null_count else lengths).to_numpy())
    views = np.frombuffer(texts.buffers()[1] or b"", np.int32)[::4]  # Arrow has no function for these yet
    return np.where(texts.is_valid(), views[texts.offset : texts.offset + len(texts)], 0).astype(np.int64)


def text_column(name: str, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column of a type that `check_kind` lets pass as text, and which rows break a rule.

    What stands in these rows is not defined.

    Raises:
        BrokenRuleError: the column is damaged.
    """
    column = checked(name, column)
    if pa.types.is_dictionary(column.type):
        return _from_dictionary(name, column)
    nulls = null_rows(column)
    if not _is_text(column.type):
        if column.type in _AS_BINARY.values():
            return _mend(name, column, nulls)
        return column.cast(pa.string()).fill_null("-"), [(nulls, missing(name))]
    lengths = _lengths(column)
    long = lengths > LONGEST_TEXT
    return _short(column, nulls | long), [
        (nulls, missing(name)),
        (lengths == 0, empty(name)),
        (long, too_long(name)),
    ]


def _from_dictionary(name: str, column: pa.DictionaryArray) -> tuple[pa.Array, Marks]:
    """Check each text of a dictionary once, and write out those that can be used."""
    texts, found = text_column(name, column.dictionary)
    rows = pc.fill_null(column.indices.cast(pa.int64()), len(texts)).to_numpy()
    nulls = null_rows(column.indices)
    decoded = pa.DictionaryArray.from_arrays(column.indices, texts, safe=False).dictionary_decode()
    return decoded.fill_null(""), [
        (nulls, missing(name)),
        *[(np.append(mask, False)[rows], rule) for mask, rule in found],
    ]


def _short(column: pa.Array, dropped: np.ndarray) -> pa.Array:
    """Return a column as plain strings, without the texts that are not used."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if dropped.any():
        column = pc.if_else(pa.array(~dropped), column, pa.scalar("", column.type))
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _mend(name: str, column: pa.Array, nulls: np.ndarray) -> tuple[pa.Array, Marks]:
    """Return bytes as text, one by one: the slow way, for damaged input alone."""
    invalid = np.zeros(len(column), np.bool_)
    texts = []
    for row, data in enumerate(column.to_pylist()):
        try:
            texts.append("" if data is None else data.decode())
        except UnicodeDecodeError:
            invalid[row] = True
            texts.append("-")
    found, marks = text_column(name, pa.array(texts, pa.large_string()))
    return found, [(nulls, missing(name)), (invalid, no_unicode(name)), *marks]


def _flat(name: str, column: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return row and value of everything in a column of lists."""
    offsets = column.offsets.to_numpy()
    if len(column) and (offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(column.values)):
        raise damaged(name)
    return pc.list_parent_indices(column).to_numpy().astype(np.int64), pc.list_flatten(column)


def list_column(name: str, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column of lists of texts, and which rows break a rule. A list may be empty, and so may its texts.

    Raises:
        BrokenRuleError: the column is damaged.
    """
    nulls = null_rows(column)
    rows, values = _flat(name, column)
    texts, found = text_column(name, values)
    marks: Marks = [(nulls, missing(name))]
    for mask, rule in found:
        if str(rule) != str(empty(name)):
            marks.append((np.bincount(rows[mask], minlength=len(column)) > 0, rule))
    lengths = np.bincount(rows, _lengths(texts), minlength=len(column))
    marks.append((lengths > LONGEST_TEXT, too_long(name)))
    ends = np.append(0, np.cumsum(np.bincount(rows, minlength=len(column))))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), texts), marks


def number_column(name: str, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column as `text_column` takes it as points, int64, and which rows are none.

    Raises:
        BrokenRuleError: the column is damaged.
    """
    if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
        marks = [(null_rows(column), missing(name))]
        numbers = column.fill_null(0).cast(pa.int64())
    else:
        texts, marks = text_column(name, column)
        fits = pc.match_substring_regex(texts, _NUMBER)
        numbers = pc.replace_substring_regex(pc.if_else(fits, texts, "0"), r"^\+", "").cast(pa.int64())
        marks.append((~fits.to_numpy(zero_copy_only=False), no_number(name)))
    points = numbers.to_numpy()
    return numbers, [*marks, ((points < -FARTHEST_POINT) | (points > FARTHEST_POINT), no_number(name))]
