"""Which fields of a file are the person, the item, the time and the value."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import pyarrow as pa
from privstream.mechanisms.checks import integer, one_of, positive
from privstream.pipelines.locations import QUOTES, TIME_UNITS
from privstream.pipelines.sources.event_files import UTF_8, TextForm
from privstream.pipelines.sources.text_lines import encoding_of
from privstream.transforms.reading.columns import is_known_as_text, is_text
from privstream.transforms.reading.fields import LONGEST_TEXT
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.kinds import NUMBER, TEXT, TRUTH
from privstream.transforms.reading.local_times import check_form, forms_of, has_zone, zone_clock
from privstream.transforms.reading.texts import Spelling, column_names
from privstream.transforms.reading.times import TimeForm
from pyarrow import types

MOST_NAMES, LONGEST_NAME = 40, 40
"""So many names of a header an error lists, if none of them is longer."""

NAMES_MAY_BE_DATA = "names_may_be_data"
"""Key in the metadata of a schema whose names were read from a line that may be an event: a CSV without a header."""


@dataclass(frozen=True, kw_only=True)
class FieldMapping:
    """Names and rules by which a file's fields become events.

    Users and items are text or integers (an integer is read as its decimal text, so 5 and "5" are one
    person); text is taken as it stands, without Unicode normalisation. Times are Arrow or Avro timestamps, ISO 8601
    text or text of a stated form, or epoch numbers in a stated unit. A time that does not say how far it is from UTC is
    that of the clocks of a stated zone; without one it is refused. Of an hour that these clocks show twice it is in the
    first; in an hour that they leave out it is no time.

    Attributes:
        user: name of the field with the person's identifier; "" for none: whose an event is is not read.
        item: name of the field with the item; "" for none. Several names, as in a line of CSV: an item is what all of
            them say together.
        time: name of the field with the time.
        value: name of the field with a number that an event has beside its item; "" for none.
        whole: whether that is rounded to a whole number of `value_unit`, of two as near to the even one.
        optional_value: whether an event without a number counts, with 0.
        value_unit: what a whole number of the value stands for, such as 0.01 for cents of euros.
        time_unit: unit of plain numbers that stand for times: s, ms, us or ns.
        time_format: form of times that are text, as `strptime` reads it, or several with `|` between; ISO 8601 if None.
        time_zone: IANA zone of times that do not say how far they are from UTC.
        decimal: what stands before decimals in text, a point or a comma. The other one, a space or an apostrophe may
            then stand between thousands; without it there is a point, and nothing between thousands.
        null: texts that stand for no value, beside the empty one.
        trim: whether white space around text is left out.
        normalize, fold_case: whether letters are composed, and items the same in large and small ones; see `Spelling`.
        encoding: of CSV and JSON lines.
        delimiter: what separates the fields of CSV, one character; without it, the line with the names shows it.
        quote: `double` for quotes around fields of CSV, or `none` where quotes are text.
        where: condition that an event must meet to count, on any fields of the file; see `Filter`.
        max_item_bytes: longest user and item that is accepted, in bytes of UTF-8.

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
    max_item_bytes: int = 1 << 14

    def __post_init__(self) -> None:
        for option in ("user", "item", "time", "value"):
            field = getattr(self, option)
            if not isinstance(field, str):
                raise TypeError(f"{option} must be a field name, got {type(field).__name__}")
            if not field and option == "time":
                raise ValueError("time must not be empty")
        named = [name for name in (self.user, *self.items, self.time, self.value) if name]
        if len(set(named)) < len(named):
            raise ValueError(f"user, item, time and value must be different fields, got {', '.join(named)}")
        if self.time_unit is not None:
            one_of("time_unit", self.time_unit, TIME_UNITS)
        integer("max_item_bytes", self.max_item_bytes, minimum=1)
        positive("value_unit", self.value_unit)
        if self.decimal is not None:
            one_of("decimal", self.decimal, (".", ","))
        if self.delimiter is not None:
            _check_delimiter(self.delimiter)
        one_of("quote", self.quote, QUOTES)
        encoding_of(self.encoding)
        self.filtered()
        self._check_times()

    def _check_times(self) -> None:
        """Check what is said of times."""
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

    @property
    def times(self) -> TimeForm:
        """How times are written."""
        return TimeForm(unit=self.time_unit, form=self.time_format, zone=self.time_zone)

    @property
    def text(self) -> TextForm:
        """How files of text are written."""
        delimiter = None if self.delimiter is None else self.delimiter.encode()
        return TextForm(
            encoding=encoding_of(self.encoding), delimiter=delimiter, names=self.names(), quote=self.quote == QUOTES[0]
        )

    @property
    def spelling(self) -> Spelling:
        """How texts are read."""
        return Spelling(null=self.null, trim=self.trim, normalize=self.normalize, fold_case=self.fold_case)

    @property
    def longest(self) -> int:
        """The bytes that a user or an item has at most."""
        return min(self.max_item_bytes, LONGEST_TEXT)

    @property
    def items(self) -> tuple[str, ...]:
        """The names of the fields with the item."""
        return column_names(self.item)

    @property
    def several(self) -> tuple[str, ...]:
        """The names of the fields with the item, if there are several."""
        return self.items if len(self.items) > 1 else ()

    def names(self) -> tuple[str, ...]:
        """Return the fields to be read from a file."""
        return tuple(dict.fromkeys([*chain.from_iterable(self.contents().values()), *self.filtered()]))

    def filtered(self) -> dict[str, str | None]:
        """Return the fields that the condition reads, and what it reads them as."""
        return {} if self.where is None else _kinds(self.where)

    def contents(self) -> dict[str, tuple[str, ...]]:
        """Return the fields to be read, by what they contain: several for an item of several columns."""
        fields = {"user": (self.user,), "item": self.items, "time": (self.time,), "value": (self.value,)}
        return {content: names for content, names in fields.items() if any(names)}

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields and that their types can be used.

        Args:
            schema: the types of the file's fields, as its producer states them.
            source: the file's name, for messages.

        Raises:
            ValueError: a field is missing; the message names the option and the fields that exist.
            TypeError: a field has a type that cannot be used.
        """
        options = {name: content for content, names in self.contents().items() for name in names}
        if NAMES_MAY_BE_DATA.encode() in (schema.metadata or {}) and not set(schema.names) & set(options):
            names = ", ".join(options)
            rule = f"must be a header with the fields {names} (or those named by --user and so on)"
            raise ValueError(f"the first line of {source} {rule}; {_found(schema.names, options)}")
        for name, option in options.items():
            _check_name(name, f"--{option}", schema, source)
            kind = schema.field(name).type
            if option in ("time", "value"):
                self._check_number(name, option, kind, source)
            elif not is_known_as_text(kind):
                raise TypeError(f"field `{name}` of {source} must be text or an integer, got {kind}")
        for name, read in self.filtered().items():
            _check_name(name, "--where", schema, source)
            _check_kind(name, read, schema.field(name).type, source)

    def _check_number(self, name: str, option: str, kind: pa.DataType, source: str) -> None:
        """Check the type of the field with numbers or with times; text may have either."""
        plain = kind.value_type if types.is_dictionary(kind) else kind
        moment = option == "time" and (types.is_timestamp(plain) or types.is_date(plain))
        if not (_is_number(plain) or moment or is_text(plain) or types.is_null(plain)):
            rule = "a timestamp, ISO 8601 text or an epoch number" if option == "time" else "a number"
            raise TypeError(f"field `{name}` of {source} must be {rule}, got {kind}")
        if moment and getattr(plain, "tz", None) is None and self.time_zone is None:
            rule = "must be given, such as Europe/Berlin or UTC"
            raise ValueError(f"--time-zone {rule}: field `{name}` of {source} has local times, without a zone")
        if option == "time" and _is_number(plain) and self.time_unit is None:
            units = ", ".join(TIME_UNITS)
            raise ValueError(f"--time-unit must be one of {units}: field `{name}` of {source} has plain numbers")


@dataclass(frozen=True)
class SharedFields:
    """What several questions read of the same records, once.

    All of them must have the same field with the time, and the same form of files, times, texts and numbers.

    Attributes:
        questions: names of questions, distinct, and what each reads.
    """

    questions: tuple[tuple[str, FieldMapping], ...]

    def __post_init__(self) -> None:
        (name, first), *others = self.questions
        for other, fields in others:
            for what in ("time", *FORMS):
                if getattr(fields, what) != getattr(first, what):
                    raise ValueError(f"{other}: {what} must be as in {name}, for the records are read once")

    @property
    def first(self) -> FieldMapping:
        """The reading that says what is the same in all of them."""
        return self.questions[0][1]

    @property
    def time(self) -> str:
        """The field with the time."""
        return self.first.time

    @property
    def times(self) -> TimeForm:
        """How times are written."""
        return self.first.times

    @property
    def delimiter(self) -> str | None:
        """What separates the fields of CSV."""
        return self.first.delimiter

    @property
    def text(self) -> TextForm:
        """How files of text are written."""
        return replace(self.first.text, names=self.names())

    def names(self) -> tuple[str, ...]:
        """Return the fields to be read from a file."""
        return tuple(dict.fromkeys(name for _, fields in self.questions for name in fields.names()))

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields of all questions; see `FieldMapping.check`.

        Raises:
            ValueError, TypeError: the message begins with the name of the question.
        """
        for name, fields in self.questions:
            try:
                fields.check(schema, source)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{name}: {error}") from None


