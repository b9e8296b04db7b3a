"""Columns of events, in any of Arrow's encodings: one form for the rows that can be used."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.events.event_fields import (
    ENCODING,
    FINITE,
    LONG,
    LONGEST_RECORD,
    MISSING,
    NUMBER,
    TYPE,
    WHOLE,
    BrokenRuleError,
    EventFields,
    missing,
)
from privstream.transforms.events.times import Marks, micros_column, null_rows

TEXT_PER_BATCH = 1 << 24  # bytes
LONGEST_TEXT = 1 << 20
"""Bytes of UTF-8 that a user or an item has at most."""

FARTHEST_POINT = 1 << 60
_AS_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_NUMBER = r"^[+-]?1?[0-9]{1,18}$"  # all that could be such a point, and nothing that int64 has no room for


def empty(name: str) -> BrokenRuleError:
    """Return the rule that a text is not empty."""
    return BrokenRuleError(name, MISSING, f"{name} must not be empty")


def wrong_type(name: str, kind: object) -> BrokenRuleError:
    """Return the rule that a field is text."""
    return BrokenRuleError(name, TYPE, f"{name} must be text or an integer, got {kind}")


def no_unicode(name: str) -> BrokenRuleError:
    """Return the rule that text can be written in UTF-8."""
    return BrokenRuleError(name, ENCODING, f"{name} must be valid Unicode")


def too_long(name: str, longest: int = LONGEST_TEXT) -> BrokenRuleError:
    """Return the rule that a text is not too long."""
    return BrokenRuleError(name, LONG, f"{name} must be at most {longest:,} bytes of UTF-8")


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


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or bytes that may be UTF-8."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def is_known_as_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or what `as_text` and `text_column` make text of."""
    if pa.types.is_dictionary(kind):
        return is_known_as_text(kind.value_type)
    tests = (pa.types.is_integer, pa.types.is_null, pa.types.is_date, pa.types.is_decimal, pa.types.is_boolean)
    return is_text(kind) or isinstance(kind, pa.UuidType) or any(test(kind) for test in tests)


def as_text(column: pa.Array) -> pa.Array:
    """Return days, decimals, truth values and UUIDs as the texts that they are known by; other columns as they are."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, as_text(column.dictionary), safe=False)
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    written = pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if written else column


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


def text_column(name: str, column: pa.Array, longest: int = LONGEST_TEXT) -> tuple[pa.Array, Marks]:
    """Return a column of a type that `check_kind` lets pass as text, and which rows break a rule.

    What stands in these rows is not defined. Text may have up to `longest` bytes.

    Raises:
        BrokenRuleError: the column is damaged.
    """
    column = checked(name, column)
    if pa.types.is_dictionary(column.type):
        return _from_dictionary(name, column, longest)
    nulls = null_rows(column)
    if not _is_text(column.type):
        if column.type in _AS_BINARY.values():
            return _mend(name, column, nulls, longest)
        return column.cast(pa.string()).fill_null("-"), [(nulls, missing(name))]
    lengths = _lengths(column)
    long = lengths > longest
    return _plain(column, nulls if pa.types.is_string(column.type) else nulls | long), [
        (nulls, missing(name)),
        (lengths == 0, empty(name)),
        (long, too_long(name, longest)),
    ]


def _from_dictionary(name: str, column: pa.DictionaryArray, longest: int) -> tuple[pa.Array, Marks]:
    """Check each text of a dictionary once, and write out those that can be used."""
    texts, found = text_column(name, column.dictionary, longest)
    broken = np.logical_or.reduce([mask for mask, _ in found])
    texts = pc.if_else(pa.array(~broken), texts, "") if broken.any() else texts
    rows = pc.fill_null(column.indices.cast(pa.int64()), len(texts)).to_numpy()
    nulls = null_rows(column.indices)
    decoded = pa.DictionaryArray.from_arrays(column.indices, texts, safe=False).dictionary_decode()
    return decoded.fill_null(""), [
        (nulls, missing(name)),
        *[(np.append(mask, False)[rows], rule) for mask, rule in found],
    ]


def _plain(column: pa.Array, dropped: np.ndarray) -> pa.Array:
    """Return a column as plain strings, some of them empty: of 2 GiB in all, for which others may be too long."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if dropped.any():
        column = pc.if_else(pa.array(~dropped), column, pa.scalar("", column.type))
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _mend(name: str, column: pa.Array, nulls: np.ndarray, longest: int) -> tuple[pa.Array, Marks]:
    """Return bytes as text, one by one: the slow way, for damaged input alone."""
    invalid = np.zeros(len(column), np.bool_)
    texts = []
    for row, data in enumerate(column.to_pylist()):
        try:
            texts.append("" if data is None else data.decode())
        except UnicodeDecodeError:
            invalid[row] = True
            texts.append("-")
    found, marks = text_column(name, pa.array(texts, pa.large_string()), longest)
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


