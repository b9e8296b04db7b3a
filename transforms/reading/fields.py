"""What is read of events, the rules that a field may break, and what becomes of records that break one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

TEXT, NUMBER, WHOLE, OPTIONAL, UNREAD = "text", "number", "whole", "optional", "unread"


@dataclass(frozen=True, kw_only=True)
class EventFields:
    """What a transform reads of an event; fields that it does not read may be missing, or contain anything.

    Attributes:
        user: TEXT for a person, NUMBER for a point, or UNREAD.
        item: whether the item is read.
        timed: whether an event needs a time; if not, one without a time counts as of 1970.
        value: NUMBER for a finite number that an event has beside its item, WHOLE for a whole one, OPTIONAL for one
            that may be missing, which is NaN then, or UNREAD.
    """

    user: str = TEXT
    item: bool = True
    timed: bool = True
    value: str = UNREAD

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that columns must have."""
        read = {"user": self.user != UNREAD, "item": self.item, "time": self.timed, "value": self.value != UNREAD}
        return tuple(name for name, needed in read.items() if needed)

    def schema(self) -> pa.Schema:
        """Return the columns of batches that are checked; times are microseconds since 1970."""
        user = pa.int64() if self.user == NUMBER else pa.string()
        kinds = {"user": user, "item": pa.string(), "time": pa.int64(), "value": pa.float64()}
        return pa.schema([(name, kind) for name, kind in kinds.items() if name == "time" or name in self.required])


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
    """Says which rule a record breaks, and never what is in the record.

    Attributes:
        code: the field and the kind of rule, such as `user_missing`: the name of a counter ends with it.
    """

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"


def broken(name: str, rule: str, given: object = "") -> BrokenRuleError:
    """Return one of `RULES` that a field breaks; of a type the name is given, without those of fields within it."""
    kind, reason = RULES[rule]
    if isinstance(given, pa.DataType):
        given = "values of another kind" if pa.types.is_nested(given) else str(given).partition("<")[0]
    return BrokenRuleError("point" if rule == "point" else name.partition(" ")[0], kind, reason.format(name, given))


def broken_by(error: Exception) -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when it was read.

    Its values may be of any class, and what the code of such a class raises must not end the run.
    """
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError("event", TYPE, "event must hold values that can be read")


DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""

LONGEST_RECORD = 1 << 12
"""Characters of a record that its dead letter quotes at most; its position leads to the rest."""


class DeadLetter(NamedTuple):
    """A record that could not be used, and why.

    *Privacy*: `record` contains data of a person. Dead letters belong in a file that is guarded like the input itself;
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
