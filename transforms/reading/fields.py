"""What is read of events: fields, the rules that they may break, dead letters, and columns of texts and numbers.

A column that is damaged, or of a type that cannot be what it is to be, raises `BrokenRuleError`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT, NUMBER, WHOLE, OPTIONAL, UNREAD = "text", "number", "whole", "optional", "unread"


@dataclass(frozen=True, kw_only=True)
class EventFields:
    """What a transform reads of an event; fields that it does not read may be missing, or contain anything.

    Attributes:
        user: TEXT for a person, NUMBER for a point, or UNREAD.
        item: whether the item is read.
        timed: whether an event needs a time; if not, one without a time counts as of 1970.
        value: NUMBER for a finite number besides the item, WHOLE for a whole one, OPTIONAL for one
            that may be missing, which is NaN then, or UNREAD.
    """

    user: str = TEXT
    item: bool = True
    timed: bool = True
    value: str = UNREAD

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of batches that are checked; times are microseconds since 1970."""
        columns = {"time": pa.int64()}
        if self.item:
            columns = {"item": pa.string()} | columns
        if self.user != UNREAD:
            columns = {"user": pa.int64() if self.user == NUMBER else pa.string()} | columns
        if self.value != UNREAD:
            columns["value"] = pa.float64()
        return pa.schema(columns)


MISSING, TYPE, RANGE, SYNTAX, VALUE = "missing", "type", "range", "syntax", "value"
LONGEST_TEXT = 1 << 14
"""Bytes of UTF-8 that a user or an item has at most."""

TIME_TEXT = "ISO 8601 text with dashes and colons, such as 2030-01-31T12:00:00Z"
RULES = {
    "missing": (MISSING, "{} must be present and not empty"),
    "text": (TYPE, "{} must be text or an integer, got {}"),
    "number": (TYPE, "{} must be a number, got {}"),
    "decimal": (TYPE, "{} must be a number, with a {} before decimals"),
    "point": (TYPE, "{}, the point, must be a whole number between -2**60 and 2**60"),
    "encoding": ("encoding", "{} must be valid text in its encoding"),
    "long": ("long", f"{{}} must be at most {LONGEST_TEXT:,} bytes of UTF-8"),
    "finite": ("finite", "{} must be finite"),
    "whole": ("whole", "{} must be a whole number"),
    "moment": (TYPE, "{} must be a timestamp, text or a number, got {}"),
    "range": (RANGE, "{} must be between 1970-01-01 and 2200-01-01"),
    "syntax": (SYNTAX, f"{{}} must be {{}}{TIME_TEXT}"),
    "form": (SYNTAX, "{} must be a time that exists, of the form {}"),
    "unit": ("unit", "{} must not be a plain number without a time unit"),
    "zone": ("zone", "{} must say how far it is from UTC, such as Z or +01:00, or a time zone must be given"),
    "skipped": (
        "skipped",
        "{} must be one that clocks show: in {} they leave out that hour when summer time begins",
    ),
}
"""The kind of each rule, and what it says of a field."""


class BrokenRuleError(ValueError):
    """Says which rule a record breaks, and never what is in the record."""

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"  # such as user_missing: the name of a counter ends with it


def broken(name: str, rule: str, given: object = "") -> BrokenRuleError:
    """Return one of `RULES` that a field breaks; of a type the name is given, without those of fields within it."""
    kind, reason = RULES[rule]
    if isinstance(given, pa.DataType):
        given = "values of another kind" if pa.types.is_nested(given) else str(given).partition("<")[0]
    return BrokenRuleError("point" if rule == "point" else name.partition(" ")[0], kind, reason.format(name, given))


def broken_by(error: Exception) -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when its values, of any class, were read."""
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError("event", TYPE, "event must hold values that can be read")


DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""

LONGEST_RECORD = 1 << 12
"""Characters of a record that its dead letter quotes at most; its position leads to the rest."""


class DeadLetter(NamedTuple):
    """A record that could not be used, and why.

    *Privacy*: `record` contains personal data. Dead letters belong in a file that is guarded like the input itself;
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


