"""From rows of files to batches for one question or several: what a value is, transforms decide by their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.pipelines.sources.event_files import Damage, Part, RawEvents
from privstream.pipelines.sources.fields import AnyFields, FieldMapping, SharedFields, content_of
from privstream.pipelines.sources.found_files import (
    FORMATS,
    EventFile,
    FilePart,
    check_file,
    check_unchanged,
    timed_parts,
)
from privstream.transforms.counters import counter
from privstream.transforms.reading.columns import (
    TEXT_PER_BATCH,
    as_text,
    decoded_lengths,
    is_text,
    read_text,
    text_column,
    unchecked_text,
    value_column,
    value_of,
)
from privstream.transforms.reading.fields import (
    ENCODING,
    FINITE,
    LONG,
    LONGEST_TEXT,
    MISSING,
    RANGE,
    TYPE,
    BrokenRuleError,
    DeadLetter,
    Marks,
)
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.kinds import KINDS, NUMBER, TEXT, column_of_kind, read_as, with_nulls, wrong_kind
from privstream.transforms.reading.local_times import forms_of
from privstream.transforms.reading.texts import join_columns
from privstream.transforms.reading.times import SKIPPED, SYNTAX, TIME_TEXT, UNIT, ZONE, read_micros, read_times

TIME = pa.timestamp("us", "UTC")
EXACT = 1e-9
"""A number that is as near to a whole one, by its size, has not been rounded."""

SPACES = " \u00a0\u2009\u202f'\u2019"
BETWEEN = {decimal: f"[{SPACES}{other}]" for decimal, other in ((".", ","), (",", "."))}
"""What may stand between thousands, by what stands before decimals."""

GROUPED = {
    decimal: rf"^[+-]?(([0-9]+|{'|'.join(f'[1-9][0-9]{{0,2}}([{each}][0-9]{{3}})+' for each in SPACES + other)})"
    rf"([{decimal}][0-9]*)?|[{decimal}][0-9]+)([eE][+-]?[0-9]{{1,4}})?$"
    for decimal, other in ((".", ","), (",", "."))
}
NO_NUMBER = "-"
OF_READING = ": "
"""Stands in the name of a counter between the reading that it is about, of several, and what it counts."""

ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
"""Kinds of Python values that may stand together in a column."""


class Refusal(NamedTuple):
    """Why a row cannot be used: a short code for the counter and the rule in words.

    Attributes:
        row: its number.
        code, reason: the rule.
        by: what cannot use it, of the readings of `SharedFields`; a single reading has no name.
    """

    row: int
    code: str
    reason: str
    by: tuple[str, ...] = ("",)


def counter_of(name: str, by: str) -> Any:
    """Return a counter of reading, for one of several readings if that has a name."""
    return counter(f"{by}{OF_READING}{name}" if by else name)


def count_refusal(code: str, by: Sequence[str] = ("",)) -> None:
    """Count a record that cannot be used, for each of the readings that cannot."""
    for each in by:
        counter_of("events_malformed", each).inc()
        counter_of(f"events_malformed_{code}", each).inc()


class Judged(NamedTuple):
    """What has been read of rows: columns by what they contain, which rows count (None: all), and why others do not."""

    columns: dict[str, pa.Array]
    kept: np.ndarray | None
    refusals: list[Refusal]


Known = dict[tuple[str, str, bool], tuple[pa.Array, Marks]]
"""Columns that have been read: by what they contain, by field, and whether a value may be missing."""


class Normaliser:
    """Makes wire batches of `user`, `item`, `time` (microseconds, UTC) and `value`, as far as named.

    Args:
        fields: which fields contain what.
        name: of this reading, if it is one of several of the same records.
    """

    def __init__(self, fields: FieldMapping, name: str = "") -> None:
        self.fields = fields
        self.times = fields.times
        self.encoding = fields.text.encoding
        self.several = fields.several
        self.longest = min(fields.max_item_bytes, LONGEST_TEXT)
        self.clean = fields.spelling
        self.filter = None if fields.where is None else Filter(fields.where)
        self.filtered = counter_of("events_filtered", name)
        self.events_read = counter("events_read")
        self.without_value = counter("events_without_value")
        self.rounded = counter("values_rounded")

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that can be used, and why the others cannot."""
        columns, kept, refusals = self.judge(events, {})
        batch = pa.RecordBatch.from_pydict(columns)
        return self.finish(batch if kept is None else batch.filter(pa.array(kept))), refusals

    def judge(self, events: RawEvents, known: Known) -> Judged:
        """Read columns, those that are `known` only once, and tell which rows can be used."""
        columns: dict[str, pa.Array] = {}
        refusals: dict[int, Refusal] = {}
        passing = None if self.filter is None else self._passing(self.filter, events, refusals)
        for name, field in self.fields.contents().items():
            place = name.partition(" ")[0], field, name == "value" and self.fields.optional_value
            if place not in known:
                known[place] = self._read(name, events.columns[field])
            columns[name], marks = known[place]
            for mask, rule in marks:
                broken = mask if passing is None else mask & passing
                for row in np.flatnonzero(broken).tolist() if broken.any() else ():
                    content = name.partition(" ")[0]
                    what = content if content == name else f"item `{field}`"
                    refusals.setdefault(row, Refusal(row, rule.code, f"{what} {self._wording(rule.code, content)}"))
        if self.several:
            parts = [columns.pop(content_of(number)) for number in range(len(self.several))]
            columns["item"] = join_columns([pc.fill_null(part, "") for part in parts])
        kept = passing
        if refusals:
            kept = np.ones(len(columns["time"]), bool) if passing is None else passing.copy()
            kept[list(refusals)] = False
        return Judged(columns, kept, [refusals[row] for row in sorted(refusals)])

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the rows that can be used, and return them with their final values."""
        self.events_read.inc(batch.num_rows)
        if "value" not in batch.schema.names:
            return batch
        place = batch.schema.get_field_index("value")
        return batch.set_column(place, "value", self._finished(batch.column(place)))

    def _passing(self, condition: Filter, events: RawEvents, refusals: dict[int, Refusal]) -> np.ndarray:
        """Tell which rows pass the filter; those in which a field of it is of the wrong kind are refused."""
        columns = {}
        for name, kind in condition.kinds.items():
            columns[name], marks = self._of_kind(name, kind, events.columns[name])
            for mask, rule in marks:
                for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                    refusals.setdefault(row, Refusal(row, rule.code, str(rule)))
        passing = condition.passes(columns, len(next(iter(events.columns.values()))))
        passing[list(refusals)] = False
        self.filtered.inc(len(passing) - int(np.count_nonzero(passing)) - len(refusals))
        return passing

    def _of_kind(self, name: str, kind: str | None, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read a field as the filter does; null where it has no value."""
        column = _of_one_kind(values)
        if column is None or (kind == TEXT and pa.types.is_floating(column.type)):
            return _one_by_one(list(values), pa.bool_() if kind is None else KINDS[kind], self._reader(name, kind))
        if kind in (NUMBER, TEXT) or is_text(column.type):
            column = self.clean.column(column)
        return column_of_kind(name, kind, _with_points(column, self.fields.decimal) if kind == NUMBER else column)

    def _reader(self, name: str, kind: str | None) -> Callable[[Any], Any]:
        """Return what reads a single value as the filter does."""

        def read(value: Any) -> Any:
            found = self.clean.value(value)
            if kind == NUMBER and isinstance(found, str):
                try:
                    return self._number(found)
                except BrokenRuleError:
                    raise wrong_kind(name, NUMBER) from None
            return read_as(name, kind, found)

        return read

    def _read(self, name: str, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read one column, at once where its values are of one kind."""
        if name == "time":
            return self._times(values)
        name = name.partition(" ")[0]
        if name == "value":
            return self._values(values)
        column = _of_one_kind(values)
        if column is None or pa.types.is_floating(column.type):
            texts, marks = _one_by_one(values, pa.string(), self._text_reader(name))
        else:
            texts, marks = text_column(name, self.clean.column(as_text(column)), self.longest)
        return self.clean.texts(name, texts), marks

    def _times(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the time."""
        column = _of_one_kind(values)
        number = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
        if column is None or (number and self.times.unit is None):
            return _one_by_one(values, TIME, lambda value: read_micros("time", self.clean.value(value), self.times))
        times, marks = read_times(self.clean.column(column), self.times)
        return pa.array(times).cast(TIME), marks

    def _values(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the value; it is null where an event has none and needs none."""
        column = _of_one_kind(values)
        if column is None:
            numbers, marks = _one_by_one(values, pa.float64(), self._number)
        else:
            text = self.clean.column(column)
            numbers, marks = value_column(_with_points(text, self.fields.decimal), whole=False)
        if not self.fields.optional_value:
            return numbers, marks
        return with_nulls(numbers, marks)

    def _number(self, value: Any) -> float:
        """Read a single value."""
        found = self.clean.value(value)
        if isinstance(found, str):
            text = found.encode("utf-8", "replace").decode()  # of what is no text it makes no number
            found = _with_points(pa.array([text], pa.string()), self.fields.decimal)[0].as_py()
        return value_of(found, whole=False)

    def _finished(self, numbers: pa.Array) -> pa.Array:
        """Return values of events that can be used: 0 for none, and rounded to whole units if they are to be so.

        What binary fractions add to decimals is no part of these.
        """
        self.without_value.inc(numbers.null_count)
        given = numbers.fill_null(0.0)
        if not self.fields.whole:
            return given
        units = given.to_numpy() / self.fields.value_unit
        whole = np.rint(units)
        self.rounded.inc(int(np.count_nonzero(np.abs(units - whole) > EXACT * np.maximum(1.0, np.abs(units)))))
        return pa.array(whole)

    def _text_reader(self, name: str) -> Callable[[Any], str]:
        """Return what reads a single user or item."""
        return lambda value: read_text(name, self.clean.value(value), longest=self.longest)

    def _wording(self, code: str, name: str) -> str:
        """Say a rule in words."""
        zone, forms = self.fields.time_zone, forms_of(self.fields.time_format or "")
        iso = f"a number or {TIME_TEXT}" if self.fields.time_unit else TIME_TEXT
        number = f"a number, with a {'comma' if self.fields.decimal == ',' else 'point'} before decimals"
        return {
            MISSING: "must be present and not empty",
            TYPE: {"time": "must be a number or text", "value": f"must be {number}"}.get(
                name, "must be text or an integer"
            ),
            ENCODING: f"must be valid {self.encoding.upper()}",
            LONG: f"must be at most {self.longest} bytes",
            SYNTAX: f"must be {'a' if len(forms) == 1 else 'one'} time that exists, of the form {' or '.join(forms)}"
            if self.fields.time_format
            else f"must be {iso}",
            ZONE: "must say how far it is from UTC, such as Z or +01:00, or --time_zone must be given",
            SKIPPED: f"must be one that clocks show: in {zone} they leave out that hour when summer time begins",
            FINITE: "must be finite",
            RANGE: "must be between 1970-01-01 and 2200-01-01",
            UNIT: "must not be a plain number without --time_unit",
        }[code.removeprefix(f"{name}_")]


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


def _of_one_kind(values: pa.Array | list[Any]) -> pa.Array | None:
    """Return Python values as an Arrow column; None if they are of several kinds, or of one that Arrow cannot hold."""
    if isinstance(values, pa.Array):
        return values
    kinds = set(map(type, values)) - {type(None)}
    with suppress(UnicodeEncodeError, OverflowError):
        for kind, stored in ARROW.items():
            if kinds <= {kind}:
                return pa.array(values, stored)
    return None


def _one_by_one(values: list[Any], kind: pa.DataType, read: Callable[[Any], Any]) -> tuple[pa.Array, Marks]:
    """Read values of several kinds, or with wrong ones among them."""
    found: list[Any] = []
    broken: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, value in enumerate(values):
        try:
            found.append(read(value))
        except BrokenRuleError as rule:
            found.append(None)
            broken.setdefault(rule.code, (np.zeros(len(values), bool), rule))[0][row] = True
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


def normaliser_of(fields: AnyFields) -> Normaliser | SharedNormaliser:
    """Return what makes batches of records for one question or several."""
    return Normaliser(fields) if isinstance(fields, FieldMapping) else SharedNormaliser(fields)


class SharedNormaliser:
    """Makes batches for several questions: each column is read once, and says for each reading which rows count.

    A row is in a batch if one of the questions can use it. Which of them can is decided by their own rules, as if each
    read by itself: a record without a value still counts where no value is read.

    Args:
        fields: what the questions read.
    """

    def __init__(self, fields: SharedFields) -> None:
        self.each = {name: Normaliser(reading, name) for name, reading in fields.readings.items()}

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that a question can use, and which of them cannot use others, and why."""
        known: Known = {}
        columns: dict[str, pa.Array] = {}
        refused: dict[tuple[int, str, str], list[str]] = {}
        used: np.ndarray | bool = False
        for number, (name, normaliser) in enumerate(self.each.items()):
            read, kept, refusals = normaliser.judge(events, known)
            columns |= {_place(normaliser.fields, content): column for content, column in read.items()}
            if kept is not None:
                columns[_kept(number)] = pa.array(kept)
            used = used | (np.ones(len(read["time"]), np.bool_) if kept is None else kept)
            for refusal in refusals:
                refused.setdefault(refusal[:3], []).append(name)
        batch = pa.RecordBatch.from_pydict(columns)
        if refused or not np.all(used):
            batch = batch.filter(pa.array(used))
        return batch, [self._refusal(*rule, by) for rule, by in sorted(refused.items())]

    def _refusal(self, row: int, code: str, reason: str, by: list[str]) -> Refusal:
        """Say for which questions a rule is broken, if not for all of them."""
        names = ", ".join(by).split(",")
        whom = "" if len(by) == len(self.each) else f" (for {', '.join(name.strip() for name in names)})"
        return Refusal(row, code, f"{reason}{whom}", tuple(by))


class TakeReading:
    """Takes what one question reads from the batches of a `SharedNormaliser`.

    Args:
        fields: what the questions read.
        name: of the question.
    """

    def __init__(self, fields: SharedFields, name: str) -> None:
        readings = list(fields.readings.values())
        self.fields = dict(fields.questions)[name]
        self.kept = _kept(readings.index(self.fields))
        self.normaliser = Normaliser(self.fields)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that count of a batch, if there are some."""
        contents = [name.partition(" ")[0] for name in self.fields.contents()]
        columns = {name: batch[_place(self.fields, name)] for name in dict.fromkeys(contents)}
        taken = pa.RecordBatch.from_pydict(columns)
        if self.kept in batch.schema.names:
            taken = taken.filter(batch[self.kept])
        if taken.num_rows:
            yield self.normaliser.finish(taken)


def _place(fields: FieldMapping, content: str) -> str:
    """Return the name of the column with what a question reads, among those of all questions."""
    field = fields.item if content == "item" else fields.contents()[content]
    return f"{content}{'?' * (content == 'value' and fields.optional_value)} {field}"


def _kept(number: int) -> str:
    """Return the name of the column that says which rows count in a reading."""
    return f"kept {number}"


def dead_letter(reason: str, path: str, position: str = "", record: str = "") -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    texts = (reason, path, position, record)
    return DeadLetter(*[text.encode("utf-8", "backslashreplace").decode() for text in texts])


def read_part(
    part: FilePart, fields: AnyFields, normalise: Normaliser | SharedNormaliser
) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of a part of a file, and what cannot be used of it."""
    place = Part(part.start, part.end)
    for found in FORMATS[part.format].read(part.path, place, fields.names(), fields.text):
        if isinstance(found, Damage):
            count_refusal(found.code)
            yield dead_letter(found.reason, part.path, found.position, found.record)
            continue
        for events in pieces(found):
            batch, refusals = normalise(events)
            for refusal in refusals:
                count_refusal(refusal.code, refusal.by)
                row = refusal.row
                yield dead_letter(refusal.reason, part.path, events.position(row), events.record(row))
            if batch.num_rows:
                yield batch


def read_files(files: Sequence[EventFile], fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of files, and what cannot be used of them, one after the other and without a pipeline.

    Raises:
        InputFileError: a file has changed since it was found, or cannot be read to its end.
    """
    normalise = normaliser_of(fields)
    for file in files:
        check_file(file, fields)
        for part in timed_parts(fields, file):
            check_unchanged(part)
            yield from read_part(part, fields, normalise)
            check_unchanged(part)
