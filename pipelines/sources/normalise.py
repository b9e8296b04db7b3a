"""From rows of files to batches for one question or several; what a value is, transforms decide by their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.event_files import Damage, RawEvents
from privstream.pipelines.sources.fields import LONGEST, AnyFields, FieldMapping, SharedFields
from privstream.pipelines.sources.found_files import FORMATS, EventFile, FilePart, check_file, check_unchanged, parts_of
from privstream.pipelines.stores import scheme_of
from privstream.transforms.counters import counted, counter
from privstream.transforms.reading.domain import join_columns
from privstream.transforms.reading.fields import (
    TIME_TEXT,
    BrokenRuleError,
    DeadLetter,
    Marks,
    as_text,
    is_text,
    read_text,
    text_column,
    value_column,
    value_of,
)
from privstream.transforms.reading.filters import (
    KINDS,
    NUMBER,
    TEXT,
    Filter,
    column_of_kind,
    read_as,
    with_nulls,
    wrong_kind,
)
from privstream.transforms.reading.times import forms_of, read_micros, read_times

EXACT = 1e-9
"""A number that is as near to a whole one, by its size, has not been rounded."""

OF_READING = ": "
"""Stands in the name of a counter between the questions that it is about, of several, and what it counts."""

QUESTION = b"question"
"""Names, in the metadata of a batch, the one of several questions that it is for."""

TIME = pa.timestamp("us", "UTC")
ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
"""Kinds of Python values that may stand together in a column."""

SPACES = " \u00a0\u2009\u202f'\u2019"
BETWEEN = {decimal: f"[{SPACES}{other}]" for decimal, other in ((".", ","), (",", "."))}
"""What may stand between thousands, by what stands before decimals."""

GROUPED = {
    decimal: rf"^[+-]?(([0-9]+|{'|'.join(f'[1-9][0-9]{{0,2}}([{each}][0-9]{{3}})+' for each in SPACES + other)})"
    rf"([{decimal}][0-9]*)?|[{decimal}][0-9]+)([eE][+-]?[0-9]{{1,4}})?$"
    for decimal, other in ((".", ","), (",", "."))
}
NO_NUMBER = "-"

FIRST, MOST = 1000, 1_000_000
"""Records that are looked at before a run for one that can be used; the second where a condition drops them."""

Values = Any  # an Arrow array, or a list


def _texts(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read users or items."""
    column, spelling = _of_one_kind(values), fields.spelling
    if column is None or pa.types.is_floating(column.type):
        texts, marks = _one_by_one(
            values, pa.string(), lambda value: read_text(content, spelling.value(value), longest=LONGEST)
        )
    else:
        texts, marks = text_column(content, spelling.column(as_text(column)), LONGEST)
    return spelling.texts(content, texts), marks