def quote(text: Any) -> str:
    """Quote a record, text or bytes that need not be UTF-8, for its dead letter."""
    if not isinstance(text, str):
        text = bytes(text[: 4 * LONGEST_RECORD + 4]).decode("utf-8", "backslashreplace")
    quoted: str = text[: LONGEST_RECORD + 1].encode("utf-8", "backslashreplace").decode()
    return quoted if len(quoted) <= LONGEST_RECORD else quoted[:LONGEST_RECORD] + "…"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Marks = list[tuple[np.ndarray, BrokenRuleError]]
"""Rows of a column that break a rule, and which one."""

Marked = tuple[pa.Array, Marks]
"""A column, and which rows of it break a rule: what stands in these is not defined."""


def marked(name: str, given: object = "", **rules: np.ndarray) -> Marks:
    """Return the rules, by their names, that some row breaks; most columns break none, and make none."""
    return [(mask, broken(name, rule, given)) for rule, mask in rules.items() if mask.any()]


def describe_row(columns: Mapping[str, pa.Array]) -> Callable[[int], str]:
    """Return a function that writes one row of some columns as JSON; of damaged columns it says no more than that."""
    sound: dict[str, pa.Array] = {}

    def record(row: int) -> str:
        for name in () if sound else columns:
            try:
                sound[name] = checked("", columns[name])
            except BrokenRuleError:  # reading it might end the process
                sound[name] = pa.array(["damaged"] * len(columns[name]))
        values = {name: _shown(column[row]) for name, column in sound.items()}
        return quote(json.dumps(values, ensure_ascii=False, default=str))

    return record


def _shown(value: Any) -> Any:
    """Take an Arrow value out of its wrapper; of long text as much as is quoted."""
    value = value.value if isinstance(value, pa.DictionaryScalar | pa.UnionScalar) else value
    if value is None or not value.is_valid:
        return None
    if isinstance(value, pa.StringScalar | pa.BinaryScalar):
        return quote(value.as_buffer())
    if pa.types.is_timestamp(value.type) or pa.types.is_date(value.type):  # Python has fewer years
        return value.cast(pa.string()).as_py()
    with suppress(ValueError, OverflowError, pa.ArrowException):
        return value.as_py()
    return f"{value.type} that cannot be shown"


TEXT_PER_BATCH = 1 << 24  # bytes
FARTHEST_POINT = 1 << 60
_AS_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
_AS_TEXT = {data: text for text, data in _AS_BINARY.items()}
_BYTES = _AS_BINARY | {pa.string_view(): pa.binary_view()}
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}  # Arrow has few functions for them
_POINT = r"^[+-]?1?[0-9]{1,18}(\.0*)?$"  # all that could be such a point, and nothing that int64 has no room for
EXACT_FLOATS = 2.0**53  # a whole number below it is the only one that a float64 can stand for
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,4})?$"


INTEGER, DECIMAL, FLOAT, WRITTEN, NULL, OTHER = "integer", "decimal", "float", "written", "null", "other"
NUMBERS = {INTEGER, DECIMAL, FLOAT}
KNOWN_AS_TEXT = {TEXT, INTEGER, DECIMAL, WRITTEN, NULL}
"""Kinds of which `text_column` makes text."""


def kind_of(type_: pa.DataType) -> str:
    """Return the kind of a column's values: TEXT may be bytes; days, truth values and UUIDs are WRITTEN."""
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    if values in _AS_BINARY or values in _AS_TEXT or values in _VIEWS or pa.types.is_fixed_size_binary(values):
        return TEXT
    if isinstance(type_, pa.UuidType) or pa.types.is_date(type_) or pa.types.is_boolean(type_):
        return WRITTEN
    tests = {INTEGER: pa.types.is_integer, DECIMAL: pa.types.is_decimal, FLOAT: pa.types.is_floating}
    return next((kind for kind, test in (tests | {NULL: pa.types.is_null}).items() if test(type_)), OTHER)


