"""From rows of files to batches for one question or several; what a value is, transforms decide by their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.event_files import Damage, RawEvents
from privstream.pipelines.sources.fields import LONGEST, AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, EventFile, check_file, check_unchanged, parts_of
from privstream.pipelines.stores import scheme_of
from privstream.transforms.counters import counter
from privstream.transforms.reading.domain import join_columns
from privstream.transforms.reading.fields import (
    TIME_TEXT,
    BrokenRuleError,
    DeadLetter,
    Marks,
    as_text,
    broken,
    is_known_as_text,
    is_text,
    null_rows,
    text_column,
    value_column,
)
from privstream.transforms.reading.filters import NUMBER, TEXT, column_of_kind, with_nulls
from privstream.transforms.reading.times import forms_of, read_times

MOST_UNITS = 2.0**60
"""Larger values are as large: limits are smaller."""

EXACT = 1e-9
"""A number that is as near to a whole one, by its size, has not been rounded."""

OF_READING = ": "
"""Stands in the name of a counter between the questions that it is about, of several, and what it counts."""

QUESTION = b"question"
"""Names, in the metadata of a batch, the one of several questions that it is for."""

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

Read = tuple[pa.Array, Marks]
"""A column, and which rows of it break a rule: what stands in these is not defined."""

Faults = list[tuple[np.ndarray, str, str]]
"""Rows that break a rule, and the rule, for the counter and in words."""


def _texts(content: str, fields: FieldMapping, column: pa.Array) -> Read:
    """Read users or items."""
    column = fields.spelling.column(as_text(column))
    if not is_known_as_text(column.type):
        raise broken(content, "text", column.type)
    texts, marks = text_column(content, column, LONGEST)
    return fields.spelling.texts(content, texts), marks


def _times(content: str, fields: FieldMapping, column: pa.Array) -> Read:
    """Read times."""
    found, marks = read_times(fields.spelling.column(column), fields.times)
    return pa.array(found).cast(pa.timestamp("us", "UTC")), marks


def _values(content: str, fields: FieldMapping, column: pa.Array) -> Read:
    """Read values; NaN where an event has none and needs none."""
    numbers, marks = value_column(_with_points(fields.spelling.column(column), fields.decimal), whole=False)
    if fields.optional_value:
        numbers, marks = with_nulls(numbers, marks)
        numbers = pc.fill_null(numbers, np.nan)
    return numbers, marks


READERS = {"user": _texts, "item": _texts, "time": _times, "value": _values}


def _of_kind(field: str, kind: str | None, fields: FieldMapping, column: pa.Array) -> Read:
    """Read what a condition is about: null where it has no value."""
    if kind in (NUMBER, TEXT) or is_text(column.type):
        column = fields.spelling.column(column)
    found, marks = column_of_kind(field, kind, _with_points(column, fields.decimal) if kind == NUMBER else column)
    return (pc.if_else(found.is_valid(), True, pa.scalar(None, pa.bool_())) if kind is None else found), marks


def _read(column: pa.Array, read: Callable[[pa.Array], Read]) -> Read:
    """Read a column: of several kinds each by itself; values of a kind that does not do break the rule."""
    if pa.types.is_union(column.type):
        codes = column.type_codes.to_numpy()
        rows = [np.flatnonzero(codes == code) for code in range(column.type.num_fields)]
        parts = [_read(column.field(code), read) for code in range(len(rows))]
        marks = []
        for some, (_, found) in zip(rows, parts, strict=True):
            for mask, rule in found:
                marks.append((np.isin(np.arange(len(column)), some[mask]), rule))
        together = pa.concat_arrays([part for part, _ in parts])
        return together.take(pa.array(np.argsort(np.concatenate(rows)))), marks
    try:
        return read(column)
    except BrokenRuleError as rule:
        nulls = null_rows(column)
        found, marks = read(pa.nulls(len(column)))
        return found, [*((mask & nulls, missing) for mask, missing in marks), (~nulls, rule)]


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


def normalise(events: RawEvents, fields: AnyFields) -> tuple[list[pa.RecordBatch], Iterator[Damage]]:
    """Return a batch of the rows that each question can use, which it names if there are several, and other rows.

    What several questions read is parsed once.
    """
    parsed: dict[tuple[str, str, bool], Read] = {}
    batches, refused = [], dict[tuple[int, str, str], list[str]]()
    for name, own in fields.questions:
        passing, faults = _passing(name, own, events)
        columns: dict[str, pa.Array] = {}
        for content, names in own.contents.items():
            parts = []
            for field in names:
                key = content, field, content == "value" and own.optional_value
                if key not in parsed:
                    parsed[key] = _read(events.columns[field], partial(READERS[content], content, own))
                column, marks = parsed[key]
                what = content if len(names) == 1 else f"{content} `{field}`"
                faults += [(mask & passing, rule.code, f"{what} {_rule(rule.code, own)}") for mask, rule in marks]
                parts.append(column)
            columns[content] = join_columns(parts) if len(parts) > 1 else parts[0]
        first: dict[int, tuple[str, str]] = {}  # each row is refused for its first fault
        for mask, code, reason in faults:
            passing = passing & ~mask
            for row in np.flatnonzero(mask).tolist():
                first.setdefault(row, (code, reason))
        for row, why in first.items():
            refused.setdefault((row, *why), []).append(name)
        batches.append(_batch(name, own, columns, passing))

    def damages() -> Iterator[Damage]:
        for (row, code, reason), by in sorted(refused.items()):
            whom = "" if len(by) == len(fields.questions) else f" (for {', '.join(by)})"
            yield Damage(code, f"{reason}{whom}", events.position(row), events.record(row), tuple(by))

    return batches, damages()


def _passing(name: str, fields: FieldMapping, events: RawEvents) -> tuple[np.ndarray, Faults]:
    """Tell which rows pass the filter, and which break a rule of its fields."""
    rows = len(next(iter(events.columns.values())))
    if fields.condition is None:
        return np.ones(rows, np.bool_), []
    read, broken = {}, np.zeros(rows, np.bool_)
    faults: Faults = []
    for field, kind in fields.condition.kinds.items():
        read[field], marks = _read(events.columns[field], partial(_of_kind, field, kind, fields))
        for mask, rule in marks:
            broken |= mask
            faults.append((mask, rule.code, str(rule)))
    passing = fields.condition.passes(read, rows) & ~broken
    _counter("events_filtered", name).inc(int(np.count_nonzero(~passing & ~broken)))
    return passing, faults


def _batch(name: str, fields: FieldMapping, columns: dict[str, pa.Array], kept: np.ndarray) -> pa.RecordBatch:
    """Return the rows that a question can use; values are 0 for none, and rounded to whole units if they are to be."""
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
        with np.errstate(over="ignore"):
            units = np.clip(numbers / fields.value_unit, -MOST_UNITS, MOST_UNITS)
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


def usable(found: RawEvents | Damage, source: str, fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of what has been read, and what cannot be used of it; count that."""
    batches, damages = ([], iter([found])) if isinstance(found, Damage) else normalise(found, fields)
    for damage in damages:
        for name in damage.by:
            _counter("events_malformed", name).inc()
            _counter(f"events_malformed_{damage.code}", name).inc()
        yield dead_letter(damage.reason, source, damage.position, damage.record)
    yield from (batch for batch in batches if batch.num_rows)