VALUE, WHOLE_NUMBER = "value", "whole"
_LONGEST_NUMBER = 400
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,4})?$"


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
        if len(value) > _LONGEST_NUMBER or not re.fullmatch(_DECIMAL, value, re.ASCII):
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
    if column.type in _AS_BINARY.values():
        raise _no_value(column.type)
    column = checked(VALUE, column)
    if pa.types.is_dictionary(column.type):
        found, marks = _numbers_and_rules(column.dictionary, whole=whole)
        rows = pc.fill_null(column.indices.cast(pa.int64()), len(found)).to_numpy()
        spread = [(np.append(mask, False)[rows], rule) for mask, rule in marks]
        return pa.array(np.append(found.to_numpy(), 0.0)[rows]), [(null_rows(column.indices), missing(VALUE)), *spread]
    return _numbers_and_rules(column, whole=whole)


def _numbers_and_rules(column: pa.Array, *, whole: bool) -> tuple[pa.Array, Marks]:
    """Return a column that has been checked, and is no dictionary, as `value_column` does."""
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
    if not (_is_text(kind) or kind in _AS_BINARY.values()):
        raise _no_value(kind)
    texts, marks = text_column(VALUE, column)
    fits = pc.match_substring_regex(texts, _DECIMAL).to_numpy(zero_copy_only=False)
    fits &= pc.binary_length(texts).to_numpy(zero_copy_only=False) <= _LONGEST_NUMBER
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


BYTES_SHOWN = 4 * LONGEST_RECORD
ROWS_SHOWN = 3
"""Rows that the dead letter of a whole batch shows."""


def pieces(batch: pa.RecordBatch, fields: EventFields) -> Iterator[pa.RecordBatch]:
    """Cut a batch such that no piece of several rows has more than so much text: a dictionary says much in few bytes.

    Raises:
        BrokenRuleError: a column is damaged.
    """
    yield from cut_by_text(batch, _names(batch, fields))


