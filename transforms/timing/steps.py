"""Windows of one length, or of a calendar, as numbered steps: which step an event is in, when a step is decided."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict
from zoneinfo import ZoneInfo

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit, in_words

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

Seconds = float
"""A duration in seconds."""

Length = float | str
"""Of a window: seconds, or a number of days, weeks, months or years of a calendar: see `Calendar`."""

Moment = float
"""A point in time: seconds since 1970 UTC."""

Span = str | float
"""What a count is about: a "window", all since the "start", or a number of seconds or of units of a calendar."""

MICROS = 1_000_000
MILLISECOND = 1_000  # the finest step of event time on every runner
HOUR, DAY = 3_600 * MICROS, 86_400 * MICROS
LAST_MOMENT = 253_402_300_799  # of a calendar, in seconds since 1970
MOST_WINDOWS = 1 << 20
"""Of a run, or of a budget period."""

STAGES = 10  # more than the dataflow has
END_OF_TIME = 9_223_371_950_454_774_999  # the last moment at which a timer fires: that of Beam's GlobalWindow

UNITS = {"day": DAY, "week": 7 * DAY, "month": 2_629_746 * MICROS, "year": 31_556_952 * MICROS}
"""How long units of a calendar are on average, in microseconds."""

MONTHS = {"month": 1, "year": 12}
EPOCH = date(1970, 1, 1)
LAST_YEAR = 2200
SURE_DAY = 28  # every month has it
FORM = re.compile(r"(\d{1,4})(day|week|month|year)s?(?: (\S+))?")
RULE = (
    "must be a number of seconds, or a text of whole days, weeks, months or years of a calendar, such as 1month, "
    "2weeks or 1day, with a time zone behind it if that is not UTC, such as 1month Europe/Berlin"
)


def timestamp(micros: int) -> Timestamp:
    """Return a moment as Beam has it."""
    from apache_beam.utils.timestamp import Timestamp  # noqa: PLC0415 - late: plans of windows need no Beam

    return Timestamp(micros=micros)


def iso(micros: int, zone: str = "UTC") -> str:
    """Write a moment, in microseconds since 1970 UTC, as people in a time zone do."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(micros))
    return moment.astimezone(read_zone(zone)).isoformat().replace("+00:00", "Z")


def to_micros(name: str, seconds: float, *, minimum: int = MILLISECOND) -> int:
    """Return a duration in microseconds; it must be a whole number of milliseconds."""
    micros = round(checks.real(name, seconds) * MICROS)
    if micros < minimum or micros % MILLISECOND:
        least = "> 0" if minimum else ">= 0"
        raise ValueError(f"{name} must be {least} and a whole number of milliseconds, got {seconds} seconds")
    return micros


def read_moment(name: str, given: object) -> int:
    """Return a point in time in microseconds; the error of a text or a date says how it becomes seconds since 1970."""
    if isinstance(given, str | date):
        kind = "text" if isinstance(given, str) else type(given).__name__
        raise TypeError(f"{name} must be a number of seconds since 1970, got {kind}: datetime.timestamp() gives it")
    if (seconds := checks.real(name, given)) > LAST_MOMENT:
        raise ValueError(f"{name} must be a number of seconds since 1970, before the year 10000, got {given}")
    return to_micros(name, seconds, minimum=0)