def unchecked_text(column: pa.Array, *, written: bool = False) -> pa.Array:
    """Return bytes as text that need not be valid, in the same memory: for `text_column` and others, which check it.

    Days, decimals, truth values and UUIDs become the texts that they are known by if they are to be `written`.
    """
    if written and isinstance(column.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    if written and kind_of(column.type) in (WRITTEN, DECIMAL):
        return column.cast(pa.string())
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if column.type not in _AS_TEXT:
        return column
    return pc.cast(column, options=pc.CastOptions(target_type=_AS_TEXT[column.type], allow_invalid_utf8=True))


def checked(name: str, column: pa.Array) -> pa.Array:
    """Return a column, as bytes if its text is not all valid; one that points out of its own memory is refused."""
    with suppress(pa.ArrowInvalid):
        column.validate(full=True)
        return column
    with suppress(pa.ArrowInvalid):
        coded = pa.types.is_dictionary(column.type)
        words = column.dictionary if coded else column
        words = words.cast(_BYTES.get(words.type, words.type))
        if pa.types.is_date64(words.type):  # it may have parts of days
            words = words.cast(pa.date32(), safe=False)
        column = pa.DictionaryArray.from_arrays(column.indices, words, safe=False) if coded else words
        column.validate(full=True)
        return column
    raise BrokenRuleError(name.partition(" ")[0], TYPE, f"{name} must be a column that is not damaged")


def plain(name: str, column: pa.Array) -> pa.Array:
    """Return a column without a dictionary or views; in place of its texts that are too long, others are."""
    if column.type in _VIEWS:
        column = checked(name, column)
        return column.cast(_VIEWS[column.type])
    if not pa.types.is_dictionary(column.type):
        return column
    column = checked(name, column)
    words = unchecked_text(plain(name, column.dictionary))
    if kind_of(words.type) == TEXT:
        long = pc.fill_null(pc.greater(pc.binary_length(words), LONGEST_TEXT), False)
        words = pc.if_else(long, pa.scalar("x" * (LONGEST_TEXT + 1), words.type), words) if long.true_count else words
    return pa.DictionaryArray.from_arrays(column.indices, words, safe=False).dictionary_decode()


def parts_of_union(
    name: str, column: pa.Array, places: np.ndarray | None = None
) -> Iterator[tuple[pa.Array, np.ndarray, np.ndarray]]:
    """Yield the columns of a union, which of its rows, or of those at some places, are in each, and where in it.

    They are taken from its memory: of a slice Arrow gives the codes and offsets of its parent.
    """
    size, start, dense, buffers = len(column), column.offset, column.type.mode == "dense", column.buffers()
    with suppress(ValueError):
        codes = np.frombuffer(buffers[1], np.int8, size, start) if size else np.empty(0, np.int8)
        offsets = np.frombuffer(buffers[2], np.int32, size, 4 * start) if size and dense else np.arange(size)
        codes, offsets = (codes, offsets) if places is None else (codes[places], offsets[places])
        rows = [np.flatnonzero(codes == code) for code in column.type.type_codes]
        found = [(column.field(number), some, offsets[some]) for number, some in enumerate(rows)]
        inside = all(((there >= 0) & (there < len(part))).all() for part, _, there in found)
        if inside and sum(map(len, rows)) == len(codes):
            yield from found
            return
    raise BrokenRuleError(name.partition(" ")[0], TYPE, f"{name} must be a column that is not damaged")


def taken(name: str, column: pa.Array, places: np.ndarray) -> pa.Array:
    """Return rows of a column of any type but a union, which is checked, also of one that Arrow takes none from."""
    column = checked(name, column)
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices.take(pa.array(places)), column.dictionary, safe=False)
    try:
        return column.take(pa.array(places))
    except pa.ArrowNotImplementedError:
        return pa.concat_arrays([column.slice(place, 1) for place in places.tolist()] or [column.slice(0, 0)])


def _lengths(name: str, given: pa.Array, *, in_union: bool = False) -> np.ndarray:
    """Return the bytes of text that each row takes once it is read alone; 0 where it takes them already."""
    lengths = np.zeros(len(given), np.int64)
    if pa.types.is_union(given.type):
        for part, rows, places in parts_of_union(name, given):
            lengths[rows] = _lengths(name, part, in_union=True)[places]
        return lengths
    coded = pa.types.is_dictionary(given.type)
    words = given.type.value_type if coded else given.type
    if kind_of(words) != TEXT or not (in_union or coded or words == pa.large_string() or words in _VIEWS):
        return lengths
    column = checked(name, given)
    texts = plain(name, column.dictionary if coded else column)
    lengths = np.minimum(pc.fill_null(pc.binary_length(texts), 0).to_numpy(), LONGEST_TEXT + 1)
    if coded:
        lengths = np.append(lengths, 0)[pc.fill_null(column.indices.cast(pa.int64()), len(texts))]
    return np.asarray(lengths, np.int64)


