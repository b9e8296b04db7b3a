"""From rows of files to batches for one question or several: what a value is, transforms decide by their rules.

Each column of a file is parsed once, to a typed column that is null in rows that break a rule. A question takes its
columns, and drops the rows in which one of them is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.event_files import Damage, Part, RawEvents
from privstream.pipelines.sources.fields import AnyFields, FieldMapping, SharedFields
from privstream.pipelines.sources.found_files import FORMATS, EventFile, FilePart, check_file, check_unchanged, parts_of
from privstream.pipelines.sources.raw_columns import RawColumns
from privstream.transforms.counters import counter
from privstream.transforms.reading.columns import TEXT_PER_BATCH, decoded_lengths, unchecked_text
from privstream.transforms.reading.fields import (
    ENCODING,
    FINITE,
    LONG,
    MISSING,
    RANGE,
    TYPE,
    DeadLetter,
)
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.local_times import forms_of
from privstream.transforms.reading.texts import join_columns
from privstream.transforms.reading.times import SKIPPED, SYNTAX, TIME_TEXT, UNIT, ZONE

EXACT = 1e-9
"""A number that is as near to a whole one, by its size, has not been rounded."""

OF_READING = ": "
"""Stands in the name of a counter between the questions that it is about, of several, and what it counts."""


class Refusal(NamedTuple):
    """Why a row cannot be used.

    Attributes:
        row: its number.
        code, reason: the rule, for the counter and in words.
        by: the questions that cannot use it; a single one has no name.
    """

    row: int
    code: str
    reason: str
    by: tuple[str, ...] = ("",)


def count_refusal(code: str, by: Sequence[str] = ("",)) -> None:
    """Count a record that cannot be used, for each of the questions that cannot."""
    for each in by:
        _counter("events_malformed", each).inc()
        _counter(f"events_malformed_{code}", each).inc()


def _counter(name: str, by: str) -> Any:
    """Return a counter of reading, of one of several questions if that has a name."""
    return counter(f"{by}{OF_READING}{name}" if by else name)


class Normaliser:
    """Makes batches of `user`, `item`, `time` (microseconds, UTC) and `value`, as far as they are read.

    For several questions a batch has the columns of all of them, as `TakeReading` takes them apart, and the rows that
    one of them can use.

    Args:
        fields: which fields contain what.
    """

    def __init__(self, fields: AnyFields) -> None:
        self.questions = fields.questions if isinstance(fields, SharedFields) else (("", fields),)
        self.filters = {each.where: Filter(each.where) for _, each in self.questions if each.where is not None}
        self.take = None if isinstance(fields, SharedFields) else TakeReading(fields)

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that can be used, and why others cannot."""
        raw = RawColumns(events)
        columns: dict[str, pa.Array] = {}
        refused: dict[tuple[int, str, str], list[str]] = {}
        used = np.zeros(raw.rows, np.bool_)
        for name, fields in self.questions:
            first: dict[int, tuple[str, str]] = {}  # each row is refused for its first fault
            passing = self._passing(name, fields, raw, columns, first)
            kept = passing.copy()
            for place, content, marks in self._columns(fields, raw, columns):
                for mask, code in marks:
                    for row in np.flatnonzero(mask & passing).tolist() if mask.any() else ():
                        first.setdefault(row, (code, f"{content} {_rule(code, fields)}"))
                if columns[place].null_count:
                    kept &= columns[place].is_valid().to_numpy(zero_copy_only=False)
            used |= kept
            for row, why in first.items():
                refused.setdefault((row, *why), []).append(name)
        batch = pa.RecordBatch.from_pydict(columns)
        if not used.all():
            batch = batch.filter(pa.array(used))
        refusals = [self._refusal(*rule, by) for rule, by in sorted(refused.items())]
        return batch if self.take is None else self.take(batch), refusals

    def _passing(
        self, name: str, fields: FieldMapping, raw: RawColumns, columns: dict[str, pa.Array], first: dict[int, Any]
    ) -> np.ndarray:
        """Tell which rows pass the filter; those in which a field of it is of the wrong kind are refused."""
        if fields.where is None:
            return np.ones(raw.rows, np.bool_)
        condition = self.filters[fields.where]
        read, broken = {}, np.zeros(raw.rows, np.bool_)
        for field, kind in condition.kinds.items():
            read[field], marks = raw.of_kind(field, kind, fields)
            for mask, rule in marks:
                broken |= mask
                for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                    first.setdefault(row, (rule.code, str(rule)))
        passing = condition.passes(read, raw.rows) & ~broken
        _counter("events_filtered", name).inc(int(np.count_nonzero(~passing & ~broken)))
        columns[_where(fields)] = pa.array(passing)
        return passing

    def _columns(
        self, fields: FieldMapping, raw: RawColumns, columns: dict[str, pa.Array]
    ) -> Iterator[tuple[str, str, Sequence[tuple[np.ndarray, str]]]]:
        """Read the columns of a question; give the place and the name of each, and which rows break which rules."""
        for content, names in fields.contents().items():
            place = _place(fields, content)
            found = [raw.read(content, name, fields) for name in names]
            if place not in columns:
                joined = found[0].column
                if len(found) > 1:
                    valid = np.logical_and.reduce([each.valid for each in found])
                    joined = join_columns([pc.fill_null(each.column, "") for each in found])
                    joined = pc.if_else(pa.array(valid), joined, pa.scalar(None, joined.type))
                columns[place] = joined
            for each, name in zip(found, names, strict=True):
                yield place, content if len(names) == 1 else f"{content} `{name}`", each.marks

    def _refusal(self, row: int, code: str, reason: str, by: list[str]) -> Refusal:
        """Say for which questions a rule is broken, if not for all of them."""
        whom = "" if len(by) == len(self.questions) else f" (for {', '.join(by)})"
        return Refusal(row, code, f"{reason}{whom}", tuple(by))


