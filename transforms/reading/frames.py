"""The one reading of events: named columns, whatever they come from, become checked ones, and what cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.counters import counter
from privstream.transforms.reading import filters
from privstream.transforms.reading.domain import AS_WRITTEN, Spelling, join_columns
from privstream.transforms.reading.fields import (
    FLOAT,
    INTEGER,
    KNOWN_AS_TEXT,
    MISSING,
    NUMBER,
    TEXT,
    TYPE,
    BrokenRuleError,
    EventFields,
    Marked,
    broken,
    checked,
    cut_by_text,
    describe_row,
    kind_of,
    number_column,
    parts_of_union,
    plain,
    taken,
    text_column,
    value_column,
    with_nulls,
)
from privstream.transforms.reading.times import TimeForm, read_times

NO_STAMPS = "time_field must be given for Arrow batches and frames, whose rows have no timestamps"
SECONDS_OR_TEXT = TimeForm(unit="s")


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """Where events have what is read of them, and how it is written.

    Attributes:
        item: the fields that are one item together.
        time: None if it is the timestamp of each element.
        stamped: whether a single event without the field `time` has the timestamp of its element as its time.
        decimal: see `value_column`.
        where: the condition that events must meet.
        checked: whether nothing else is needed: see `PrivateTransform.of_checked`.
    """

    user: str = "user"
    item: tuple[str, ...] = ("item",)
    time: str | None = "time"
    value: str = "value"
    stamped: bool = True
    times: TimeForm = SECONDS_OR_TEXT
    spelling: Spelling = AS_WRITTEN
    decimal: str | None = None
    where: filters.Filter | None = None
    checked: bool = False

    def read(self, fields: EventFields) -> dict[str, tuple[str, ...]]:
        """Return the names of the fields to be read, by what they contain."""
        names = {"user": (self.user,), "item": self.item, "time": (self.time or "",), "value": (self.value,)}
        return {content: names[content] for content in fields.schema.names}


AS_NAMED = FieldNames()


class Read(NamedTuple):
    """What has been read of some rows.

    Attributes:
        clean: the rows that can be used, in the columns of `EventFields.schema`.
        refused: the first rule that each other row breaks; rows that do not pass the filter are in neither.
        rows: int64, where the rows of `clean` were.
        filtered: how many rows do not pass.
    """

    clean: pa.RecordBatch
    refused: dict[int, BrokenRuleError]
    rows: np.ndarray
    filtered: int


Parsed = MutableMapping[tuple[str, ...], Marked]
"""Columns that have been read, so that several questions about the same records read each once."""


def read_rows(
    columns: Mapping[str, pa.Array],
    rows: int,
    fields: EventFields,
    names: FieldNames = AS_NAMED,
    parsed: Parsed | None = None,
) -> Read:
    """Read rows: what can be used of them, and which rules the others break.

    Integers become decimal text, so that the user 5 and the user "5" are one; times become microseconds since 1970
    UTC. A column of a type that cannot be what it is to be breaks a rule in each row that has a value.

    The columns are raw ones; text that is bytes need not be valid. `parsed` has what others have read of the same rows.
    """
    passing, refused, parsed = np.ones(rows, np.bool_), dict[int, BrokenRuleError](), {} if parsed is None else parsed
    if names.where is not None:
        asked = {}
        for field, kind in names.where.kinds.items():  # one that is missing has no value
            asked[field], marks = _of_each_kind(
                "where", columns.get(field, pa.nulls(rows)), partial(of_kind, field, kind, names)
            )
            for mask, rule in marks:
                refused |= dict.fromkeys(np.flatnonzero(mask & passing).tolist(), rule)
                passing &= ~mask
        passing &= names.where.passes(asked, rows)
    filtered, made = rows - int(np.count_nonzero(passing)) - len(refused), []
    for content, those in names.read(fields).items():
        parts = []
        for field in those:
            what = f"{content} `{field}`" if len(those) > 1 else content
            key = what, field, fields.user, fields.value
            if key not in parsed:  # a time that is not needed may be missing
                column = columns.get(field, pa.nulls(rows))
                parsed[key] = _of_each_kind(what, column, partial(read_column, what, fields, names))
            found, marks = parsed[key]
            for mask, rule in marks:
                refused |= dict.fromkeys(np.flatnonzero(mask & passing).tolist(), rule)
                passing &= ~mask
            parts.append(found)
        made.append(join_columns([pc.fill_null(part, "") for part in parts]) if len(parts) > 1 else parts[0])
    clean = pa.RecordBatch.from_arrays(made, schema=fields.schema)
    clean = clean if passing.all() else clean.filter(pa.array(passing))
    return Read(clean, dict(sorted(refused.items())), np.flatnonzero(passing), filtered)


NEEDED = {filters.NUMBER: "a finite number", filters.TEXT: "valid text that is not too long, or an integer"}


def of_kind(field: str, kind: str | None, names: FieldNames, column: pa.Array) -> Marked:
    """Read a column that a condition needs, null where it has no value; true if it is only asked whether it has one."""
    column = checked("where", plain("where", column))
    column = names.spelling.column(column, written=kind in (filters.TEXT, filters.TRUTH))
    if kind is None:
        there = pc.greater(pc.binary_length(column), 0) if kind_of(column.type) == TEXT else column.is_valid()
        return pc.if_else(pc.fill_null(there, False), True, pa.scalar(None, pa.bool_())), []
    rule = BrokenRuleError("where", TYPE, f"field `{field}`, which where reads, must be {NEEDED.get(kind, kind)}")
    try:
        if kind == filters.NUMBER:
            found, marks = with_nulls(*value_column(column, decimal=names.decimal))
        elif kind_of(column.type) not in KNOWN_AS_TEXT - ({INTEGER} if kind == filters.TRUTH else set()):
            raise rule
        else:
            found, marks = with_nulls(*text_column("where", column))
    except BrokenRuleError:
        raise rule from None
    wrong = [mask for mask, _ in marks]
    if kind == filters.TRUTH:
        lower = pc.utf8_lower(found)
        known = pc.is_in(lower, pa.array(["true", "false", None], lower.type)).to_numpy(zero_copy_only=False)
        found, wrong = pc.equal(lower, "true"), [*wrong, ~known]
    return found, [(mask, rule) for mask in wrong]


def read_column(what: str, fields: EventFields, names: FieldNames, column: pa.Array) -> Marked:
    """Read a column that says `what`, such as `item`; its type must do."""
    content, column = what.partition(" ")[0], plain(what, column)
    if content == "time":
        times, marks = read_times(names.spelling.column(checked(what, column)), names.times)
        return pa.array(times), [mark for mark in marks if fields.timed or mark[1].code != f"time_{MISSING}"]
    if content == "value":
        return value_column(names.spelling.column(column), fields.value, names.decimal)
    column = names.spelling.column(column, written=True)
    point = content == "user" and fields.user == NUMBER
    if kind_of(column.type) not in KNOWN_AS_TEXT | ({FLOAT} if point else set()):
        raise broken(what, "point" if point else "text", column.type)
    if point:
        return number_column(what, column)
    texts, marks = text_column(what, column)
    return names.spelling.texts(content, texts), marks


def _of_each_kind(
    what: str, column: pa.Array, read: Callable[[pa.Array], Marked], places: np.ndarray | None = None
) -> Marked:
    """Read a column, or what it has at some places: of several kinds one after the other.

    Values of a kind that does not do break the rule.
    """
    own, size = (column, len(column)) if places is None else (None, len(places))
    try:
        if not pa.types.is_union(column.type):
            own = column if places is None else taken(what, column, places)
            return read(own)
        parts, order, marks = [], [], []
        for part, rows, there in parts_of_union(what, column, places):
            values, found = _of_each_kind(what, part, read, there)
            parts.append(values)
            order.append(rows)
            marks += [(np.isin(np.arange(size), rows[mask]), rule) for mask, rule in found]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order)))), marks
    except BrokenRuleError as error:
        rule = error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        rule = BrokenRuleError(what.partition(" ")[0], TYPE, f"{what} must be a column that can be read")
    nulls = np.zeros(size, np.bool_) if own is None else own.is_null().to_numpy(zero_copy_only=False)
    values, found = read(pa.nulls(size))
    return values, [*((mask & nulls, missing) for mask, missing in found), (~nulls, rule)]


class Unusable(NamedTuple):
    """A record that breaks a rule, as text."""

    rule: BrokenRuleError
    record: str


def usable_batches(
    frame: Any, fields: EventFields, names: FieldNames = AS_NAMED
) -> Iterator[pa.RecordBatch | Unusable]:
    """Yield what can be used of a batch or another frame, in the columns of `EventFields.schema`, and what cannot."""
    try:
        batches = [frame] if isinstance(frame, pa.RecordBatch) else pa.table(frame).to_batches()
    except Exception:  # each library has its own errors, and they quote values
        rows = len(frame) if isinstance(frame, Sized) else 1
        yield Unusable(BrokenRuleError("event", TYPE, "frame must have columns of one type each"), f"{rows:,} rows")
        return
    for batch in batches:
        record = describe_row(dict(zip(batch.schema.names, batch.columns, strict=True)))
        try:
            columns = raw_columns(batch, fields, names)
            pieces = list(cut_by_text(columns, batch.num_rows))
        except BrokenRuleError as error:
            yield from (Unusable(error, record(row)) for row in range(batch.num_rows))
            continue
        for piece in pieces:
            part = {name: column[piece] for name, column in columns.items()}
            read = read_rows(part, piece.stop - piece.start, fields, names)
            if names.where is not None:
                counter("events_filtered").inc(read.filtered)
            yield from (Unusable(rule, record(piece.start + row)) for row, rule in read.refused.items())
            if read.clean.num_rows:
                yield read.clean


def raw_columns(batch: pa.RecordBatch, fields: EventFields, names: FieldNames = AS_NAMED) -> dict[str, pa.Array]:
    """Return the columns of a batch that are read, each of which must stand there once; some may be missing."""
    contents = {field: content for content, those in names.read(fields).items() for field in those}
    if names.time is None and fields.timed:
        raise BrokenRuleError("time", MISSING, NO_STAMPS)
    wanted = dict.fromkeys(names.where.kinds if names.where else (), "where") | contents
    counts = {name: batch.schema.names.count(name) for name in wanted}
    for name, content in wanted.items():
        optional = content == "where" or (content == "time" and not fields.timed)
        if counts[name] > 1 or not (counts[name] or optional):
            rule = "one column" if counts[name] else "a column"
            raise BrokenRuleError(content, TYPE if counts[name] else MISSING, f"events must have {rule} {name}")
    return {name: batch.column(batch.schema.get_field_index(name)) for name in wanted if counts[name]}