def cut_by_text(columns: Mapping[str, pa.Array], rows: int) -> Iterator[slice]:
    """Cut rows such that no piece of several has more than `TEXT_PER_BATCH` of text: dictionaries are short for it."""
    sums = sum((_lengths(name, column) for name, column in columns.items()), np.zeros(rows, np.int64))
    ends, first = np.cumsum(sums), 0
    while first < rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield slice(first, last)
        first = last


def text_column(name: str, column: pa.Array) -> Marked:
    """Return a column of text, bytes, integers or nulls as text, and which rows break a rule."""
    column = checked(name, column)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    if column.type in _AS_TEXT:  # one by one: damaged input alone is
        texts = ["-" if data is None else _decoded(data) for data in column.to_pylist()]
        invalid = np.array([text is None for text in texts], np.bool_)
        found, marks = text_column(name, pa.array(texts, pa.large_string()).fill_null("-"))
        return found, marked(name, missing=nulls, encoding=invalid) + marks
    if column.type not in _AS_BINARY:
        return column.cast(pa.string()).fill_null("-"), marked(name, missing=nulls)
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    long = lengths > LONGEST_TEXT
    dropped = nulls if pa.types.is_string(column.type) else nulls | long  # plain text has room for 2 GiB
    if dropped.any():
        column = pc.if_else(pa.array(~dropped), column, pa.scalar("", column.type))
    return column.cast(pa.string()), marked(name, missing=lengths == 0, long=long)


def _decoded(data: bytes) -> str | None:
    with suppress(UnicodeDecodeError):
        return data.decode()
    return None


def number_column(name: str, column: pa.Array) -> Marked:
    """Return a column as `text_column` takes it as points, int64, and which rows are none."""
    if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
        marks = marked(name, missing=column.is_null().to_numpy(zero_copy_only=False))
        points = column.fill_null(0).cast(pa.int64())
    elif pa.types.is_floating(column.type):
        marks = marked(name, missing=column.is_null().to_numpy(zero_copy_only=False))
        numbers = column.cast(pa.float64()).fill_null(0).to_numpy()
        fits = (np.abs(numbers) < EXACT_FLOATS) & (numbers == np.rint(numbers))
        marks += marked(name, point=~fits)
        points = pa.array(np.where(fits, numbers, 0).astype(np.int64))
    else:
        texts, marks = text_column(name, column)
        fits = pc.match_substring_regex(texts, _POINT)
        points = pc.replace_substring_regex(pc.if_else(fits, texts, "0"), r"^\+|\..*$", "").cast(pa.int64())
        marks += marked(name, point=~fits.to_numpy(zero_copy_only=False))
    found = points.to_numpy()
    return points, marks + marked(name, point=(found < -FARTHEST_POINT) | (found > FARTHEST_POINT))


SPACES = " \u00a0\u2009\u202f'\u2019"
BETWEEN = {decimal: f"[{SPACES}{other}]" for decimal, other in ((".", ","), (",", "."))}
"""What may stand between thousands, by what stands before decimals."""

GROUPED = {
    decimal: rf"^[+-]?(([0-9]+|{'|'.join(f'[1-9][0-9]{{0,2}}([{each}][0-9]{{3}})+' for each in SPACES + other)})"
    rf"([{decimal}][0-9]*)?|[{decimal}][0-9]+)([eE][+-]?[0-9]{{1,4}})?$"
    for decimal, other in ((".", ","), (",", "."))
}


def value_column(column: pa.Array, kind: str = NUMBER, decimal: str | None = None) -> Marked:
    """Return a column of values as `EventFields.value` says, float64, and which rows break a rule.

    `decimal` is what stands before decimals in text, a point or a comma. The other one, a space or an apostrophe may
    then stand between thousands; without it there is a point, and nothing between thousands.
    """
    column = unchecked_text(checked(VALUE, column))
    read, marks = _numbers(column, decimal)
    finite = np.isfinite(read)
    marks += marked(VALUE, finite=~finite)
    marks += marked(VALUE, whole=finite & (read != np.floor(read))) if kind == WHOLE else []
    numbers = pa.array(read)
    if kind == OPTIONAL:
        numbers, marks = with_nulls(numbers, marks)
        numbers = numbers.fill_null(np.nan)
    return numbers, marks