FORMS = (
    *("time_unit", "time_format", "time_zone", "decimal", "null", "trim", "normalize", "fold_case"),
    *("encoding", "delimiter", "quote", "max_item_bytes"),
)
"""What says how records are written, and so must be the same in all questions about them."""

AnyFields = FieldMapping | SharedFields


@lru_cache(maxsize=16)
def _kinds(where: str) -> dict[str, str | None]:
    """Return the fields that a condition reads, and what it reads them as."""
    return Filter(where).kinds


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _check_name(name: str, option: str, schema: pa.Schema, source: str) -> None:
    """Check that a file has a field, once."""
    count = schema.names.count(name)
    if count == 0:
        names = schema.names
        if NAMES_MAY_BE_DATA.encode() in (schema.metadata or {}):  # of a line that may go on with an event
            names = [each for each in names if len(each) <= LONGEST_NAME and not re.search(r"\d", each)]
        others = len(schema.names) - len(names)
        existing = ", ".join(sorted(names) + [f"{others} with digits or of many letters"] * (others > 0)) or "none"
        near = difflib.get_close_matches(name, names, 1)
        guess = f"; did you mean `{near[0]}`?" if near else ""
        raise ValueError(f"{option} must name a field of {source}: no `{name}` there, only: {existing}{guess}")
    if count > 1:
        raise ValueError(f"{option} must name one field: {source} has {count} called `{name}`")