def read_zone(name: str) -> ZoneInfo:
    """Return a zone of the IANA database."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"time_zone must be an IANA time zone such as Europe/Berlin or UTC, got {name!r}") from None


class Calendar(NamedTuple):
    """So many days, weeks, months or years of a calendar in an IANA time zone."""

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
        return datetime.fromtimestamp(moment / MICROS, UTC).astimezone(read_zone(self.zone)).date()

    @lru_cache(maxsize=64)  # noqa: B019 - calendars are few, and values
    def starts(self, start: int) -> np.ndarray:
        """Return the starts of all windows from one on until the year 2200, in microseconds, read-only.

        Raises:
            ValueError: no window of a calendar starts at `start`.
        """
        zone, days = read_zone(self.zone), [self._day(start)]

        def moment(day: date) -> int:
            """Return when a day begins; where clocks leave out midnight, that is the moment at which they do."""
            return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * MICROS

        if (first := moment(days[0])) != start:
            near, given = iso(first, self.zone), iso(start, self.zone)
            raise ValueError(f"start must be where a day begins in {self.zone}, such as {near}, got {given}")
        if self.unit in MONTHS and days[0].day > SURE_DAY:
            raise ValueError(f"start must be one of the first {SURE_DAY} days of a month, got day {days[0].day}")
        while (day := days[-1]).year < LAST_YEAR:
            if self.unit in MONTHS:
                years, month = divmod(day.month - 1 + self.number * MONTHS[self.unit], 12)
                days.append(day.replace(year=day.year + years, month=month + 1))
            else:
                days.append(day + timedelta(microseconds=self.length))
        found = np.unique([moment(day) for day in days]).astype(np.int64)  # a zone may leave out a day
        found.flags.writeable = False
        return found

    def windows(self, start: int, until: int) -> int:
        """Return how many windows, at least one, are between two moments, at which one begins and one ends."""
        starts = self.starts(start)
        last = int(np.searchsorted(starts, until))
        if last == 0:
            raise ValueError("end must leave room for one window after start")
        if last == len(starts) or starts[last] != until:
            near = " or ".join(iso(starts[place], self.zone) for place in (last - 1, last) if 0 < place < len(starts))
            raise ValueError(f"end must be where a window of {self} ends, such as {near}, got {iso(until, self.zone)}")
        return last


class WindowOptions(TypedDict, total=False):
    """What every transform that watches windows takes besides its own arguments; types and defaults: `Steps.of`.

    Args:
        window: length in seconds, or text of a calendar from `start` on, such as "1month Europe/Berlin"; else in UTC.
        renew_every: length of a budget period, counted from `start`, in seconds or, with windows of a calendar, such as
            "1month". The guarantee is then for what one person does in one such period.
        allowed_lateness: seconds after its end during which a window still takes late events.
    """

    window: Required[Length]
    renew_every: Length | None
    allowed_lateness: Seconds


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Windows that follow each other, numbered: step s is the one that starts at origin + s * size.

    Attributes:
        size: length of a window in microseconds; of those of a calendar the mean length.
        origin: start of step 0 in microseconds since 1970 UTC; without a calendar in [0, size).
        first: number of the first step; with a calendar 0.
        end: number after the last step, or None.
        renewal: number of steps of a budget period, counted from the first step, or of the longest one of a calendar;
            None if there is one period.
        allowed_lateness: microseconds between the end of a window and its decision.
        calendar: of the windows, or None.
        renews: calendar of the budget periods, or None.
    """

    size: int
    origin: int = 0
    first: int = 0
    end: int | None = None
    renewal: int | None = None
    allowed_lateness: int = 0
    calendar: Calendar | None = None
    renews: Calendar | None = None

    @classmethod
    def of(
        cls,
        *,
        window: Length,
        start: Moment | None = None,
        end: Moment | None = None,
        renew_every: Length | None = None,
        allowed_lateness: Seconds = 0,
    ) -> Steps:
        """Make the steps; windows are counted from `start`, which must be given."""
        if start is None:
            raise ValueError("start must be given: every window from start on is published")
        begin, until = read_moment("start", start), None if end is None else read_moment("end", end)
        lateness = to_micros("allowed_lateness", allowed_lateness, minimum=0)
        if isinstance(window, str):
            return cls._of_calendar(Calendar.parse(window), begin, until, renew_every, lateness)
        size = to_micros("window", window)
        first, origin = divmod(begin, size)
        after, over = (None, 0) if until is None else divmod(until - origin, size)
        if until is not None and until - begin < size:
            raise ValueError(f"end must leave room for one window after start, got {iso(begin)} to {iso(until)}")
        if over:
            near = f"one ends {in_words(over)} before it, the next one {in_words(size - over)} after it"
            days, rest = divmod(size, DAY)
            if not rest and min(over, size - over) <= HOUR:
                near += f"; if clocks change in between, window must be {days}day{'s' * (days > 1)}, of the calendar"
            raise ValueError(f"end must be where a window ends: {near}")
        renewal = None
        if renew_every is not None:
            if isinstance(renew_every, str):
                raise ValueError(f"renew_every must be a number of seconds where window is one, got {renew_every!r}")
            renewal, over = divmod(to_micros("renew_every", renew_every), size)
            if over:
                given = in_words(renewal * size + over)
                raise ValueError(f"renew_every must be a multiple of window, {in_words(size)}, got {given}")
        number = None if after is None else after - first
        for name, many, of in (("window", number, " from start to end"), ("renew_every", renewal, "")):
            if many is not None and many > MOST_WINDOWS:
                raise ValueError(f"{name} must make at most {MOST_WINDOWS:,} windows, got {many:,}{of}")
        return cls(size=size, origin=origin, first=first, end=after, renewal=renewal, allowed_lateness=lateness)

    @classmethod
    def _of_calendar(
        cls, calendar: Calendar, begin: int, until: int | None, renew_every: Length | None, lateness: int
    ) -> Steps:
        renews = None if renew_every is None else _in_calendar("renew_every", renew_every, calendar)
        size, end = calendar.length, None if until is None else calendar.windows(begin, until)
        made = cls(size=size, origin=begin, end=end, allowed_lateness=lateness, calendar=calendar, renews=renews)
        starts = made.starts
        if renews is None:
            return made
        periods = renews.starts(begin)
        if renews.length < size or not np.isin(periods[periods < starts[-1]], starts).all():
            rule = f"must be a time after which one of the windows, {made.length}, always begins"
            raise ValueError(f"renew_every {rule}, and at least one of them, got {renews}")
        return replace(made, renewal=int(np.diff([*made._first_steps, len(starts) - 1]).max()))

    @property
    def starts(self) -> np.ndarray:
        """The starts of all windows of a calendar, and the end of the last one."""
        assert self.calendar is not None
        return self.calendar.starts(self.origin)[: None if self.end is None else self.end + 1]

    @cached_property
    def _first_steps(self) -> np.ndarray:
        """The first step of each budget period of a calendar."""
        assert self.renews is not None
        return np.flatnonzero(np.isin(self.starts[:-1], self.renews.starts(self.origin)))

    @property
    def count(self) -> int | None:
        """Number of steps, at most those of a budget period; None if there is no end."""
        found = None if self.end is None else self.end - self.first
        return found if self.renewal is None else min(self.renewal, found or self.renewal)

    @cached_property
    def last(self) -> int:
        """The last step that is ever decided."""
        latest = self.latest(END_OF_TIME, STAGES)
        return latest if self.end is None else min(latest, self.end - 1)

    def renewals(self, step: Any) -> Any:
        """Return how many budget periods have ended before a step, or before each of an array of steps."""
        if self.renewal is None:
            return step * 0
        if self.renews is None:
            return (step - self.first) // self.renewal
        return np.searchsorted(self._first_steps, step, side="right") - 1

    def _first_after(self, renewals: int) -> int:
        if self.renews is None:
            return self.first + renewals * (self.renewal or 0)
        return int(self._first_steps[renewals]) if renewals < len(self._first_steps) else END_OF_TIME + 1

    def first_of_period(self, step: int) -> int:
        """Return the first step of the budget period."""
        return self.first if self.renewal is None else self._first_after(self.renewals(step))

    def last_of_period(self, step: int) -> int:
        """Return the last step of the budget period."""
        return END_OF_TIME if self.renewal is None else self._first_after(self.renewals(step) + 1) - 1

    def number(self, step: int) -> int:
        """Return 1, 2, .. for the steps of a budget period."""
        return step + 1 - self.first_of_period(step)

    def in_first_period(self, step: int) -> int:
        """Return the step that has the same number in the first budget period."""
        return self.first + self.number(step) - 1

    def renewed(self, noise: NoiseSource, step: int) -> NoiseSource:
        """Return noise that is another one in each budget period."""
        return noise if self.renewal is None else noise.derive("renewal", int(self.renewals(step)))

    @property
    def label(self) -> str:
        """The windows as a part of noise labels."""
        since = f" from {self.origin}" if self.origin else ""
        renewed = "" if self.renewal is None else f" renewed {self.renews or self.renewal}"
        if self.calendar is not None:
            digest = hashlib.blake2b(self.starts.astype("<i8").tobytes(), digest_size=16).hexdigest()
            since = f" of {self.calendar} from {self.origin}: {digest}"
        return f"{self.size} {self.first} {self.end} {self.allowed_lateness}{since}{renewed}"

    @property
    def length(self) -> str:
        """How long a window is, in words."""
        return in_words(self.size) if self.calendar is None else str(self.calendar)

    @property
    def person_in_period(self) -> PrivacyUnit:
        """What one person sends in a budget period, as a unit."""
        start, length, since = self.bounds_micros(self.first)[0], (self.renewal or 0) * self.size, ""
        if self.renews is not None:
            length = int(np.gcd.reduce(np.diff(self.renews.starts(start))))
            since = self.renews.since(start)
        return PrivacyUnit(what="person", window=length, origin=start % length, calendar=since)

    @property
    def grid(self) -> int:
        """Microseconds of which the distance between the ends of any two windows is a multiple."""
        return self.size if self.calendar is None else int(np.gcd.reduce(np.diff(self.starts)))

    def starting(self, moments: Any) -> Any:
        """Return the last step that starts at or before a moment, or each of several, in microseconds since 1970."""
        if self.calendar is None:
            return (moments - self.origin) // self.size
        found = np.searchsorted(self.starts, moments, side="right") - 1
        return found if isinstance(moments, np.ndarray) else int(found)

    def assign(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of events (int64 microseconds) that lie in a step of the run, and their steps, int64."""
        steps = self.starting(np.maximum(times, self.origin - 1))
        rows = np.flatnonzero((steps >= self.first) & (steps <= self.last))
        return rows, steps[rows]

    def bounds_micros(self, step: int) -> tuple[int, int]:
        """Return start and end of a step's window, in microseconds since 1970 UTC."""
        if self.calendar is None:
            start = self.origin + step * self.size
            return start, start + self.size
        start, end = self.starts[step : step + 2].tolist()
        return start, end

    def bounds(self, step: int) -> tuple[Timestamp, Timestamp]:
        """Return start and end of a step's window."""
        start, end = self.bounds_micros(step)
        return timestamp(start), timestamp(end)

    def after(self, moments: np.ndarray, length: int) -> np.ndarray:
        """Return what is so long after each moment, int64 microseconds.

        Of whole windows of a calendar it is the start of one, so that a day is over when the day is, with 23 hours.
        """
        windows, rest = divmod(length, self.size)
        if self.calendar is None or rest:
            return moments + length
        later: np.ndarray = self.starts[np.minimum(self.starting(moments) + windows, len(self.starts) - 1)]
        return later

    def decision_time(self, step: int, timer_offset: int = 0) -> int:
        """Return the event time, in microseconds, at which a stage of the dataflow acts on a step.

        An element emitted at the watermark T may reach the next stage after that stage's timers at T: so each stage
        acts one millisecond after the one before: `timer_offset` is the number of that stage.
        """
        return self.bounds_micros(step)[1] + self.allowed_lateness + timer_offset * MILLISECOND

    def latest(self, micros: int, timer_offset: int = 0) -> int:
        """Return the last step on which a stage acts by the event time `micros`; may be negative."""
        return int(self.starting(micros - self.allowed_lateness - timer_offset * MILLISECOND)) - 1


def windows_in(over: Span, steps: Steps) -> str | int:
    """Return "window", "start", or the number of windows that a duration has; one alone is a "window".

    It is in seconds or, with windows of a calendar, also in units of it.
    """
    if over in ("window", "start"):
        return str(over)
    if not isinstance(over, str):
        length, alike = to_micros("over", over), True
    elif steps.calendar is None:
        rule = f"'window', 'start' or a number of seconds, with windows of {steps.length}"
        raise ValueError(f"over must be {rule}, got {over!r}")
    else:
        found = _in_calendar("over", over, steps.calendar)
        length, alike = found.length, (found.unit in MONTHS) == (steps.calendar.unit in MONTHS)
    number, rest = divmod(length, steps.size)
    if rest or not number or not alike:
        given = over if isinstance(over, str) else in_words(length)
        raise ValueError(f"over must be a multiple of window, got {given} with windows of {steps.length}")
    return number if number > 1 else "window"


def _in_calendar(name: str, given: Length, window: Calendar) -> Calendar:
    """Return a duration in the calendar of a window."""
    if not isinstance(given, str):
        example = "such as 3months or 1year, with windows of a calendar"
        raise ValueError(f"{name} must be days, weeks, months or years, {example}, got {given} seconds")
    found = Calendar.parse(given, name, window.zone)
    if found.zone != window.zone:
        raise ValueError(f"{name} must be in the time zone of the window, {window.zone}, got {found.zone}")
    return found


def of_period(guarantee: PrivacyGuarantee, steps: Steps) -> PrivacyGuarantee:
    """Return what one person is promised in one period, given what a run of one period promises: the same if it lasts.

    Nothing that is remembered outlives a period, and a window has events of its own period alone. So what one person
    does in one period moves what is published in it, and nothing else. An event lies in one period anyway.
    """
    if steps.renewal is None:
        return guarantee
    limits = [limit.replace("the whole run", "one period") for limit in guarantee.limits]
    length = in_words(steps.renewal * steps.size) if steps.renews is None else str(steps.renews)
    limits.append(f"All limits and budgets begin again every {length}.")
    unit = guarantee.unit
    if unit == PERSON:
        unit = steps.person_in_period
        limits.append("A person who takes part in m periods is promised m times this epsilon and this delta.")
    return replace(guarantee, unit=unit, limits=tuple(limits))
