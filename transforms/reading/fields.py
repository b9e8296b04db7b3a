"""Which fields of events a transform reads, the rules that a field may break, and the letter about a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.counters import counter

TEXT, NUMBER, WHOLE, UNREAD = "text", "number", "whole", "unread"


@dataclass(frozen=True, kw_only=True)
class EventFields:
    """What a transform reads of an event; fields that it does not read may be missing, or contain anything.

    Attributes:
        user: TEXT for a person, NUMBER for a point, or UNREAD.
        item: whether the item is read.
        timed: whether an event needs a time; if not, one without a time counts as of 1970.
        value: NUMBER for a finite number that an event has beside its item, WHOLE for a whole one, or UNREAD.
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
        """Return the columns of batches that are checked."""
        kinds = {
            "user": pa.int64() if self.user == NUMBER else pa.string(),
            "item": pa.string(),
            "time": pa.int64(),  # microseconds since 1970
            "value": pa.float64(),
        }
        return pa.schema([(name, kind) for name, kind in kinds.items() if name == "time" or name in self.required])


MISSING, TYPE, ENCODING, LONG, FINITE, RANGE = "missing", "type", "encoding", "long", "finite", "range"
VALUE, WHOLE_NUMBER = "value", "whole"
LONGEST_TEXT = 1 << 20
"""Bytes of UTF-8 that a user or an item has at most."""


class BrokenRuleError(ValueError):
    """Says which rule a record breaks, and never what is in the record.

    Attributes:
        code: the field and the kind of rule, such as `user_missing`: the name of a counter ends with it.
    """

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"


def broken_by(error: Exception, what: str = "event") -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when it was read.

    Its values may be of any class, and what the code of such a class raises must not end the run.
    """
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError(what, TYPE, f"{what} must hold values that can be read")


def missing(name: str) -> BrokenRuleError:
    """Return the rule that a field is there."""
    return BrokenRuleError(name, MISSING, f"{name} must not be null")


def empty(name: str) -> BrokenRuleError:
    """Return the rule that a text is not empty."""
    return BrokenRuleError(name, MISSING, f"{name} must not be empty")


def wrong_type(name: str, kind: object) -> BrokenRuleError:
    """Return the rule that a field is text."""
    return BrokenRuleError(name, TYPE, f"{name} must be text or an integer, got {kind}")


def no_unicode(name: str) -> BrokenRuleError:
    """Return the rule that text can be written in UTF-8."""
    return BrokenRuleError(name, ENCODING, f"{name} must be valid Unicode")


def too_long(name: str, longest: int = LONGEST_TEXT) -> BrokenRuleError:
    """Return the rule that a text is not too long."""
    return BrokenRuleError(name, LONG, f"{name} must be at most {longest:,} bytes of UTF-8")


def no_point(name: str) -> BrokenRuleError:
    """Return the rule that a point is a number."""
    return BrokenRuleError("point", TYPE, f"{name}, the point, must be a whole number between -2**60 and 2**60")


def no_value(kind: object) -> BrokenRuleError:
    """Return the rule that a value is a number."""
    return BrokenRuleError(VALUE, TYPE, f"value must be a number, got {kind}")


def not_finite(name: str) -> BrokenRuleError:
    """Return the rule that a number is finite."""
    return BrokenRuleError(name, FINITE, f"{name} must be finite")


def not_whole() -> BrokenRuleError:
    """Return the rule that a value is a whole number."""
    return BrokenRuleError(VALUE, WHOLE_NUMBER, "value must be a whole number")


Marks = list[tuple[np.ndarray, BrokenRuleError]]
"""Rows of a column that break a rule, and which one."""


def marked(*rules: tuple[np.ndarray, Callable[[], BrokenRuleError]]) -> Marks:
    """Return the rules that some row breaks; most columns break none, and make none."""
    return [(mask, rule()) for mask, rule in rules if mask.any()]


def null_rows(column: pa.Array) -> np.ndarray:
    """Tell which rows of a column are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def spread(name: str, column: pa.DictionaryArray, marks: Marks) -> tuple[np.ndarray, Marks]:
    """Return the place of each row in the dictionary, behind its end for a null, and the rules that rows break."""
    rows = pc.fill_null(column.indices.cast(pa.int64()), len(column.dictionary)).to_numpy()
    spread_out = [(np.append(mask, False)[rows], rule) for mask, rule in marks]
    return rows, [*marked((null_rows(column.indices), partial(missing, name))), *spread_out]


DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""

LONGEST_RECORD = 10_000
"""Characters of a record that its dead letter quotes at most."""


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


def broken_letter(
    rule: BrokenRuleError, record: str, source: str, *, counted_as: str = "events", number: int = 1
) -> DeadLetter:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    for name in (f"{counted_as}_malformed", f"{counted_as}_malformed_{rule.code}"):
        counter(name).inc(number)
    return DeadLetter(str(rule), source, "", record[:LONGEST_RECORD])
