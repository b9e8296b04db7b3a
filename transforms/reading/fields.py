"""What is read of events, the rules that a field may break, and columns of texts and numbers in any Arrow encoding.

A column that is damaged, or of a type that cannot be what it is to be, raises `BrokenRuleError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.counters import counter

TEXT, NUMBER, WHOLE, UNREAD = "text", "number", "whole", "unread"


@dataclass(frozen=True, kw_only=True)
class EventFields:
    """What a transform reads of an event; fields that it does not read may be missing, or contain anything.

    Attributes:
        user: TEXT for a person, NUMBER for a point, or UNREAD.
        item: whether the item is read.
        timed: whether an event needs a time; if not, one without a time counts as of 1970.
        value: NUMBER for a finite number that an event has beside its item, WHOLE for a whole one, or UNREAD.
    """

    user: str = TEXT
    item: bool = True
    timed: bool = True
    value: str = UNREAD

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that columns must have."""
        read = {"user": self.user != UNREAD, "item": self.item, "time": self.timed, "value": self.value != UNREAD}
        return tuple(name for name, needed in read.items() if needed)

    def schema(self) -> pa.Schema:
        """Return the columns of batches that are checked; times are microseconds since 1970."""
        user = pa.int64() if self.user == NUMBER else pa.string()
        kinds = {"user": user, "item": pa.string(), "time": pa.int64(), "value": pa.float64()}
        return pa.schema([(name, kind) for name, kind in kinds.items() if name == "time" or name in self.required])


MISSING, TYPE, RANGE, SYNTAX, VALUE = "missing", "type", "range", "syntax", "value"
LONGEST_TEXT = 1 << 20
"""Bytes of UTF-8 that a user or an item has at most."""

TIME_TEXT = "ISO 8601 text with dashes and colons, such as 2030-01-31T12:00:00Z"
RULES = {
    "null": (MISSING, "{} must not be null"),
    "empty": (MISSING, "{} must not be empty"),
    "text": (TYPE, "{} must be text or an integer, got {}"),
    "number": (TYPE, "{} must be a number, got {}"),
    "decimal": (TYPE, "{} must be a number, got text"),
    "point": (TYPE, "{}, the point, must be a whole number between -2**60 and 2**60"),
    "encoding": ("encoding", "{} must be valid Unicode"),
    "long": ("long", "{} must be at most {:,} bytes of UTF-8"),
    "finite": ("finite", "{} must be finite"),
    "whole": ("whole", "{} must be a whole number"),
    "moment": (TYPE, "{} must be a timestamp or a number of seconds since 1970, got {}"),
    "range": (RANGE, "{} must be between 1970-01-01 and 2200-01-01"),
    "syntax": (SYNTAX, f"{{}} must be {TIME_TEXT}, or a number"),
    "form": (SYNTAX, "{} must be of the form {}"),
    "unit": ("unit", "{} must not be a plain number without a time_unit"),
    "zone": (
        "zone",
        "{} must say how far it is from UTC, such as Z or +01:00, or with_fields(time_zone=..) by which clocks",
    ),
    "skipped": ("skipped", "{} must be one that clocks show: they leave out an hour in spring"),
}
"""The kind of each rule, and what it says of a field."""


class BrokenRuleError(ValueError):
    """Says which rule a record breaks, and never what is in the record.

    Attributes:
        code: the field and the kind of rule, such as `user_missing`: the name of a counter ends with it.
    """

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"


def broken(name: str, rule: str, given: object = "") -> BrokenRuleError:
    """Return one of `RULES` that a field breaks."""
    kind, reason = RULES[rule]
    return BrokenRuleError("point" if rule == "point" else name, kind, reason.format(name, given))


def broken_by(error: Exception, what: str = "event") -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when it was read.

    Its values may be of any class, and what the code of such a class raises must not end the run.
    """
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError(what, TYPE, f"{what} must hold values that can be read")


Marks = list[tuple[np.ndarray, BrokenRuleError]]
"""Rows of a column that break a rule, and which one."""


def marked(name: str, given: object = "", **rules: np.ndarray) -> Marks:
    """Return the rules, by their names, that some row breaks; most columns break none, and make none."""
    return [(mask, broken(name, rule, given)) for rule, mask in rules.items() if mask.any()]


def null_rows(column: pa.Array) -> np.ndarray:
    """Tell which rows of a column are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def spread(name: str, column: pa.DictionaryArray, marks: Marks) -> tuple[np.ndarray, Marks]:
    """Return the place of each row in the dictionary, behind its end for a null, and the rules that rows break."""
    rows = pc.fill_null(column.indices.cast(pa.int64()), len(column.dictionary)).to_numpy()
    of_rows = [(np.append(mask, False)[rows], rule) for mask, rule in marks]
    return rows, [*marked(name, null=null_rows(column.indices)), *of_rows]


DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""

LONGEST_RECORD = 10_000
"""Characters of a record that its dead letter quotes at most."""


class DeadLetter(NamedTuple):
    """A record that could not be used, and why.

    *Privacy*: `record` contains data of a person. Dead letters belong in a file that is guarded like the input itself;
    they are under no privacy guarantee, and neither logs nor metrics may quote them.

    Attributes:
        reason: the rule that was broken; never quotes the value.
        source: the file that the record came from, or the stage that set it aside.
        position: where in the source, such as `line 17` or `row group 2, row 5`.
        record: the record as text, perhaps cut.
    """

    reason: str
    source: str
    position: str
    record: str


def broken_letter(
    rule: BrokenRuleError, record: str, source: str, *, counted_as: str = "events", number: int = 1
) -> DeadLetter:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    for name in (f"{counted_as}_malformed", f"{counted_as}_malformed_{rule.code}"):
        counter(name).inc(number)
    return DeadLetter(str(rule), source, "", record[:LONGEST_RECORD])


TEXT_PER_BATCH = 1 << 24  # bytes
FARTHEST_POINT = 1 << 60
LONGEST_NUMBER = 400  # characters
_AS_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_AS_TEXT = {data: text for text, data in _AS_BINARY.items()}
_POINT = r"^[+-]?1?[0-9]{1,18}$"  # all that could be such a point, and nothing that int64 has no room for
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,4})?$"


def is_text(kind: pa.DataType, *, bytes_too: bool = True) -> bool:
    """Tell whether a column's values are text, or bytes that may be UTF-8."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return value in _AS_BINARY or (bytes_too and (value in _AS_TEXT or pa.types.is_fixed_size_binary(value)))


def is_known_as_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or what `as_text` and `text_column` make text of."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_null, pa.types.is_date, pa.types.is_decimal, pa.types.is_boolean)
    return is_text(value) or isinstance(value, pa.UuidType) or any(test(value) for test in tests)


def with_dictionary(column: pa.DictionaryArray, dictionary: pa.Array) -> pa.DictionaryArray:
    """Return a column with another dictionary of as many values."""
    return pa.DictionaryArray.from_arrays(column.indices, dictionary, safe=False)


def as_text(column: pa.Array) -> pa.Array:
    """Return days, decimals, truth values and UUIDs as the texts that they are known by; other columns as they are."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return with_dictionary(column, as_text(column.dictionary))
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    written = pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if written else column


def unchecked_text(column: pa.Array) -> pa.Array:
    """Return bytes as text that need not be valid, in the same memory: for `text_column` and others, which check it."""
    if pa.types.is_dictionary(column.type):
        return with_dictionary(column, unchecked_text(column.dictionary))
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if column.type not in _AS_TEXT:
        return column
    return pc.cast(column, options=pc.CastOptions(target_type=_AS_TEXT[column.type], allow_invalid_utf8=True))


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return with_dictionary(column, _as_binary(column.dictionary))
    return column.cast(_AS_BINARY[column.type]) if column.type in _AS_BINARY else column


def checked(name: str, column: pa.Array) -> pa.Array:
    """Return a column, as bytes if its text is not all valid; one that points out of its own memory is refused."""
    for binary in (False, True):
        found = _as_binary(column) if binary else column
        with suppress(pa.ArrowInvalid):
            found.validate(full=True)
            return found
    raise BrokenRuleError(name, TYPE, f"{name} must be a column that is not damaged")


