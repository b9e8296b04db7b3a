"""Windows of one length, or of a calendar, as numbered steps: which step an event is in, when a step is decided."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Required, TypedDict

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit, in_words
from privstream.transforms.timing.calendar import Calendar, iso

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

Seconds = float
"""A duration in seconds."""

Length = float | str
"""Of a window: seconds, or so many days, weeks, months or years of a calendar: see `calendar.Calendar`."""

Moment = float
"""A point in time: seconds since 1970 UTC."""

Span = str | float
"""What a count is about: a "window", all since the "start", or so many seconds, or units of a calendar."""

LAST_MOMENT = 253_402_300_799
"""That a calendar has, in seconds since 1970."""

MICROS = 1_000_000
HOUR, DAY = 3_600 * MICROS, 86_400 * MICROS
MILLISECOND = 1_000  # the finest step of event time on every runner
MOST_WINDOWS = 1 << 20
"""Of a run, or of a budget period."""

STAGES = 10  # more than the dataflow has
END_OF_TIME = 9_223_371_950_454_774_999  # the last moment at which a timer fires: that of Beam's GlobalWindow


def timestamp(micros: int) -> Timestamp:
    """Return a moment as Beam has it."""
    from apache_beam.utils.timestamp import Timestamp  # noqa: PLC0415 - late: plans of windows need no Beam

    return Timestamp(micros=micros)


def to_micros(name: str, seconds: float, *, minimum: int = MILLISECOND) -> int:
    """Return a duration in microseconds; it must be a whole number of milliseconds."""
    micros = round(checks.real(name, seconds) * MICROS)
    if micros < minimum or micros % MILLISECOND:
        least = "> 0" if minimum else ">= 0"
        raise ValueError(f"{name} must be {least} and a whole number of milliseconds, got {seconds} seconds")
    return micros


def check_moment(name: str, given: object) -> float:
    """Return a point in time in seconds since 1970; the error of a text or a date says how it becomes one."""
    if isinstance(given, str | date):
        kind = "text" if isinstance(given, str) else type(given).__name__
        raise TypeError(f"{name} must be a number of seconds since 1970, got {kind}: datetime.timestamp() gives it")
    if (seconds := checks.real(name, given)) > LAST_MOMENT:
        raise ValueError(f"{name} must be a number of seconds since 1970, before the year 10000, got {given}")
    return seconds


class WindowOptions(TypedDict, total=False):
    """What every transform that watches windows takes beside its own arguments.

    `Steps.of` has their types and defaults. A new one goes in here and there: transforms hand them on unread, and
    signatures, help pages and Beam YAML take them from these two places.

    Args:
        window: length of a window in seconds, or so many days, weeks, months or years of a calendar from `start` on,
            such as "1month Europe/Berlin"; without a zone in UTC.
        renew_every: length in seconds of a budget period, counted from `start`: limits, budgets and all that is
            remembered; with windows of a calendar so many days, weeks, months or years of it, such as "1month". The
            guarantee is then for what one person does in one such period.
        allowed_lateness: seconds after its end during which a window still takes late events.
    """

    window: Required[Length]
    renew_every: Length | None
    allowed_lateness: Seconds


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Windows that follow each other, numbered: step s is the one that starts at origin + s * size.

    Windows of a calendar begin with step 0 at `origin`; before the first one and after the last they go on with `size`.

    Attributes:
        size: length of a window in microseconds; of those of a calendar the mean length.
        origin: start of step 0 in microseconds since 1970 UTC; without a calendar in [0, size).
        first: number of the first step.
        end: number after the last step, or None.
        renewal: number of steps of a budget period, counted from the first step, or of the longest one of a calendar;
            None if there is one period.
        allowed_lateness: microseconds between the end of a window and its decision.
        calendar: of the windows, or None.
        until: end of the last window of a calendar, or None.
        renews: calendar of the budget periods, or None.
    """

    size: int
    origin: int = 0
    first: int = 0
    end: int | None = None
    renewal: int | None = None
    allowed_lateness: int = 0
    calendar: Calendar | None = None
    until: int | None = None
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
        begin = to_micros("start", check_moment("start", start), minimum=0)
        until = None if end is None else to_micros("end", check_moment("end", end), minimum=0)
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
        made = cls(
            size=calendar.length,
            origin=begin,
            first=0,
            end=None if until is None else len(calendar.starts(begin, until)) - 1,
            allowed_lateness=lateness,
            calendar=calendar,
            until=until,
            renews=None if renew_every is None else _in_calendar("renew_every", renew_every, calendar),
        )
        if made.renews is None:
            return made
        if made.renews.length < made.size or not np.isin(made._periods, made.starts).all():
            rule = f"must be a time after which one of the windows, {made.length}, always begins"
            raise ValueError(f"renew_every {rule}, and at least one of them, got {made.renews}")
        longest = np.diff([*made._first_steps, len(made.starts) - 1]).max()
        return replace(made, renewal=int(longest))

    @property
    def starts(self) -> np.ndarray:
        """The starts of all windows of a calendar, and the end of the last one."""
        assert self.calendar is not None
        return self.calendar.starts(self.origin, self.until)

    @property
    def _periods(self) -> np.ndarray:
        assert self.renews is not None
        starts = self.renews.starts(self.origin, None)
        return starts[: np.searchsorted(starts, self.starts[-1])]

    @property
    def _first_steps(self) -> np.ndarray:
        """The first step of each of these; a window that ends with a period is in it."""
        found: np.ndarray = np.searchsorted(self.starts[1:], self._periods, side="right")
        return found

    @property
    def count(self) -> int | None:
        """Number of steps, at most those of a budget period; None if there is no end."""
        found = None if self.end is None else self.end - self.first
        return found if self.renewal is None else min(self.renewal, found or self.renewal)

    def renewals(self, step: Any) -> Any:
        """Return how often everything has started afresh before a step, or an array of steps."""
        if self.renewal is None:
            return step * 0
        if self.calendar is None:
            return (step - self.first) // self.renewal
        found = np.maximum(np.searchsorted(self._first_steps, step, side="right") - 1, 0)
        return found if isinstance(step, np.ndarray) else int(found)

    def _first_after(self, renewals: int) -> int:
        if self.renewal is None or self.calendar is None:
            return self.first + renewals * (self.renewal or 0)
        return int(self._first_steps[renewals]) if renewals < len(self._first_steps) else END_OF_TIME + 1

    def first_of_period(self, step: int) -> int:
        """Return the first step since everything started afresh."""
        return self.first if self.renewal is None else self._first_after(self.renewals(step))

    def last_of_period(self, step: int) -> int:
        """Return the last step of the budget period."""
        return END_OF_TIME if self.renewal is None else self._first_after(self.renewals(step) + 1) - 1

    def number(self, step: int) -> int:
        """Return 1, 2, .. for the steps since everything started afresh."""
        return step + 1 - self.first_of_period(step)

    def in_first_period(self, step: int) -> int:
        """Return the step that has the same number before anything starts afresh."""
        return self.first + self.number(step) - 1

    def renewed(self, noise: NoiseSource, step: int) -> NoiseSource:
        """Return noise that is another one after everything has started afresh."""
        return noise if self.renewal is None else noise.derive("renewal", int(self.renewals(step)))

    def starts_afresh(self, before: int, step: int) -> bool:
        """Return whether everything starts afresh between two steps, the first of which may be before the run."""
        return self.renewal is not None and self.renewals(max(before, self.first)) != self.renewals(step)

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
        start = self.bounds_micros(self.first)[0]
        length = (self.renewal or 0) * self.size
        if self.renews is not None:
            length = int(np.gcd.reduce(np.diff(self.renews.starts(start, None))))
        since = "" if self.renews is None else self.renews.since(start)
        return PrivacyUnit(what="person", window=length, origin=start % length, calendar=since)

    @property
    def grid(self) -> int:
        """Microseconds of which the distance between the ends of any two windows is a multiple."""
        return self.size if self.calendar is None else int(np.gcd.reduce(np.diff(self.starts)))

    def starting(self, moments: Any) -> Any:
        """Return the last step that starts until a moment, or until each of some, in microseconds since 1970."""
        if self.calendar is None:
            return (moments - self.origin) // self.size
        if not isinstance(moments, np.ndarray):
            return int(self.starting(np.array([max(moments, 0)]))[0])
        first, last = self.starts[0], self.starts[-1]
        found: np.ndarray = np.searchsorted(self.starts, moments, side="right") - 1
        found = np.where(moments < first, (moments - first) // self.size, found)
        return np.where(moments > last, len(self.starts) - 1 + (moments - last) // self.size, found)

    def assign(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of events (int64 microseconds) that lie in a step of the run, and their steps, int64.

        Steps before the origin, and those decided only after the end of event time, are dropped.
        """
        steps = self.starting(np.maximum(times, self.origin - 1))
        inside = (steps >= max(0, self.first)) & (steps <= self.latest(END_OF_TIME, STAGES))
        if self.end is not None:
            inside &= steps < self.end
        rows = np.flatnonzero(inside)
        return rows, steps[rows]

    def bounds_micros(self, step: int) -> tuple[int, int]:
        """Return start and end of a step's window, in microseconds since 1970 UTC."""
        if self.calendar is None:
            start = self.origin + step * self.size
            return start, start + self.size
        starts = self.starts
        inside = [min(max(each, 0), len(starts) - 1) for each in (step, step + 1)]
        start, end = (int(starts[each]) for each in inside)
        return start + (step - inside[0]) * self.size, end + (step + 1 - inside[1]) * self.size

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

    def ending(self, end: Timestamp) -> int:
        """Return the step whose window ends then."""
        return int(self.starting(int(end.micros))) - 1

    def last_moment(self, step: int) -> Timestamp:
        """Return the last microsecond of a step's window, the timestamp of its rows as everywhere in Beam."""
        return timestamp(self.bounds_micros(step)[1] - 1)

    def decision_time(self, step: int, timer_offset: int = 0) -> Timestamp:
        """Return the event time at which a stage of the dataflow acts on a step.

        An element emitted at the watermark T may reach the next stage after that stage's timers at T: so each stage
        acts one millisecond after the one before: `timer_offset` is the number of that stage.
        """
        return timestamp(self.bounds_micros(step)[1] + self.allowed_lateness + timer_offset * MILLISECOND)

    def latest(self, micros: int, timer_offset: int = 0) -> int:
        """Return the last step on which a stage acts by the event time `micros`; may be negative."""
        return int(self.starting(micros - self.allowed_lateness - timer_offset * MILLISECOND)) - 1


def end_of(windows: int, length: Length) -> float:
    """Return the end of consecutive windows from 1970 UTC on, in seconds since then."""
    if not isinstance(length, str):
        return windows * length
    return int(Calendar.parse(length).starts(0, None)[windows]) / MICROS


def windows_in(over: Span, steps: Steps) -> str | int:
    """Return "window", "start", or the number of windows that a duration has; one alone is a "window".

    It is in seconds or, with windows of a calendar, also so many units of it.
    """
    if isinstance(over, str):
        if over in ("window", "start"):
            return over
        if steps.calendar is None:
            rule = f"'window', 'start' or a number of seconds, with windows of {steps.length}"
            raise ValueError(f"over must be {rule}, got {over!r}")
        number = _in_calendar("over", over, steps.calendar).times(steps.calendar)
    else:
        micros = to_micros("over", over)
        number = None if micros % steps.size else micros // steps.size
    if number is None:
        given = over if isinstance(over, str) else in_words(to_micros("over", over))
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
    start = steps.bounds_micros(steps.first)[0]
    limits = [limit.replace("the whole run", "one period") for limit in guarantee.limits]
    length = in_words(steps.renewal * steps.size) if steps.renews is None else str(steps.renews)
    limits.append(f"All limits and budgets begin again every {length}, counted from {iso(start)}.")
    unit = guarantee.unit
    if unit == PERSON:
        unit = steps.person_in_period
        limits.append("A person who takes part in m periods is promised m times this epsilon and this delta.")
    return replace(guarantee, unit=unit, limits=tuple(limits))
