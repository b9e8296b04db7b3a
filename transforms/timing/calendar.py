"""Windows of whole days, weeks, months or years of a calendar in a time zone: their starts are public."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from privstream.mechanisms.privacy.units import SECOND

DAY = 86_400 * SECOND
UNITS = {"day": DAY, "week": 7 * DAY, "month": 2_629_746 * SECOND, "year": 31_556_952 * SECOND}
"""How long each is on average, in microseconds."""

MONTHS = {"month": 1, "year": 12}
EPOCH = date(1970, 1, 1)
LAST_YEAR = 2200
SURE_DAY = 28
"""Every month has it."""

FORM = re.compile(r"(\d{1,4})(day|week|month|year)s?(?: (\S+))?")
RULE = (
    "must be a number of seconds, or a text of whole days, weeks, months or years of a calendar, such as 1month, "
    "2weeks or 1day, with a time zone behind it if that is not UTC, such as 1month Europe/Berlin"
)


class Calendar(NamedTuple):
    """So many units of a calendar in a zone.

    Attributes:
        number: of units, at least 1.
        unit: of `UNITS`.
        zone: IANA time zone.
    """

    number: int
    unit: str
    zone: str

    @classmethod
    def parse(cls, text: str, name: str = "window", zone: str = "UTC") -> Calendar:
        """Return what a text means that is the argument `name`; `zone` is that of a text which names none.

        >>> str(Calendar.parse("2weeks")), str(Calendar.parse("1month Europe/Berlin"))
        ('2 weeks in UTC', '1 month in Europe/Berlin')
        """
        found = FORM.fullmatch(text)
        if found is None or not int(found[1]):
            raise ValueError(f"{name} {RULE}, got {text!r}")
        made = cls(int(found[1]), found[2], found[3] or zone)
        read_zone(made.zone)
        return made

    def __str__(self) -> str:
        return f"{self.number:,} {self.unit}{'s' * (self.number != 1)} in {self.zone}"

    @property
    def length(self) -> int:
        """How long it is on average, in microseconds."""
        return self.number * UNITS[self.unit]

    def times(self, other: Calendar) -> int | None:
        """Return how many of the other's windows, one after the other, are one of these; None if no number is.

        >>> [Calendar.parse("1year").times(Calendar.parse(other)) for other in ("3months", "5months", "1day")]
        [4, None, None]
        """
        number, rest = divmod(self.length, other.length)
        alike = (self.unit in MONTHS, self.zone) == (other.unit in MONTHS, other.zone)
        return number if alike and not rest else None

    def since(self, start: int) -> str:
        """Return, in words, all windows that follow each other so that one of them begins at `start`.

        The words are the same for whichever of these windows it is.

        >>> Calendar.parse("1month").since(1_768_435_200_000_000)  # 15 January 2026
        '1 month in UTC, counted from 1970-01-15'
        """
        day = self._day(start)
        if self.unit in MONTHS:
            months = (12 * (day.year - EPOCH.year) + day.month - 1) % (self.number * MONTHS[self.unit])
            first = date(EPOCH.year + months // 12, months % 12 + 1, day.day)
        else:
            first = EPOCH + (day - EPOCH) % timedelta(microseconds=self.length)
        return f"{self}, counted from {first}"

    def _day(self, moment: int) -> date:
        return datetime.fromtimestamp(moment / SECOND, UTC).astimezone(read_zone(self.zone)).date()

    def starts(self, start: int, until: int | None) -> np.ndarray:
        """Return the starts of all windows from one on, in microseconds, and the end of the last one.

        The last one ends at `until`, or in the year 2200.

        Raises:
            ValueError: no window of a calendar starts at `start`, or none ends at `until`.
        """
        starts = _starts(self, start)
        if until is None:
            return starts
        last = int(np.searchsorted(starts, until))
        if last == 0:
            raise ValueError("end must leave room for one window after start")
        if last == len(starts) or starts[last] != until:
            near = " or ".join(iso(starts[place]) for place in (last - 1, last) if 0 < place < len(starts))
            raise ValueError(f"end must be where a window of {self} ends, such as {near}, got {iso(until)}")
        return starts[: last + 1]


@lru_cache(maxsize=64)
def _starts(calendar: Calendar, start: int) -> np.ndarray:
    """Return the starts of all windows from one on until the year 2200, read-only."""
    zone = read_zone(calendar.zone)
    first = calendar._day(start)

    def moment(day: date) -> int:
        """Return when a day begins; where clocks leave out midnight, that is the moment at which they do."""
        return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * SECOND

    if moment(first) != start:
        raise ValueError(
            f"start must be where a day begins in {calendar.zone}, such as {iso(moment(first))}, got {iso(start)}"
        )
    if calendar.unit in MONTHS and first.day > SURE_DAY:
        raise ValueError(f"start must be one of the first {SURE_DAY} days of a month, got day {first.day}")
    days = [first]
    while days[-1].year < LAST_YEAR:
        days.append(_after(days[-1], calendar))
    found = np.unique([moment(day) for day in days]).astype(np.int64)  # a zone may leave out a day
    found.flags.writeable = False
    return found


def _after(day: date, calendar: Calendar) -> date:
    if calendar.unit not in MONTHS:
        return day + timedelta(days=calendar.number * (UNITS[calendar.unit] // DAY))
    years, month = divmod(day.month - 1 + calendar.number * MONTHS[calendar.unit], 12)
    return day.replace(year=day.year + years, month=month + 1)


def read_zone(name: str) -> ZoneInfo:
    """Return a zone of the IANA database."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"time_zone must be an IANA time zone such as Europe/Berlin or UTC, got {name!r}") from None


def iso(micros: int) -> str:
    """Write a moment, in microseconds since 1970 UTC, as people do."""
    return f"{(datetime(1970, 1, 1) + timedelta(microseconds=int(micros))).isoformat()}Z"