def _lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each text, int32 or int64; 0 for a null."""
    if not pa.types.is_string_view(texts.type):
        lengths = pc.binary_length(texts)
        return np.asarray((pc.fill_null(lengths, 0) if texts.null_count else lengths).to_numpy())
    views = np.frombuffer(texts.buffers()[1] or b"", np.int32)[::4]  # Arrow has no function for these yet
    return np.where(texts.is_valid(), views[texts.offset : texts.offset + len(texts)], 0).astype(np.int64)


def _decoded_lengths(name: str, column: pa.Array) -> np.ndarray:
    """Return the bytes of text in each row; texts that are too long count for nothing: they are never written out."""
    column = checked(name, column)
    coded = pa.types.is_dictionary(column.type)
    lengths = _lengths(column.dictionary if coded else column)
    lengths = np.where(lengths > LONGEST_TEXT, 0, lengths)
    return np.append(lengths, 0)[spread(name, column, [])[0]] if coded else lengths


def cut_by_text(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Cut a batch such that no piece of several rows has more than `TEXT_PER_BATCH` of text in some columns.

    A dictionary says much in few bytes, and Arrow's plain text has room for 2 GiB alone.
    """
    lengths = []
    for name in names:
        if batch.schema.names.count(name) == 1:
            kind = batch.schema.field(name).type
            if kind in (pa.large_string(), pa.string_view()) or (
                pa.types.is_dictionary(kind) and kind.value_type in _AS_BINARY
            ):
                lengths.append(_decoded_lengths(name, batch[name]))
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
    """Return a column of text, bytes, integers or nulls as text, and which rows break a rule.

    What stands in these rows is not defined. Text may have up to `longest` bytes.
    """
    column = checked(name, column)
    if pa.types.is_dictionary(column.type):  # each text of the dictionary is checked once
        texts, found = text_column(name, column.dictionary, longest)
        useless = np.logical_or.reduce([mask for mask, _ in found])
        texts = pc.if_else(pa.array(~useless), texts, "") if useless.any() else texts
        return with_dictionary(column, texts).dictionary_decode().fill_null(""), spread(name, column, found)[1]
    nulls = null_rows(column)
    if column.type in _AS_TEXT:  # one by one: damaged input alone is
        texts = [None if data is None else _decoded(data) for data in column.to_pylist()]
        invalid = np.array([text is None for text in texts], np.bool_) & ~nulls
        plain = ["-" if text is None else text for text in texts]  # no value is missing where it cannot be read
        found_texts, marks = text_column(name, pa.array(plain, pa.large_string()), longest)
        return found_texts, marked(name, null=nulls, encoding=invalid) + marks
    if column.type not in _AS_BINARY:
        return column.cast(pa.string()).fill_null("-"), marked(name, null=nulls)
    lengths = _lengths(column)
    long = lengths > longest
    marks = marked(name, longest, null=nulls, empty=lengths == 0, long=long)
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
        marks = marked(name, null=null_rows(column))
        points = column.fill_null(0).cast(pa.int64())
    else:
        texts, marks = text_column(name, column)
        fits = pc.match_substring_regex(texts, _POINT)
        points = pc.replace_substring_regex(pc.if_else(fits, texts, "0"), r"^\+", "").cast(pa.int64())
        marks += marked(name, point=~fits.to_numpy(zero_copy_only=False))
    found = points.to_numpy()
    return points, marks + marked(name, point=(found < -FARTHEST_POINT) | (found > FARTHEST_POINT))


def value_column(column: pa.Array, *, whole: bool) -> tuple[pa.Array, Marks]:
    """Return a column of values, float64, and which rows break a rule; what stands in these rows is not defined."""
    if column.type in _AS_TEXT:
        raise broken(VALUE, "number", column.type)
    column = checked(VALUE, column)
    if pa.types.is_dictionary(column.type):
        found, marks = value_column(unchecked_text(column.dictionary), whole=whole)
        rows, marks = spread(VALUE, column, marks)
        return pa.array(np.append(found.to_numpy(), 0.0)[rows]), marks
    found, marks = _numbers(column)
    finite = np.isfinite(found)
    marks += marked(VALUE, finite=~finite)
    return pa.array(found), marks + (marked(VALUE, whole=finite & (found != np.floor(found))) if whole else [])


def _numbers(column: pa.Array) -> tuple[np.ndarray, Marks]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        found = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
        return found, marked(VALUE, null=null_rows(column))
    if not (kind in _AS_BINARY or kind in _AS_TEXT):
        raise broken(VALUE, "number", kind)
    texts, marks = text_column(VALUE, column)
    fits = pc.match_substring_regex(texts, _DECIMAL).to_numpy(zero_copy_only=False)
    fits &= pc.binary_length(texts).to_numpy(zero_copy_only=False) <= LONGEST_NUMBER
    usable = pc.if_else(pa.array(fits), texts, "0")
    try:
        found = usable.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # it does not read all that Python reads, such as +5
        found = np.array([float(text) for text in usable.to_pylist()], np.float64)
    return found, marks + marked(VALUE, decimal=~fits)