def dead_letter(*texts: str) -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    reason, source, position, record = (text.encode("utf-8", "backslashreplace").decode() for text in texts)
    return DeadLetter(reason, source, position, record)


def _read_raw(file: EventFile, fields: AnyFields) -> Iterator[RawEvents | Damage]:
    """Read a file part by part, each of which must be as the file was found."""
    for part in parts_of(file):
        yield from FORMATS[part.format].read(part.path, fields.names, fields.text, part.group or 0)
        check_unchanged(file)


def read_file(file: EventFile, fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of a file that is as it was found, and what cannot be used of it."""
    check_unchanged(file)
    if not file.group:  # once, not for each row group
        check_file(file, fields)
    for found in _read_raw(file, fields):
        yield from usable(found, file.path, fields)


def unusable(files: Sequence[EventFile], fields: AnyFields) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Each file of this machine is looked through, as far as that needs no decoding of its records.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    found: Counter[str] = Counter()
    for file in files:
        if scheme_of(file.path) is None:
            FORMATS[file.format].check(file.path, fields.text)
            next(_read_raw(file, fields), None)
    read = 0
    for each in (each for file in files for each in _read_raw(file, fields)):
        if isinstance(each, Damage):
            found[each.code] += 1
            continue
        batches, damages = normalise(RawEvents(each.columns, str, str), fields)
        if any(batch.num_rows for batch in batches):
            return Counter()
        found.update(damage.code for damage in damages)
        read += len(next(iter(each.columns.values())))
        if found.total() >= FIRST or read >= MOST:
            break
    return found
