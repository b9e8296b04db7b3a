"""Which fields of events a transform reads, the error where a field breaks a rule, and the letter about a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from privstream.transforms.counters import counter

TEXT, NUMBER, WHOLE, UNREAD = "text", "number", "whole", "unread"


@dataclass(frozen=True, kw_only=True)
class EventFields:
    """What a transform reads of an event; fields that it does not read may be missing, or contain anything.

    Attributes:
        user: TEXT for a person, NUMBER for a point, or UNREAD.
        item: whether the item is read.
        lists: whether an item may be a list of texts.
        timed: whether an event needs a time; if not, one without a time counts as of 1970.
        value: NUMBER for a finite number that an event has beside its item, WHOLE for a whole one, or UNREAD.
    """

    user: str = TEXT
    item: bool = True
    lists: bool = False
    timed: bool = True
    value: str = UNREAD

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that columns must have."""
        read = {"user": self.user != UNREAD, "item": self.item, "time": self.timed}
        read["value"] = self.value != UNREAD
        return tuple(name for name, needed in read.items() if needed)

    @property
    def required_of_rows(self) -> tuple[str, ...]:
        """The fields that rows must have: the timestamp of one without a time is its time."""
        return tuple(name for name in self.required if name != "time")

    def schema(self, *, lists: bool = False) -> pa.Schema:
        """Return the columns of batches that are checked; with `lists`, of those whose items are lists."""
        kinds = {
            "user": pa.int64() if self.user == NUMBER else pa.string(),
            "item": pa.list_(pa.string()) if lists else pa.string(),
            "time": pa.int64(),  # microseconds since 1970
            "value": pa.float64(),
        }
        left_out = {"user": self.user == UNREAD, "item": not self.item, "value": self.value == UNREAD}
        return pa.schema([(name, kind) for name, kind in kinds.items() if not left_out.get(name)])


MISSING, TYPE, ENCODING, LONG, FINITE, RANGE = "missing", "type", "encoding", "long", "finite", "range"


class BrokenRuleError(ValueError):
    """Says which rule a record breaks, and never what is in the record.

    Attributes:
        code: the field and the kind of rule, such as `user_missing`: the name of a counter ends with it.
    """

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"


def broken_by(error: Exception, what: str) -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when it was read.

    Its values may be of any class, and what the code of such a class raises must not end the run.
    """
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError(what, TYPE, f"{what} must hold values that can be read")


def missing(name: str) -> BrokenRuleError:
    """Return the rule that a field is there."""
    return BrokenRuleError(name, MISSING, f"{name} must not be null")


DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""


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


LONGEST_RECORD = 10_000
"""Characters of a record that its dead letter quotes at most."""


def broken_letter(
    rule: BrokenRuleError, record: str, source: str, *, counted_as: str = "events", number: int = 1
) -> DeadLetter:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    for name in (f"{counted_as}_malformed", f"{counted_as}_malformed_{rule.code}"):
        counter(name).inc(number)
    return DeadLetter(str(rule), source, "", record[:LONGEST_RECORD])
