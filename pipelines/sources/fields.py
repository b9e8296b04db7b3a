"""Which fields of a file are the person, the item, the time and the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
from privstream.mechanisms.checks import positive
from privstream.pipelines.sources.formats import UTF_8, TextForm, encoding_of
from privstream.transforms.reading.domain import Spelling, column_names
from privstream.transforms.reading.fields import (
    NUMBER,
    NUMBERS,
    OPTIONAL,
    TEXT,
    UNREAD,
    BrokenRuleError,
    EventFields,
    kind_of,
)
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.frames import FieldNames, of_kind, read_column
from privstream.transforms.reading.times import TimeForm, check_form, has_zone, zone_clock
from pyarrow import types

NEEDED = "must be given, such as Europe/Berlin or UTC"
MOST_NAMES, LONGEST_NAME = 40, 40  # names of a header that an error lists, if none of them is longer
NAMES_MAY_BE_DATA = b"names_may_be_data"
"""Key in the metadata of a schema whose names were read from a line that may be an event: a CSV without a header."""


@dataclass(frozen=True, kw_only=True)
class FieldMapping:
    """Names and rules by which a file's fields become events: the keys of `Data`, as a question reads them.

    Attributes:
        user, item, time, value: names of fields; "" for none.
        whole: whether values are rounded to whole numbers of `value_unit`, of two as near to the even one, and an event
            without a number counts, with 0.

    Raises:
        TypeError, ValueError: by the checks' wording, naming the option.
    """

    user: str = "user"
    item: str = "item"
    time: str = "time"
    value: str = ""
    whole: bool = False
    value_unit: float = 1.0
    time_unit: str | None = None
    time_format: str | None = None
    time_zone: str | None = None
    decimal: str | None = None
    null: tuple[str, ...] = ()
    trim: bool = False
    normalize: bool = False
    fold_case: bool = False
    encoding: str = UTF_8
    delimiter: str | None = None
    quote: str = "double"
    where: str | None = None
    user_kind: ClassVar[str] = TEXT

    def __post_init__(self) -> None:
        named = [name for name in (self.user, *self.form.item, self.time, self.value) if name]
        if len(set(named)) < len(named):
            raise ValueError(f"user, item, time and value must be different fields, got {', '.join(named)}")
        positive("value_unit", self.value_unit)
        mark = self.delimiter or ","
        if len(mark) > 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n \0':
            raise ValueError(f"delimiter must be one character that is no letter, digit, quote or space, got {mark!r}")
        encoding_of(self.encoding)
        if self.time_zone is not None:
            zone_clock(self.time_zone)
        if self.time_format is None:
            return
        if self.time_unit is not None:
            raise ValueError("time_unit must not be given with time_format: times are numbers, or text of a form")
        check_form(self.time_format)
        if self.time_zone is None and not has_zone(self.time_format):
            raise ValueError(f"time_zone {NEEDED}: times of this time_format are local ones")

    @cached_property
    def reads(self) -> EventFields:
        """What is read of an event."""
        number = (OPTIONAL if self.whole else NUMBER) if self.value else UNREAD
        user = self.user_kind if self.user else UNREAD
        return EventFields(user=user, item=bool(self.item), timed=bool(self.time), value=number)

    @cached_property
    def form(self) -> FieldNames:
        """Where that is, and how it is written."""
        return FieldNames(
            user=self.user,
            item=column_names(self.item),
            time=self.time,
            value=self.value,
            times=TimeForm(unit=self.time_unit, form=self.time_format, zone=self.time_zone),
            spelling=Spelling(null=self.null, trim=self.trim, normalize=self.normalize, fold_case=self.fold_case),
            decimal=self.decimal,
            where=None if self.where is None else Filter(self.where),
        )

    @property
    def several(self) -> tuple[str, ...]:
        """The names of the fields with the item, if there are several."""
        return self.form.item if len(self.form.item) > 1 else ()

    @cached_property
    def contents(self) -> dict[str, str]:
        """What the fields to be read contain, by their names."""
        return {name: content for content, those in self.form.read(self.reads).items() for name in those if name}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields to be read from a file."""
        return tuple(dict.fromkeys([*self.contents, *(self.form.where.kinds if self.form.where else ())]))

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields and that their types, as its producer states them, can be used.

        Raises:
            ValueError, TypeError: naming the option or the field, the file and what it has.
        """
        contents = self.contents
        if NAMES_MAY_BE_DATA in (schema.metadata or {}) and not set(schema.names) & set(contents):
            least = len(contents) if self.time else MOST_NAMES + 1
            rule = f"must be a header with the fields {', '.join(contents)} (or those named by --user and so on)"
            raise ValueError(f"the first line of {source} {rule}, got {_listed(schema, least)}")
        for name, content in contents.items():
            column = _empty(name, f"--{content}", schema, source)
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            if content == "time" and kind_of(kind) in NUMBERS and self.time_unit is None:
                rule = "--time-unit must be one of s, ms, us, ns"
                raise ValueError(f"{rule}: field `{name}` of {source} has plain numbers")
            local = (types.is_timestamp(kind) and kind.tz is None) or types.is_date(kind)
            if content == "time" and local and self.time_zone is None:
                raise ValueError(f"--time-zone {NEEDED}: field `{name}` of {source} has local times, without a zone")
            try:
                read_column(content, self.reads, self.form, column)
            except BrokenRuleError as error:
                raise TypeError(f"field `{name}` of {source}{str(error).removeprefix(content)}") from None
        for name, kind in (self.form.where.kinds if self.form.where else {}).items():
            column = _empty(name, "--where", schema, source)
            try:
                of_kind(name, kind, self.form, column)
            except BrokenRuleError:
                given, wanted = str(column.type).partition("<")[0], kind or "a plain value"
                raise TypeError(f"--where reads field `{name}` of {source} as {wanted}, got {given}") from None


class PointMapping(FieldMapping):
    """Where the user is a point."""

    user_kind = NUMBER


@dataclass(frozen=True)
class Readings:
    """What questions read of the same records; how these are written is the same for all of them."""

    questions: tuple[tuple[str, FieldMapping], ...]
    """Names, and what they read; where all read the same, one without a name."""

    @classmethod
    def of(cls, fields: Mapping[str, FieldMapping]) -> Readings:
        """Return what questions read, by their names."""
        distinct = set(fields.values())
        return cls((("", distinct.pop()),) if len(distinct) == 1 else tuple(fields.items()))

    @cached_property
    def text(self) -> TextForm:
        """How files of text are written."""
        one = self.questions[0][1]
        mark = None if one.delimiter is None else one.delimiter.encode()
        return TextForm(encoding_of(one.encoding), mark, self.names, quote=one.quote == "double")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields to be read from a file."""
        return tuple(dict.fromkeys(name for _, fields in self.questions for name in fields.names))

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields of all questions; an error begins with the name of the question, if any."""
        for name, fields in self.questions:
            try:
                fields.check(schema, source)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{name}: {error}" if name else str(error)) from None


def _empty(name: str, option: str, schema: pa.Schema, source: str) -> pa.Array:
    """Return a column without rows of the type of a field that a file must have, once."""
    count = schema.names.count(name)
    if count > 1:
        raise ValueError(f"{option} must name one field: {source} has {count} called `{name}`")
    if not count:
        raise ValueError(f"{option} must name a field of {source}: no `{name}` there, only: {_listed(schema)}")
    return pa.nulls(0, schema.field(name).type)


def _listed(schema: pa.Schema, least: int = 0) -> str:
    """Return the names of fields; their number where they may be those of an event, which has a time and so digits.

    A line that has fewer fields than are asked for, `least`, may be a part of an event, or one without a time.
    """
    names = schema.names
    plain = all(len(name) <= LONGEST_NAME and not re.search(r"\d", name) for name in names)
    if NAMES_MAY_BE_DATA in (schema.metadata or {}) and not (plain and least <= len(names) <= MOST_NAMES):
        return f"{len(names):,} fields of other names"
    return ", ".join(sorted(name if name == name.strip() else repr(name) for name in names)) or "none"