def _times(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read times."""
    column, spelling, times = _of_one_kind(values), fields.spelling, fields.times
    if column is None and set(map(type, values)) <= {datetime, type(None)}:  # of a workbook, without a zone
        column = pa.array(values, pa.timestamp("us"))
    number = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    if column is None or (number and times.unit is None):
        return _one_by_one(values, TIME, lambda value: read_micros(content, spelling.value(value), times))
    found, marks = read_times(spelling.column(column), times)
    return pa.array(found).cast(TIME), marks


def _values(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read values; NaN where an event has none and needs none."""
    column = _of_one_kind(values)
    if column is None:
        numbers, marks = _one_by_one(values, pa.float64(), lambda value: _number(value, fields))
    else:
        numbers, marks = value_column(_with_points(fields.spelling.column(column), fields.decimal), whole=False)
    if fields.optional_value:
        numbers, marks = with_nulls(numbers, marks)
        numbers = pc.fill_null(numbers, np.nan)
    return numbers, marks


READERS = {"user": _texts, "item": _texts, "time": _times, "value": _values}


def _of_kind(field: str, kind: str | None, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read what a condition is about: null where it has no value."""

    def read(value: Any) -> Any:
        found = fields.spelling.value(value)
        if kind == NUMBER and isinstance(found, str):
            try:
                return _number(found, fields)
            except BrokenRuleError:
                raise wrong_kind(field, NUMBER) from None
        return read_as(field, kind, found)

    column = _of_one_kind(values)
    if column is None or (kind == TEXT and pa.types.is_floating(column.type)):
        return _one_by_one(values, pa.bool_() if kind is None else KINDS[kind], read)
    if kind in (NUMBER, TEXT) or is_text(column.type):
        column = fields.spelling.column(column)
    return column_of_kind(field, kind, _with_points(column, fields.decimal) if kind == NUMBER else column)


def _number(value: Any, fields: FieldMapping) -> float:
    """Read a single value."""
    found = fields.spelling.value(value)
    if isinstance(found, str):
        text = found.encode("utf-8", "replace").decode()  # of what is no text it makes no number
        found = _with_points(pa.array([text], pa.string()), fields.decimal)[0].as_py()
    return value_of(found, whole=False)


def _of_one_kind(values: Values) -> pa.Array | None:
    """Return Python values as an Arrow column; None if they are of several kinds, or of one that Arrow cannot hold."""
    if isinstance(values, pa.Array):
        return values
    kinds = set(map(type, values)) - {type(None)}
    with suppress(UnicodeEncodeError, OverflowError):
        for kind, stored in ARROW.items():
            if kinds <= {kind}:
                return pa.array(values, stored)
    return None


def _one_by_one(values: Values, kind: pa.DataType, read: Callable[[Any], Any]) -> tuple[pa.Array, Marks]:
    """Read values of several kinds, or with wrong ones among them."""
    found: list[Any] = []
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, value in enumerate(values):
        try:
            found.append(read(value))
        except BrokenRuleError as rule:
            found.append(None)
            broken.setdefault(rule.code, (np.zeros(len(values), np.bool_), rule))[0][row] = True
    return pa.array(found, kind), list(broken.values())


def _with_points(column: pa.Array, decimal: str | None) -> pa.Array:
    """Return text that is a number as it is written with a point; other text as one that is no number."""
    if decimal is None or not is_text(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _with_points(column.dictionary, decimal), safe=False)
    if pa.types.is_string_view(column.type):  # Arrow has no such functions for these yet
        column = column.cast(pa.large_string())
    fits = pc.match_substring_regex(column, GROUPED[decimal])
    plain = pc.replace_substring(pc.replace_substring_regex(column, BETWEEN[decimal], ""), decimal, ".")
    return pc.if_else(pc.or_(fits, pc.equal(pc.binary_length(column), 0)), plain, pa.scalar(NO_NUMBER, column.type))


def _parsed(content: str, values: Values, fields: FieldMapping) -> tuple[pa.Array, Marks]:
    """Read a field as a user, an item, a time or a value: null in rows that break a rule, and which rows these are."""
    column, marks = READERS[content](content, values, fields)
    if marks:
        broken = np.logical_or.reduce([mask for mask, _ in marks])
        column = pc.if_else(pa.array(broken), pa.scalar(None, column.type), column)
    return column, marks


class Refusal(NamedTuple):
    """Why a row cannot be used: its number, the rule, for the counter and in words, and the questions that cannot."""

    row: int
    code: str
    reason: str
    by: tuple[str, ...] = ("",)


Faults = list[tuple[np.ndarray, str, str]]
"""Rows that break a rule, and the rule, for the counter and in words."""


class Normaliser:
    """Makes batches of `user`, `item`, `time` (microseconds, UTC) and `value`, as far as they are read.

    Of several questions each has a batch of its own, whose metadata name it; what several read is parsed once.
    """

    def __init__(self, fields: AnyFields) -> None:
        self.questions = fields.questions if isinstance(fields, SharedFields) else (("", fields),)
        self.filters = {each.where: Filter(each.where) for _, each in self.questions if each.where is not None}

    def __call__(self, events: RawEvents) -> tuple[Iterator[pa.RecordBatch], list[Refusal]]:
        """Return a batch of the rows that each question can use, and why others cannot be used."""
        parsed: dict[tuple[str, str, bool], tuple[pa.Array, Marks]] = {}
        taken: list[tuple[str, FieldMapping, dict[str, pa.Array], np.ndarray]] = []
        refused: dict[tuple[int, str, str], list[str]] = {}
        for name, fields in self.questions:
            passing, faults = self._passing(name, fields, events)
            kept, columns = passing.copy(), {}
            for content, names in fields.contents().items():
                parts = []
                for field in names:
                    key = content, field, content == "value" and fields.optional_value
                    if key not in parsed:
                        parsed[key] = _parsed(content, events.columns[field], fields)
                    column, marks = parsed[key]
                    what = content if len(names) == 1 else f"{content} `{field}`"
                    faults += [
                        (mask & passing, rule.code, f"{what} {_rule(rule.code, fields)}") for mask, rule in marks
                    ]
                    if column.null_count:
                        kept &= column.is_valid().to_numpy(zero_copy_only=False)
                    parts.append(column)
                columns[content] = parts[0]
                if len(parts) > 1:
                    columns[content] = join_columns([pc.fill_null(column, "") for column in parts])
            taken.append((name, fields, columns, kept))
            first: dict[int, tuple[str, str]] = {}  # each row is refused for its first fault
            for mask, code, reason in faults:
                for row in np.flatnonzero(mask).tolist():
                    first.setdefault(row, (code, reason))
            for row, why in first.items():
                refused.setdefault((row, *why), []).append(name)
        refusals = []
        for (row, code, reason), by in sorted(refused.items()):
            whom = "" if len(by) == len(self.questions) else f" (for {', '.join(by)})"
            refusals.append(Refusal(row, code, f"{reason}{whom}", tuple(by)))
        return (_batch(*each) for each in taken), refusals

    def _passing(self, name: str, fields: FieldMapping, events: RawEvents) -> tuple[np.ndarray, Faults]:
        """Tell which rows pass the filter; those in which a field of it is of the wrong kind are refused."""
        if fields.where is None:
            return np.ones(events.rows, np.bool_), []
        condition, faults = self.filters[fields.where], []
        read, broken = {}, np.zeros(events.rows, np.bool_)
        for field, kind in condition.kinds.items():
            read[field], marks = _of_kind(field, kind, events.columns[field], fields)
            for mask, rule in marks:
                broken |= mask
                faults.append((mask, rule.code, str(rule)))
        passing = condition.passes(read, events.rows) & ~broken
        _counter("events_filtered", name).inc(int(np.count_nonzero(~passing & ~broken)))
        return passing, faults


def _batch(name: str, fields: FieldMapping, columns: dict[str, pa.Array], kept: np.ndarray) -> pa.RecordBatch:
    """Return the rows that a question can use; values are 0 for none, and rounded to whole units where they are to be.

    What binary fractions add to decimals is no part of these.
    """
    batch = pa.RecordBatch.from_pydict(columns, metadata={QUESTION: name} if name else None)
    if not kept.all():
        batch = batch.filter(pa.array(kept))
    _counter("events_read", name).inc(batch.num_rows)
    if "value" not in columns:
        return batch
    numbers = batch["value"].to_numpy(zero_copy_only=False)
    none = np.isnan(numbers)
    _counter("events_without_value", name).inc(int(np.count_nonzero(none)))
    numbers = np.where(none, 0.0, numbers)
    if fields.whole:
        units = numbers / fields.value_unit
        numbers = np.rint(units)
        apart = np.abs(units - numbers) > EXACT * np.maximum(1.0, np.abs(units))
        _counter("values_rounded", name).inc(int(np.count_nonzero(apart)))
    return batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(numbers))


def is_for(batch: pa.RecordBatch, name: str) -> bool:
    """Tell whether a batch is for one of several questions."""
    return bool((batch.schema.metadata or {}).get(QUESTION) == name.encode())


def _counter(name: str, by: str) -> Any:
    """Return a counter of reading, of one of several questions if that has a name."""
    return counter(f"{by}{OF_READING}{name}" if by else name)


def _rule(code: str, fields: FieldMapping) -> str:
    """Say a rule in words."""
    content, _, rule = code.partition("_")
    forms = forms_of(fields.time_format or "")
    number = f"must be a number, with a {'comma' if fields.decimal == ',' else 'point'} before decimals"
    kind = {"time": "must be a number or text", "value": number}.get(content, "must be text or an integer")
    syntax = f"must be {'a number or ' * (fields.time_unit is not None)}{TIME_TEXT}"
    if fields.time_format:
        syntax = f"must be {'a' if len(forms) == 1 else 'one'} time that exists, of the form {' or '.join(forms)}"
    skipped = f"in {fields.time_zone} they leave out that hour when summer time begins"
    return {
        "missing": "must be present and not empty",
        "type": kind,
        "encoding": f"must be valid {fields.encoding.upper()}",
        "long": f"must be at most {LONGEST} bytes",
        "syntax": syntax,
        "zone": "must say how far it is from UTC, such as Z or +01:00, or --time-zone must be given",
        "skipped": f"must be one that clocks show: {skipped}",
        "finite": "must be finite",
        "range": "must be between 1970-01-01 and 2200-01-01",
        "unit": "must not be a plain number without --time-unit",
    }[rule]


def dead_letter(reason: str, path: str, position: str = "", record: str = "") -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    texts = (reason, path, position, record)
    return DeadLetter(*[text.encode("utf-8", "backslashreplace").decode() for text in texts])


def usable(found: RawEvents | Damage, source: str, normalise: Normaliser) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of what has been read, and what cannot be used of it; count that."""
    if isinstance(found, Damage):
        _count_refusal(found.code)
        yield dead_letter(found.reason, source, found.position, found.record)
        return
    batches, refusals = normalise(found)
    for refusal in refusals:
        _count_refusal(refusal.code, refusal.by)
        yield dead_letter(refusal.reason, source, found.position(refusal.row), found.record(refusal.row))
    for batch in batches:
        if batch.num_rows:
            yield batch


def _count_refusal(code: str, by: Sequence[str] = ("",)) -> None:
    """Count a record that cannot be used, for each of the questions that cannot."""
    for each in by:
        _counter("events_malformed", each).inc()
        _counter(f"events_malformed_{code}", each).inc()


def _read_raw(part: FilePart, fields: AnyFields) -> Iterator[RawEvents | Damage]:
    return FORMATS[part.format].read(part.path, fields.names(), fields.text, part.group)


def read_part(part: FilePart, fields: AnyFields, normalise: Normaliser) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of a part of a file, and what cannot be used of it."""
    for found in _read_raw(part, fields):
        yield from usable(found, part.path, normalise)


def read_files(files: Sequence[EventFile], fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of files, and what cannot be used of them, one after the other and without a pipeline."""
    normalise = Normaliser(fields)
    for file in files:
        check_file(file, fields)
        for part in parts_of(file):
            check_unchanged(part)
            yield from read_part(part, fields, normalise)
            check_unchanged(part)


def unusable(files: Sequence[EventFile], fields: AnyFields) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Before a run is charged each file of this machine is looked through as far as that needs no decoding of its records:
    compressed text and the blocks of Avro to their end.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    found: Counter[str] = Counter()
    with counted():
        for file in files:
            if scheme_of(file.path) is None:
                FORMATS[file.format].check(file.path, fields.text)
                next((each for part in parts_of(file) for each in _read_raw(part, fields)), None)
        normalise, read = Normaliser(fields), 0
        for each in (each for file in files for part in parts_of(file) for each in _read_raw(part, fields)):
            if isinstance(each, Damage):
                found[each.code] += 1
                continue
            batches, refusals = normalise(each)
            if any(batch.num_rows for batch in batches):
                return Counter()
            found.update(refusal.code for refusal in refusals)
            read += each.rows
            if found.total() >= FIRST or read >= MOST:
                break
    return found
