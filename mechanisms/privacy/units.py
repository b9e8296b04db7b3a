"""PrivacyUnit: what a guarantee protects, and what that means for other units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from privstream.mechanisms import checks

SECOND = 1_000_000
UNITS = (("day", 86_400 * SECOND), ("hour", 3_600 * SECOND), ("minute", 60 * SECOND))


def in_words(micros: int) -> str:
    """Return a duration in the largest unit of which it is a whole number, or in seconds.

    >>> in_words(30 * 86_400 * SECOND), in_words(90 * 60 * SECOND), in_words(2_500_000)
    ('30 days', '90 minutes', '2.5 seconds')
    """
    unit, length = next((one for one in UNITS if micros >= one[1] and micros % one[1] == 0), ("second", SECOND))
    return f"{micros / length:,.12g} {unit}{'s' * (micros != length)}"


PORTIONS = ("person", "event")
CHANGES = ("query", "utility")
LONGEST = 1 << 62  # microseconds, of a window


@dataclass(frozen=True, kw_only=True)
class PrivacyUnit:
    """What is protected: a portion of the data, or any change of the data that moves little.

    "person": all that one person sends, in the whole run or in one window. "event": one event (a record, or an update
    of a point), whenever it occurs. "query" or "utility": a change of the data that moves none of these by more than
    `bound`. Windows of a `calendar`, in words, are made of whole ones of the `window` and `origin` that are given.

    Example:
        >>> print(PrivacyUnit(what="person", window=3_600_000_000))
        one person in one window of 1 hour
        >>> PERSON.changes(EVENT)
        2
    """

    what: str
    window: int | None = None  # microseconds
    origin: int = 0  # start of a window in microseconds since 1970 UTC, in [0, window)
    calendar: str = ""
    bound: float = 1.0
    same_direction: bool = False  # whether a change moves all queries or utilities in the same direction

    def __post_init__(self) -> None:
        checks.one_of("what", self.what, PORTIONS + CHANGES)
        checks.positive("bound", self.bound)
        if self.window is not None:
            checks.integer("window", self.window, minimum=1, maximum=LONGEST)
            if self.what != "person":
                raise ValueError(f"window must not be given for a unit of {self.what}")
        if not 0 <= checks.integer("origin", self.origin, minimum=0) < (self.window or 1):
            raise ValueError(f"origin must be >= 0 and less than window, got {self.origin}")
        if not isinstance(self.calendar, str) or (self.calendar and self.window is None):
            raise ValueError("calendar must be a text, given with the window of which its windows are made")
        checks.boolean("same_direction", self.same_direction)
        if self.what in PORTIONS and (self.bound != 1 or self.same_direction):
            raise ValueError(f"bound and same_direction must not be given for a unit of {self.what}")

    def __str__(self) -> str:
        """Return the unit in words, as in "differential privacy for one person over the whole run"."""
        if self.what in CHANGES:
            direction = ", and moves all of them in the same direction" if self.same_direction else ""
            return f"one change of the data that moves no {self.what} by more than {self.bound:g}{direction}"
        if self.calendar:
            return f"one person in one window of {self.calendar}"
        if self.window is not None:
            start = str(datetime(1970, 1, 1) + timedelta(microseconds=self.origin)).removesuffix(" 00:00:00")
            since = f", counted from {start} UTC" if self.origin else ""
            return f"one person in one window of {in_words(self.window)}{since}"
        return "one event" if self.what == "event" else f"one {self.what} over the whole run"

    def to_dict(self) -> dict[str, Any]:
        """Return the unit as plain values: the fields that are not as usual, and `what`."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in vars(self).items() if value != usual[name]}

    @classmethod
    def from_dict(cls, record: Any) -> PrivacyUnit:
        """Return the unit that `to_dict` has written.

        Raises:
            ValueError, TypeError: it was written otherwise; the message names the field.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(record, Mapping) or "what" not in record or not set(record) <= set(names):
            raise ValueError(f"privacy_unit must be a record of {', '.join(names)}")
        return cls(**record)

    def changes(self, other: PrivacyUnit) -> int | None:
        """Return how many times this unit must come or go to make another one do; None if no number is proved to do.

        Proof: docs/proofs/units.md, Theorem 1.
        """
        if self == other:
            return 1
        if self.what in CHANGES or other.what in CHANGES:  # does it cover each change that is the other unit?
            alike = self.what == other.what and other.bound <= self.bound
            return 1 if alike and (other.same_direction or not self.same_direction) else None
        return 2 if self._contains(other) else None  # what else the person sends goes, and comes back

    def _contains(self, other: PrivacyUnit) -> bool:
        """Return whether the other unit is always a part of what one person sends, in one window if this has them."""
        if self.what != "person" or self.window is None or other.what != "person":
            return self.what == "person"
        if other.window is None or other.calendar:  # the same calendar is the same unit
            return False
        return self.window % other.window == 0 and (self.origin - other.origin) % other.window == 0


PERSON = PrivacyUnit(what="person")
EVENT = PrivacyUnit(what="event")
