"""Columns of events in any of Arrow's encodings, and single values: texts, points and numbers, by the same rules.

A column that is damaged, or of a type that cannot be what it is to be, raises `BrokenRuleError`.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.fields import (
    LONGEST_TEXT,
    TYPE,
    VALUE,
    BrokenRuleError,
    Marks,
    empty,
    marked,
    missing,
    no_point,
    no_unicode,
    no_value,
    not_finite,
    not_whole,
    null_rows,
    spread,
    too_long,
    wrong_type,
)

TEXT_PER_BATCH = 1 << 24  # bytes
FARTHEST_POINT = 1 << 60
LONGEST_NUMBER = 400  # characters
_AS_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_BINARIES = tuple(_AS_BINARY.values())
_POINT = r"^[+-]?1?[0-9]{1,18}$"  # all that could be such a point, and nothing that int64 has no room for
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,4})?$"


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or bytes that may be UTF-8."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return value in _AS_BINARY or value in _BINARIES or pa.types.is_fixed_size_binary(value)


def is_known_as_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or what `as_text` and `text_column` make text of."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_null, pa.types.is_date, pa.types.is_decimal, pa.types.is_boolean)
    return is_text(value) or isinstance(value, pa.UuidType) or any(test(value) for test in tests)


def as_text(column: pa.Array) -> pa.Array:
    """Return days, decimals, truth values and UUIDs as the texts that they are known by; other columns as they are."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, as_text(column.dictionary), safe=False)
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    written = pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if written else column


def unchecked_text(column: pa.Array) -> pa.Array:
    """Return bytes as text that need not be valid, in the same memory: for `text_column` and others, which check it."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, unchecked_text(column.dictionary), safe=False)
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    for text, data in _AS_BINARY.items():
        if column.type == data:
            return pc.cast(column, options=pc.CastOptions(target_type=text, allow_invalid_utf8=True))
    return column


def _as_binary(column: pa.Array) -> pa.Array:
    """Return text as bytes: the same memory."""
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _as_binary(column.dictionary), safe=False)
    return column.cast(_AS_BINARY[column.type]) if column.type in _AS_BINARY else column


def checked(name: str, column: pa.Array) -> pa.Array:
    """Return a column, as bytes if its text is not all valid; one that points out of its own memory is refused."""
    for binary in (False, True):
        found = _as_binary(column) if binary else column
        with suppress(pa.ArrowInvalid):
            found.validate(full=True)
            return found
    raise BrokenRuleError(name, TYPE, f"{name} must be a column that is not damaged")


def check_kind(name: str, kind: pa.DataType) -> None:
    """Refuse the type of a column that cannot be text.

    Raises:
        BrokenRuleError: it is none of text, integers, nulls or a dictionary of these.
    """
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (value in _AS_BINARY or pa.types.is_integer(value) or pa.types.is_null(value)):
        raise wrong_type(name, kind)


def _lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each text, int32 or int64; 0 for a null."""
    if not pa.types.is_string_view(texts.type):
        lengths = pc.binary_length(texts)
        return np.asarray((pc.fill_null(lengths, 0) if texts.null_count else lengths).to_numpy())
    views = np.frombuffer(texts.buffers()[1] or b"", np.int32)[::4]  # Arrow has no function for these yet
    return np.where(texts.is_valid(), views[texts.offset : texts.offset + len(texts)], 0).astype(np.int64)


def decoded_lengths(name: str, column: pa.Array) -> np.ndarray | None:
    """Return the bytes of text in each row, where Arrow's plain text, of 2 GiB, may have no room for it; else None.

    Texts that are too long count for nothing: they are never written out.
    """
    kind = column.type
    coded = pa.types.is_dictionary(kind)
    if not (coded and kind.value_type in _AS_BINARY) and kind not in (pa.large_string(), pa.string_view()):
        return None
    column = checked(name, column)
    lengths = _lengths(column.dictionary if coded else column)
    lengths = np.where(lengths > LONGEST_TEXT, 0, lengths)
    return np.append(lengths, 0)[spread(name, column, [])[0]] if coded else lengths