def cut_by_text(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Cut a batch such that no piece of several rows has more than so much text in some columns; see `pieces`."""
    found = [decoded_lengths(name, batch[name]) for name in names]
    lengths = [column for column in found if column is not None]
    if not lengths:
        yield batch
        return
    ends = np.cumsum(np.sum(lengths, axis=0))
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield batch.slice(first, last - first)
        first = last


def read_batch(batch: pa.RecordBatch, fields: EventFields) -> tuple[pa.RecordBatch, dict[int, BrokenRuleError]]:
    """Return the rows that can be used, in the columns of `EventFields.schema`, and the first rule each other breaks.

    Integers become decimal text, so that the user 5 and the user "5" are one; times become microseconds since 1970
    UTC.

    Raises:
        BrokenRuleError: a column is missing, damaged, or of a type that cannot be what it is to be.
    """
    columns: dict[str, pa.Array] = {}
    broken: dict[int, BrokenRuleError] = {}
    for field in fields.schema():
        columns[field.name], marks = _column(field.name, batch, fields)
        for mask, rule in marks:
            for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                broken.setdefault(row, rule)
    lists = fields.item and pa.types.is_list(columns["item"].type)
    clean = pa.RecordBatch.from_arrays(list(columns.values()), schema=fields.schema(lists=lists))
    if broken:
        kept = np.ones(batch.num_rows, np.bool_)
        kept[list(broken)] = False
        clean = clean.filter(pa.array(kept))
    return clean, dict(sorted(broken.items()))


def _column(name: str, batch: pa.RecordBatch, fields: EventFields) -> tuple[pa.Array, Marks]:
    """Return one column, and which of its rows break a rule."""
    if name not in fields.required and name not in batch.schema.names:
        return _no_times(batch.num_rows), []
    if name not in batch.schema.names:
        raise BrokenRuleError(name, MISSING, f"events must have a column {name}")
    if batch.schema.names.count(name) > 1:
        raise BrokenRuleError(name, TYPE, f"events must have one column {name}")
    column = batch[name]
    if name == "time":
        micros, marks = micros_column(column)
        return pa.array(micros), marks if fields.timed else [each for each in marks if each[1].code != "time_missing"]
    if name == "value":
        return value_column(column, whole=fields.value == WHOLE)
    if check_kind(name, column.type, lists=name == "item" and fields.lists):
        return list_column(name, column)
    return number_column(name, column) if name == "user" and fields.user == NUMBER else text_column(name, column)


def _names(batch: pa.RecordBatch, fields: EventFields) -> list[str]:
    """Return the columns that may be text."""
    texts = ("user", "item") + (("value",) if "value" in fields.required else ())
    return [name for name in texts if batch.schema.names.count(name) == 1]


def _no_times(rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, np.int64))


class Unusable(NamedTuple):
    """Records that break a rule, as text, and how many they are."""

    rule: BrokenRuleError
    record: str
    number: int = 1


def usable_batches(batch: pa.RecordBatch, fields: EventFields) -> Iterator[pa.RecordBatch | Unusable]:
    """Yield what can be used of a batch, in the columns of `EventFields.schema`, and what cannot."""
    try:
        read_batch(batch.slice(0, 0), fields)  # the columns, before any row of them is used
        cut = list(pieces(batch, fields))
    except BrokenRuleError as error:
        yield Unusable(error, batch_record(batch), batch.num_rows)
        return
    for piece in cut:
        try:
            clean, broken = read_batch(piece, fields)
        except BrokenRuleError as error:
            yield Unusable(error, batch_record(piece), piece.num_rows)
            continue
        if broken:
            yield from map(Unusable, broken.values(), row_records(piece, list(broken)))
        if clean.num_rows:
            yield clean


def batch_record(batch: pa.RecordBatch) -> str:
    """Return the first rows of a batch as text, and how many there are."""
    rows = row_records(batch, list(range(min(ROWS_SHOWN, batch.num_rows))))
    return f"{batch.num_rows} rows: {', '.join(rows)}"


def row_records(batch: pa.RecordBatch, rows: list[int]) -> Iterator[str]:
    """Return rows as text, whatever they contain."""
    columns = {name: _showable(batch.column(i)) for i, name in enumerate(batch.schema.names)}
    for row in rows:
        yield repr({name: "damaged" if column is None else _value(column[row]) for name, column in columns.items()})


def _showable(column: pa.Array) -> pa.Array | None:
    """Return a column, with text that is not UTF-8 as bytes; None if reading it might end the process."""
    with suppress(BrokenRuleError):
        return checked("", column)
    return None


def _value(scalar: pa.Scalar) -> object:
    """Return a value for Python: of long text the beginning; times that Python cannot represent as numbers."""
    if isinstance(scalar, pa.DictionaryScalar) and scalar.is_valid:
        return _value(scalar.dictionary[scalar.index.as_py()])
    if isinstance(scalar, pa.BinaryScalar) and scalar.is_valid and len(data := scalar.as_buffer()) > BYTES_SHOWN:
        start = data[:BYTES_SHOWN].to_pybytes()
        return start.decode(errors="ignore") if isinstance(scalar, pa.StringScalar) else start
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    with suppress(pa.ArrowException):
        return scalar.cast(pa.int64()).as_py()
    return f"{scalar.type} that cannot be shown"


def read_text(name: str, value: Any, *, least: int = 1, longest: int = LONGEST_TEXT) -> str:
    """Return a user or an item as text, of `least` characters to `longest` bytes."""
    if value is None:
        raise missing(name)
    if is_integer(value):
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


def is_integer(value: Any) -> bool:
    """Tell whether a value is an integer, of Python or numpy, and neither a truth value nor a duration."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64)