def _check_kind(name: str, read: str | None, kind: pa.DataType, source: str) -> None:
    """Check the type of a field that the condition reads; text may be anything."""
    if is_text(kind) or types.is_null(kind):
        return
    kind = kind.value_type if types.is_dictionary(kind) else kind
    number = _is_number(kind)
    fits = {NUMBER: number, TEXT: is_known_as_text(kind), TRUTH: types.is_boolean(kind)}
    present = number or types.is_timestamp(kind) or is_known_as_text(kind)
    if not (present if read is None else fits[read]):
        raise TypeError(f"--where reads field `{name}` of {source} as {read or 'a plain value'}, got {kind}")


def _found(names: Sequence[str], options: Mapping[str, str]) -> str:
    """Say how many fields a first line has, and what they are called if they are names."""
    text = f"it has {len(names):,} field{'s' * (len(names) != 1)}"
    near = {option: difflib.get_close_matches(name, names, 1) for name, option in options.items()}
    guesses = [f"--{option} {found[0]}" for option, found in near.items() if found and _listed(names, options)]
    guess = f"; did you mean {' '.join(guesses)}?" if guesses else ""
    return f"{text} of other names{_listed(names, options)}{guess}"


def _listed(names: Sequence[str], options: Mapping[str, str]) -> str:
    """Return names in brackets; nothing if they may be data of a file without a header.

    An event has a time, and every time has digits. So a line without a digit is no event, and may be quoted, unless it
    is only a part of one: it has fewer fields than are asked for.
    """
    plain = [name.strip() for name in names]
    whole = len(options) <= len(plain) <= MOST_NAMES
    if not whole or any(len(name) > LONGEST_NAME or re.search(r"\d", name) for name in plain):
        return ""
    return f" ({', '.join(plain)})"


def _check_delimiter(text: str) -> None:
    """Check what separates fields."""
    plain = len(text) == 1 and text.isascii() and not text.isalnum() and text not in '"\r\n \0'
    if not plain:
        raise ValueError(f"delimiter must be one character that is no letter, digit, quote or space, got {text!r}")