def cut_by_text(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Cut a batch such that no piece of several rows has more than `TEXT_PER_BATCH` of text in some columns.

    A dictionary says much in few bytes.
    """
    found = [decoded_lengths(name, batch[name]) for name in names if batch.schema.names.count(name) == 1]
    lengths = [column for column in found if column is not None]
    if not lengths:
        yield batch
        return
    ends, first = np.cumsum(np.sum(lengths, axis=0)), 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield batch.slice(first, last - first)
        first = last


def text_column(name: str, column: pa.Array, longest: int = LONGEST_TEXT) -> tuple[pa.Array, Marks]:
    """Return a column of a type that `check_kind` lets pass as text, and which rows break a rule.

    What stands in these rows is not defined. Text may have up to `longest` bytes.
    """
    column = checked(name, column)
    if pa.types.is_dictionary(column.type):  # each text of the dictionary is checked once
        texts, found = text_column(name, column.dictionary, longest)
        broken = np.logical_or.reduce([mask for mask, _ in found])
        texts = pc.if_else(pa.array(~broken), texts, "") if broken.any() else texts
        coded = pa.DictionaryArray.from_arrays(column.indices, texts, safe=False)
        return coded.dictionary_decode().fill_null(""), spread(name, column, found)[1]
    nulls = null_rows(column)
    if column.type in _BINARIES:  # one by one: damaged input alone is
        texts = [None if data is None else _decoded(data) for data in column.to_pylist()]
        invalid = np.array([text is None for text in texts], np.bool_) & ~nulls
        found_texts, marks = text_column(name, pa.array([text or "" for text in texts], pa.large_string()), longest)
        return found_texts, [*marked((nulls, partial(missing, name)), (invalid, partial(no_unicode, name))), *marks]
    if column.type not in _AS_BINARY:
        return column.cast(pa.string()).fill_null("-"), marked((nulls, partial(missing, name)))
    lengths = _lengths(column)
    long = lengths > longest
    marks = marked(
        (nulls, partial(missing, name)),
        (lengths == 0, partial(empty, name)),
        (long, partial(too_long, name, longest)),
    )
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    dropped = nulls if pa.types.is_string(column.type) else nulls | long  # plain text has room for 2 GiB
    if dropped.any():
        column = pc.if_else(pa.array(~dropped), column, pa.scalar("", column.type))
    return column.cast(pa.string()), marks


def _decoded(data: bytes) -> str | None:
    with suppress(UnicodeDecodeError):
        return data.decode()
    return None


def number_column(name: str, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column as `text_column` takes it as points, int64, and which rows are none."""
    if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
        marks = marked((null_rows(column), partial(missing, name)))
        points = column.fill_null(0).cast(pa.int64())
    else:
        texts, marks = text_column(name, column)
        fits = pc.match_substring_regex(texts, _POINT)
        points = pc.replace_substring_regex(pc.if_else(fits, texts, "0"), r"^\+", "").cast(pa.int64())
        marks += marked((~fits.to_numpy(zero_copy_only=False), partial(no_point, name)))
    found = points.to_numpy()
    return points, marks + marked(((found < -FARTHEST_POINT) | (found > FARTHEST_POINT), partial(no_point, name)))


def value_column(column: pa.Array, *, whole: bool) -> tuple[pa.Array, Marks]:
    """Return a column of values, float64, and which rows break a rule; what stands in these rows is not defined."""
    if column.type in _BINARIES:
        raise no_value(column.type)
    column = checked(VALUE, column)
    if pa.types.is_dictionary(column.type):
        found, marks = value_column(unchecked_text(column.dictionary), whole=whole)
        rows, marks = spread(VALUE, column, marks)
        return pa.array(np.append(found.to_numpy(), 0.0)[rows]), marks
    found, marks = _numbers(column)
    finite = np.isfinite(found)
    marks += marked((~finite, partial(not_finite, VALUE)))
    if whole:
        marks += marked((finite & (found != np.floor(found)), not_whole))
    return pa.array(found), marks


def _numbers(column: pa.Array) -> tuple[np.ndarray, Marks]:
    """Return the numbers in a column that is no dictionary."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        found = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
        return found, marked((null_rows(column), partial(missing, VALUE)))
    if not (kind in _AS_BINARY or kind in _BINARIES):
        raise no_value(kind)
    texts, marks = text_column(VALUE, column)
    fits = pc.match_substring_regex(texts, _DECIMAL).to_numpy(zero_copy_only=False)
    fits &= pc.binary_length(texts).to_numpy(zero_copy_only=False) <= LONGEST_NUMBER
    usable = pc.if_else(pa.array(fits), texts, "0")
    try:
        found = usable.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # it does not read all that Python reads, such as +5
        found = np.array([float(text) for text in usable.to_pylist()], np.float64)
    return found, marks + marked((~fits, partial(no_value, "text")))


def value_of(value: Any, *, whole: bool) -> float:
    """Return a number, or text that is one in decimal digits, with a point and an exponent at most; 5.0 is whole."""
    if value is None:
        raise missing(VALUE)
    if isinstance(value, str):
        if not value:
            raise empty(VALUE)
        if len(value) > LONGEST_NUMBER or not re.fullmatch(_DECIMAL, value, re.ASCII):
            raise no_value("text")
    elif not isinstance(value, Real | Decimal) or isinstance(value, bool | np.timedelta64):
        raise no_value(type(value).__name__)
    try:
        number = float(value)
    except (OverflowError, ValueError):  # an integer that is too large, a signalling NaN
        number = math.inf
    if not math.isfinite(number):
        raise not_finite(VALUE)
    if whole and not number.is_integer():
        raise not_whole()
    return number


def read_text(name: str, value: Any, *, least: int = 1, longest: int = LONGEST_TEXT) -> str:
    """Return a user or an item as text, of `least` characters to `longest` bytes."""
    if value is None:
        raise missing(name)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64):
        with suppress(ValueError):  # Python refuses to write very long numbers
            if len(text := str(int(value))) <= longest:
                return text
        raise too_long(name, longest)
    if not isinstance(value, str):
        raise wrong_type(name, type(value).__name__)
    text = str.__str__(value)  # itself, whatever a subclass says of it
    if len(text) < least:
        raise empty(name)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise no_unicode(name) from None
    if size > longest:
        raise too_long(name, longest)
    return text


def read_point(name: str, value: Any) -> int:
    """Return a point of a single event."""
    text = read_text(name, value)
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19) or abs(int(text)) > FARTHEST_POINT:
        raise no_point(name)
    return int(text)