def with_nulls(column: pa.Array, marks: Marks) -> Marked:
    """Return a column with null where a value is missing, which then breaks no rule."""
    missing = np.zeros(len(column), np.bool_)
    for mask, rule in marks:
        missing |= mask & rule.code.endswith(f"_{MISSING}")
    others = [(mask & ~missing, rule) for mask, rule in marks if not rule.code.endswith(f"_{MISSING}")]
    return pc.if_else(pa.array(missing), pa.scalar(None, column.type), column), others


def _numbers(column: pa.Array, decimal: str | None) -> tuple[np.ndarray, Marks]:
    kind = column.type
    if kind_of(kind) in {*NUMBERS, NULL}:
        found = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
        return found, marked(VALUE, missing=column.is_null().to_numpy(zero_copy_only=False))
    if kind not in _AS_BINARY:
        raise broken(VALUE, "number", kind)
    texts, marks = text_column(VALUE, column)
    if decimal is not None:
        fits = pc.match_substring_regex(texts, GROUPED[decimal])
        texts = pc.replace_substring(pc.replace_substring_regex(texts, BETWEEN[decimal], ""), decimal, ".")
        texts = pc.if_else(fits, texts, "-")
    fits = pc.match_substring_regex(texts, _DECIMAL).to_numpy(zero_copy_only=False)
    usable = pc.if_else(pa.array(fits), texts, "0")
    try:
        found = usable.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # it does not read all that Python reads, such as +5
        found = np.array([float(text) for text in usable.to_pylist()], np.float64)
    return found, marks + marked(VALUE, "comma" if decimal == "," else "point", decimal=~fits)


PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64()}
FOREIGN = pa.list_(pa.string())
"""How values are held that nothing is read of: their text."""


def column_of(values: Sequence[Any]) -> pa.Array:
    """Return Python values as a column: a union where they are of several kinds, so that none decides for another."""
    types = set(map(type, values)) - {NoneType}
    if not types:
        return pa.nulls(len(values))
    if len(types) == 1 and types <= PLAIN.keys():
        with suppress(OverflowError, UnicodeEncodeError):
            return pa.array(values, PLAIN[types.pop()])
    held = list(map(_held, values))
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kind for kind, _ in held))}
    codes = np.array([places[kind] for kind, _ in held], np.int8)
    offsets = np.zeros(len(codes), np.int32)
    for code in places.values():
        offsets[codes == code] = np.arange(np.count_nonzero(codes == code))
    parts = [pa.array([value for kind, value in held if kind == each], each) for each in places]
    return parts[0] if len(parts) == 1 else pa.UnionArray.from_dense(pa.array(codes), pa.array(offsets), parts)


def _held(value: Any) -> tuple[pa.DataType, Any]:
    """Return how Arrow holds a value of any kind, and the value so; text that is no Unicode is bytes."""
    stamp = sys.modules.get("apache_beam.utils.timestamp")  # nobody has a Timestamp without it
    found: tuple[pa.DataType, Any] = FOREIGN, [type(value).__name__]
    with suppress(Exception):  # foreign classes may raise anything
        match value:
            case None:
                found = pa.null(), None
            case bool() | np.bool_():
                found = pa.bool_(), bool(value)
            case Integral() if not isinstance(value, np.timedelta64):
                number = int(value)
                found = (pa.int64(), number) if -(1 << 63) <= number < 1 << 63 else (pa.string(), str(number))
            case str():
                data = str.encode(value, "utf-8", "surrogatepass")  # whatever a subclass says of itself
                text = _decoded(data)
                found = (pa.binary(), data) if text is None else (pa.string(), text)
            case bytes():
                found = pa.binary(), bytes(value)
            case Decimal() if value.is_finite():
                found = pa.string(), str(value)
            case Real() | Decimal():
                found = pa.float64(), float(value)
            case datetime():
                moment = value if value.tzinfo else value.replace(tzinfo=UTC)
                kind = pa.timestamp("us", "UTC" if value.tzinfo else None)
                found = kind, (moment - EPOCH) // timedelta(microseconds=1)
            case date():
                found = pa.date32(), date(value.year, value.month, value.day)
            case _ if stamp is not None and isinstance(value, stamp.Timestamp):
                found = pa.timestamp("us", "UTC"), value.micros
            case _:
                found = FOREIGN, [quote(str(value))]
    return found
