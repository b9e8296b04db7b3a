"""Which fields of a file are the person, the item, the time, the stream and the value."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from privstream.mechanisms.checks import integer, one_of
from privstream.pipelines.locations import TIME_UNITS
from pyarrow import types

DEFAULT_STREAM = "stream"
"""The field with the stream where streams are named and the field is not."""

DEFAULT_VALUE = "value"
"""The field with the number where numbers are asked for and the field is not named."""

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}

MOST_NAMES, LONGEST_NAME = 40, 40
"""So many names of a header an error lists, if none of them is longer."""

NAMES_MAY_BE_DATA = "names_may_be_data"
"""Key in the metadata of a schema whose names were read from a line that may be an event: a CSV without a header."""


@dataclass(frozen=True, kw_only=True)
class FieldMapping:
    """Names and rules by which a file's fields become events.

    Users, items and streams are text or integers (an integer is read as its decimal text, so 5 and "5" are one
    person); text is taken as it stands, without Unicode normalisation. Times are Arrow or Avro timestamps, ISO 8601
    text, or epoch numbers in a stated unit; a time without an offset is taken as UTC.

    Attributes:
        user: name of the field with the person's identifier; "" for none: whose an event is is not read.
        item: name of the field with the item; "" for none.
        time: name of the field with the time.
        stream: name of the field with the stream; "" for none.
        value: name of the field with a number that an event has beside its item; "" for none.
        whole: whether that must be a whole number.
        time_unit: unit of plain numbers that stand for times: s, ms, us or ns.
        max_item_bytes: longest user, item and stream that is accepted, in bytes of UTF-8.

    Raises:
        TypeError, ValueError: by the checks' wording, naming the option.
    """

    user: str = "user"
    item: str = "item"
    time: str = "time"
    stream: str = ""
    value: str = ""
    whole: bool = False
    time_unit: str | None = None
    max_item_bytes: int = 1 << 14

    def __post_init__(self) -> None:
        for option in ("user", "item", "time", "stream", "value"):
            field = getattr(self, option)
            if not isinstance(field, str):
                raise TypeError(f"{option}_field must be a field name, got {type(field).__name__}")
            if not field and option == "time":
                raise ValueError("time_field must not be empty")
        named = [name for name in (self.user, self.item, self.time, self.stream, self.value) if name]
        if len(set(named)) < len(named):
            raise ValueError(f"user, item, time, stream and value must be different fields, got {', '.join(named)}")
        if self.time_unit is not None:
            one_of("time_unit", self.time_unit, TIME_UNITS)
        integer("max_item_bytes", self.max_item_bytes, minimum=1)

    def names(self) -> tuple[str, ...]:
        """Return the fields to be read from a file."""
        return tuple(self.contents().values())

    def contents(self) -> dict[str, str]:
        """Return the fields to be read, by what they contain."""
        fields = {"user": self.user, "item": self.item, "time": self.time, "stream": self.stream, "value": self.value}
        return {content: name for content, name in fields.items() if name}

    def check(self, schema: pa.Schema, source: str) -> None:
        """Check that a file has the fields and that their types can be used.

        Args:
            schema: the types of the file's fields, as its producer states them.
            source: the file's name, for messages.

        Raises:
            ValueError: a field is missing; the message names the option and the fields that exist.
            TypeError: a field has a type that cannot be used.
        """
        options = {name: content for content, name in self.contents().items()}
        if NAMES_MAY_BE_DATA.encode() in (schema.metadata or {}) and not set(schema.names) & set(options):
            names = ", ".join(options)
            rule = f"must be a header with the fields {names} (or those named by --user_field and so on)"
            raise ValueError(f"the first line of {source} {rule}, separated by commas; {_found(schema.names, options)}")
        for name, option in options.items():
            count = schema.names.count(name)
            if count == 0:
                existing = ", ".join(sorted(schema.names)) or "none"
                near = difflib.get_close_matches(name, schema.names, 1)
                guess = f"; did you mean `{near[0]}`?" if near else ""
                rule = f"must name a field of {source}: no `{name}` there, only: {existing}{guess}"
                raise ValueError(f"--{option}_field {rule}")
            if count > 1:
                raise ValueError(f"--{option}_field must name one field: {source} has {count} called `{name}`")
            kind = schema.field(name).type
            if option == "time":
                self._check_time(kind, source)
            elif option == "value":
                self._check_value(kind, source)
            elif not is_text(kind) and not types.is_integer(kind) and not types.is_null(kind):
                raise TypeError(f"field `{name}` of {source} must be text or an integer, got {kind}")

    def _check_value(self, kind: pa.DataType, source: str) -> None:
        """Check the type of the field with numbers; text may have them."""
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        if not number and not is_text(kind) and not types.is_null(kind):
            raise TypeError(f"field `{self.value}` of {source} must be a number, got {kind}")

    def _check_time(self, kind: pa.DataType, source: str) -> None:
        """Check the type of the time field."""
        number = types.is_integer(kind) or types.is_floating(kind)
        if not number and not is_text(kind) and not types.is_timestamp(kind) and not types.is_null(kind):
            rule = "must be a timestamp, ISO 8601 text or an epoch number"
            raise TypeError(f"field `{self.time}` of {source} {rule}, got {kind}")
        if number and self.time_unit is None:
            units = ", ".join(TIME_UNITS)
            raise ValueError(f"--time_unit must be one of {units}: field `{self.time}` of {source} has plain numbers")


def _found(names: Sequence[str], options: Mapping[str, str]) -> str:
    """Say how many fields a first line has, what else may separate them, and what they are called if they are names."""
    text = f"it has {len(names):,} field{'s' * (len(names) != 1)}"
    for separator, word in SEPARATORS.items():
        others = ",".join(names).replace(separator, ",").split(",")
        if len(others) > len(names):
            found = f"{text}, but {len(others):,} separated by {word}{_listed(others, options)}"
            return f"{found}: write the file with commas"
    near = {option: difflib.get_close_matches(name, names, 1) for name, option in options.items()}
    guesses = [f"--{option}_field {found[0]}" for option, found in near.items() if found and _listed(names, options)]
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


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column's values are text, or bytes that may be UTF-8."""
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
        types.is_binary_view,
        types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)