class TakeReading:
    """Takes what a question reads from the batches of a `Normaliser`.

    Args:
        fields: what is read, by it alone or by several.
        name: of the question, if there are several.
    """

    def __init__(self, fields: AnyFields, name: str = "") -> None:
        self.fields = dict(fields.questions)[name] if isinstance(fields, SharedFields) else fields
        self.events_read = counter("events_read")
        self.without_value = counter("events_without_value")
        self.rounded = counter("values_rounded")

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that count of a batch, if there are some."""
        taken = self(batch)
        if taken.num_rows:
            yield taken

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that count of a batch."""
        columns = {content: batch[_place(self.fields, content)] for content in self.fields.contents()}
        taken = pa.RecordBatch.from_pydict(columns)
        masks = [column.is_valid() for column in columns.values() if column.null_count]
        if self.fields.where is not None:
            masks.append(batch[_where(self.fields)])
        if masks:
            taken = taken.filter(reduce(pc.and_, masks))
        self.events_read.inc(taken.num_rows)
        return self._with_final_values(taken) if "value" in columns else taken

    def _with_final_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return values as questions count them: 0 for none, and rounded to whole units if they are to be so.

        What binary fractions add to decimals is no part of these.
        """
        numbers = batch["value"].to_numpy(zero_copy_only=False)
        none = np.isnan(numbers)
        self.without_value.inc(int(np.count_nonzero(none)))
        if none.any():
            numbers = np.where(none, 0.0, numbers)
        if self.fields.whole:
            units = numbers / self.fields.value_unit
            numbers = np.rint(units)
            apart = np.abs(units - numbers) > EXACT * np.maximum(1.0, np.abs(units))
            self.rounded.inc(int(np.count_nonzero(apart)))
        return batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(numbers))


def _place(fields: FieldMapping, content: str) -> str:
    """Return the name of the column with what a question reads, among those of all questions."""
    return f"{content}{'?' * (content == 'value' and fields.optional_value)} {getattr(fields, content)}"


def _where(fields: FieldMapping) -> str:
    """Return the name of the column that says which rows pass the condition of a question."""
    return f"where {fields.where}"


def _rule(code: str, fields: FieldMapping) -> str:
    """Say a rule in words."""
    content, _, rule = code.partition("_")
    forms = forms_of(fields.time_format or "")
    text = "must be text or an integer"
    if content == "time":
        text = f"must be a number or {TIME_TEXT}" if fields.time_unit else f"must be {TIME_TEXT}"
    elif content == "value":
        text = f"must be a number, with a {'comma' if fields.decimal == ',' else 'point'} before decimals"
    if fields.time_format:
        syntax = f"must be {'a' if len(forms) == 1 else 'one'} time that exists, of the form {' or '.join(forms)}"
    else:
        syntax = text
    return {
        MISSING: "must be present and not empty",
        TYPE: "must be a number or text" if content == "time" else text,
        ENCODING: f"must be valid {fields.text.encoding.upper()}",
        LONG: f"must be at most {fields.longest} bytes",
        SYNTAX: syntax,
        ZONE: "must say how far it is from UTC, such as Z or +01:00, or --time_zone must be given",
        SKIPPED: f"must be one that clocks show: in {fields.time_zone} they leave out that hour when summer time "
        "begins",
        FINITE: "must be finite",
        RANGE: "must be between 1970-01-01 and 2200-01-01",
        UNIT: "must not be a plain number without --time_unit",
    }[rule]


def pieces(events: RawEvents) -> Iterator[RawEvents]:
    """Cut rows such that no piece of several has more than so much text: a dictionary says much in few bytes."""
    columns = {name: column for name, column in events.columns.items() if isinstance(column, pa.DictionaryArray)}
    lengths = [decoded_lengths(name, unchecked_text(column)) for name, column in columns.items()]
    known = [length for length in lengths if length is not None]
    if not known:
        yield events
        return
    ends = np.cumsum(np.sum(known, axis=0))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_PER_BATCH, side="right")))
        yield events.slice(first, last)
        first = last


def dead_letter(reason: str, path: str, position: str = "", record: str = "") -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    texts = (reason, path, position, record)
    return DeadLetter(*[text.encode("utf-8", "backslashreplace").decode() for text in texts])


def usable(found: RawEvents | Damage, source: str, normalise: Normaliser) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of what has been read, and what cannot be used of it."""
    if isinstance(found, Damage):
        count_refusal(found.code)
        yield dead_letter(found.reason, source, found.position, found.record)
        return
    for events in pieces(found):
        batch, refusals = normalise(events)
        for refusal in refusals:
            count_refusal(refusal.code, refusal.by)
            row = refusal.row
            yield dead_letter(refusal.reason, source, events.position(row), events.record(row))
        if batch.num_rows:
            yield batch


def read_part(part: FilePart, fields: AnyFields, normalise: Normaliser) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of a part of a file, and what cannot be used of it."""
    for found in FORMATS[part.format].read(part.path, Part(part.start, part.end), fields.names(), fields.text):
        yield from usable(found, part.path, normalise)


def read_files(files: Sequence[EventFile], fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of files, and what cannot be used of them, one after the other and without a pipeline.

    Raises:
        InputFileError: a file has changed since it was found, or cannot be read to its end.
    """
    normalise = Normaliser(fields)
    for file in files:
        check_file(file, fields)
        for part in parts_of(file, fields):
            check_unchanged(part)
            yield from read_part(part, fields, normalise)
            check_unchanged(part)
