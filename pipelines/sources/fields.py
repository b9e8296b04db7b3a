"""Which fields of a file are the person, the item, the time and the value."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import pyarrow as pa
from privstream.mechanisms.checks import positive
from privstream.pipelines.locations import QUOTES, TIME_UNITS
from privstream.pipelines.sources.event_files import UTF_8, TextForm
from privstream.pipelines.sources.text_lines import encoding_of
from privstream.transforms.reading.domain import Spelling, column_names
from privstream.transforms.reading.fields import is_known_as_text, is_text
from privstream.transforms.reading.filters import NUMBER, TEXT, TRUTH, Filter
from privstream.transforms.reading.times import TimeForm, check_form, forms_of, has_zone, zone_clock
from pyarrow import types

LONGEST = 1 << 14
"""Bytes of UTF-8 that a user or an item has at most."""

WANTED = dict.fromkeys(("user", "item"), "text or an integer")
WANTED |= {"time": "a timestamp, ISO 8601 text or an epoch number", "value": "a number"}
"""What a field can be, by what it contains."""

MOST_NAMES, LONGEST_NAME = 40, 40
"""So many names of a header an error lists, if none of them is longer."""

NAMES_MAY_BE_DATA = b"names_may_be_data"
"""Key in the metadata of a schema whose names were read from a line that may be an event: a CSV without a header."""


@dataclass(frozen=True, kw_only=True)
class FieldMapping:
    """Names and rules by which a file's fields become events.

    Users and items are text or integers (5 and "5" are one person). Of an hour that clocks show twice a time is in the
    first; in an hour that they skip it is no time.

    Attributes:
        user, item, time, value: names of fields; "" for none. Several names for an item, as in a line of CSV: it is
            what all of them say together. The value is a number that an event has beside its item.
        whole: whether that is rounded to a whole number of `value_unit`, of two as near to the even one.
        optional_value: whether an event without a number counts, with 0.
        time_unit, time_format, time_zone: see `TimeForm`.
        decimal: what stands before decimals in text, a point or a comma. The other one, a space or an apostrophe may
            then stand between thousands; without it there is a point, and nothing between thousands.
        null, trim, normalize, fold_case: see `Spelling`.
        encoding, delimiter, quote: of text, see `TextForm`; `quote` is `double` or `none`.
        where: condition that an event must meet to count, on any fields of the file; see `Filter`.

    Raises:
        TypeError, ValueError: by the checks' wording, naming the option.
    """

    user: str = "user"
    item: str = "item"
    time: str = "time"
    value: str = ""
    whole: bool = False
    optional_value: bool = False
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
    quote: str = QUOTES[0]
    where: str | None = None

    def __post_init__(self) -> None:
        named = [name for name in (self.user, *self.items, self.time, self.value) if name]
        if len(set(named)) < len(named):
            raise ValueError(f"user, item, time and value must be different fields, got {', '.join(named)}")
        positive("value_unit", self.value_unit)
        mark = self.delimiter or ","
        if len(mark) > 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n \0':
            raise ValueError(f"delimiter must be one character that is no letter, digit, quote or space, got {mark!r}")
        _ = self.text, self.spelling, self.times, self.condition  # once, before the fields go to workers
        if self.time_zone is not None:
            zone_clock(self.time_zone)
        if self.time_format is None:
            return
        if self.time_unit is not None:
            raise ValueError("time_unit must not be given with time_format: times are numbers, or text of a form")
        check_form(self.time_format)
        if self.time_zone is None and not all(map(has_zone, forms_of(self.time_format))):
            rule = "must be given, such as Europe/Berlin or UTC: times of this time_format are local ones"
            raise ValueError(f"time_zone {rule}")

    @cached_property
    def times(self) -> TimeForm:
        """How times are written."""
        return TimeForm(unit=self.time_unit, form=self.time_format, zone=self.time_zone)

    @cached_property
    def text(self) -> TextForm:
        """How files of text are written."""
        mark = None if self.delimiter is None else self.delimiter.encode()
        quote = self.quote == QUOTES[0]
        return TextForm(encoding=encoding_of(self.encoding), delimiter=mark, names=self.names, quote=quote)

    @cached_property
    def spelling(self) -> Spelling:
        """How texts are read."""
        return Spelling(null=self.null, trim=self.trim, normalize=self.normalize, fold_case=self.fold_case)

    @property
    def condition(self) -> Filter | None:
        """What an event must meet."""
        return None if self.where is None else _compiled(self.where)

    @property
    def items(self) -> tuple[str, ...]:
        """The names of the fields with the item."""
        return column_names(self.item)

    @property
    def several(self) -> tuple[str, ...]:
        """The names of the fields with the item, if there are several."""
        return self.items if len(self.items) > 1 else ()

    @cached_property
    def contents(self) -> dict[str, tuple[str, ...]]:
        """The fields to be read, by what they contain: several for an item of several columns."""
        fields = {"user": (self.user,), "item": self.items, "time": (self.time,), "value": (self.value,)}
        return {content: names for content, names in fields.items() if any(names)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields to be read from a file."""
        filtered = () if self.condition is None else self.condition.kinds
        return tuple(dict.fromkeys([*chain.from_iterable(self.contents.values()), *filtered]))

    @property
    def questions(self) -> tuple[tuple[str, FieldMapping], ...]:
        """The only question that reads them, without a name."""
        return (("", self),)

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields and that their types, as its producer states them, can be used.

        Raises:
            ValueError, TypeError: naming the option or the field, the file and what it has.
        """
        options = {name: content for content, names in self.contents.items() for name in names}
        if NAMES_MAY_BE_DATA in (schema.metadata or {}) and not set(schema.names) & set(options):
            rule = f"must be a header with the fields {', '.join(options)} (or those named by --user and so on)"
            raise ValueError(f"the first line of {source} {rule}, got {_listed(schema, len(options))}")
        for name, option in options.items():
            kind = _kind_of(name, f"--{option}", schema, source)
            plain = kind.value_type if types.is_dictionary(kind) else kind
            number = _is_number(plain)
            moment = option == "time" and (types.is_timestamp(plain) or types.is_date(plain))
            fits = number or moment or is_text(plain) or types.is_null(plain)
            if not (fits if option in ("time", "value") else is_known_as_text(kind)):
                raise TypeError(f"field `{name}` of {source} must be {WANTED[option]}, got {_named(kind)}")
            if moment and getattr(plain, "tz", None) is None and self.time_zone is None:
                rule = "must be given, such as Europe/Berlin or UTC"
                raise ValueError(f"--time-zone {rule}: field `{name}` of {source} has local times, without a zone")
            if option == "time" and number and self.time_unit is None:
                units = ", ".join(TIME_UNITS)
                raise ValueError(f"--time-unit must be one of {units}: field `{name}` of {source} has plain numbers")
        for name, read in (self.condition.kinds if self.condition else {}).items():
            kind = _kind_of(name, "--where", schema, source)
            if not _can_be(kind, read):
                raise TypeError(
                    f"--where reads field `{name}` of {source} as {read or 'a plain value'}, got {_named(kind)}"
                )


@dataclass(frozen=True)
class SharedFields:
    """What several questions, by name, read of the same records; how these are written is the same for all of them."""

    questions: tuple[tuple[str, FieldMapping], ...]

    @cached_property
    def text(self) -> TextForm:
        """How files of text are written."""
        return replace(self.questions[0][1].text, names=self.names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields to be read from a file."""
        return tuple(dict.fromkeys(name for _, fields in self.questions for name in fields.names))

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields of all questions; an error begins with the name of the question."""
        for name, fields in self.questions:
            try:
                fields.check(schema, source)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{name}: {error}") from None


AnyFields = FieldMapping | SharedFields


@lru_cache(maxsize=16)
def _compiled(where: str) -> Filter:
    return Filter(where)


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _can_be(kind: pa.DataType, read: str | None) -> bool:
    """Tell whether a column can be what a condition reads it as; text may be anything."""
    if is_text(kind) or types.is_null(kind):
        return True
    kind = kind.value_type if types.is_dictionary(kind) else kind
    number, text = _is_number(kind), is_known_as_text(kind)
    fits = {NUMBER: number, TEXT: text, TRUTH: types.is_boolean(kind)}
    return fits[read] if read is not None else number or text or types.is_timestamp(kind)


def _kind_of(name: str, option: str, schema: pa.Schema, source: str) -> pa.DataType:
    """Return the type of a field that a file must have, once."""
    count = schema.names.count(name)
    if count > 1:
        raise ValueError(f"{option} must name one field: {source} has {count} called `{name}`")
    if not count:
        raise ValueError(f"{option} must name a field of {source}: no `{name}` there, only: {_listed(schema)}")
    return schema.field(name).type


def _listed(schema: pa.Schema, least: int = 0) -> str:
    """Return the names of fields; their number where they may be those of an event, which has a time and so digits.

    A line that has fewer fields than are asked for, `least`, may be a part of an event.
    """
    names = schema.names
    plain = all(len(name) <= LONGEST_NAME and not re.search(r"\d", name) for name in names)
    if NAMES_MAY_BE_DATA in (schema.metadata or {}) and not (plain and least <= len(names) <= MOST_NAMES):
        return f"{len(names):,} fields of other names"
    return ", ".join(sorted(name if name == name.strip() else repr(name) for name in names)) or "none"


def _named(kind: pa.DataType) -> str:
    """Return the name of a type, without the names within it, which may be those of people."""
    return str(kind).partition("<")[0]
