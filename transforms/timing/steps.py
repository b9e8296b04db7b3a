"""Windows as numbered steps: which step an event belongs to, and when a step is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
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
    if isinstance(seconds, str | timedelta):
        kind = "text" if isinstance(seconds, str) else "timedelta: its total_seconds() gives it"
        raise TypeError(f"{name} must be a number of seconds, got {kind}")
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

    Attributes:
        size: length of a window in microseconds.
        origin: start of step 0 in microseconds since 1970 UTC, in [0, size).
        first: number of the first step, or None for no bound.
        end: number after the last step, or None.
        renewal: number of steps of a budget period, counted from the first step; None if there is one period.
        allowed_lateness: microseconds between the end of a window and its decision.
    """

    size: int
    origin: int = 0
    first: int | None = None
    end: int | None = None
    renewal: int | None = None
    allowed_lateness: int = 0

    @classmethod
    def of(
        cls,
        *,
        window: Length,
        start: Moment | None = None,
        end: Moment | None = None,
        windows: int | None = None,
        renew_every: Length | None = None,
        allowed_lateness: Seconds = 0,
    ) -> Steps:
        """Make the steps; windows are counted from `start`, or else from 1970 UTC.

        `windows` is their number from `start` on, in place of `end`.
        """
        for name, moment in (("start", start), ("end", end)):
            if moment is not None:
                check_moment(name, moment)
        if windows is not None and end is not None:
            raise ValueError("windows must not be given with end: both name the last window")
        if isinstance(window, str):
            calendar, lateness = Calendar.parse(window), to_micros("allowed_lateness", allowed_lateness, minimum=0)
            renews = _in_calendar("renew_every", renew_every, calendar)
            from privstream.transforms.timing.calendar_steps import CalendarSteps  # noqa: PLC0415 - these are steps

            return CalendarSteps.counted(calendar, start, end, windows, renews, lateness)
        if isinstance(renew_every, str):
            raise ValueError(f"renew_every must be a number of seconds where window is one, got {renew_every!r}")
        if windows is not None:
            if start is None:
                raise ValueError("start must be given with windows, which are counted from it")
            end = start + checks.integer("windows", windows, minimum=1) * checks.real("window", window)
        size = to_micros("window", window)
        first, origin = (None, 0) if start is None else divmod(to_micros("start", start, minimum=0), size)
        last, over = (None, 0) if end is None else divmod(to_micros("end", end, minimum=0) - origin - size, size)
        if first is not None and last is not None and last < first:
            raise ValueError(f"end must leave room for one window after start, got {_iso(start)} to {_iso(end)}")
        if end is not None and over:
            near = f"one ends {in_words(over)} before it, the next one {in_words(size - over)} after it"
            raise ValueError(f"end must be where a window ends: {near}{_of_clocks(size, min(over, size - over))}")
        renewal = None if renew_every is None else _renewal(renew_every, size, first)
        for name, number in (
            ("window", None if first is None or last is None else last - first + 1),
            ("renew_every", renewal),
        ):
            if number is not None and number > MOST_WINDOWS:
                of = "" if name != "window" else " from start to end"
                raise ValueError(f"{name} must make at most {MOST_WINDOWS:,} windows, got {number:,}{of}")
        return cls(
            size=size,
            origin=origin,
            first=first,
            end=None if last is None else last + 1,
            renewal=renewal,
            allowed_lateness=to_micros("allowed_lateness", allowed_lateness, minimum=0),
        )

    def __post_init__(self) -> None:
        checks.integer("size", self.size, minimum=1)
        checks.integer("allowed_lateness", self.allowed_lateness, minimum=0)

    @property
    def count(self) -> int | None:
        """Number of steps, at most those of a budget period; None if there is no end."""
        found = None if self.first is None or self.end is None else self.end - self.first
        return found if self.renewal is None else min(self.renewal, found or self.renewal)

    def renewals(self, step: Any) -> Any:
        """Return how often everything has started afresh before a step, or an array of steps."""
        return step * 0 if self.renewal is None else (step - self.first) // self.renewal

    def first_of_period(self, step: int) -> int:
        """Return the first step since everything started afresh."""
        if self.renewal is None or self.first is None:
            return self.first or 0
        return self.first + int(self.renewals(step)) * self.renewal

    def last_of_period(self, step: int) -> int:
        """Return the last step of the budget period."""
        if self.renewal is None or self.first is None:
            return END_OF_TIME
        return self.first_of_period(step + self.renewal) - 1

    def number(self, step: int) -> int:
        """Return 1, 2, .. for the steps since everything started afresh."""
        return step + 1 - self.first_of_period(step)

    def in_first_period(self, step: int) -> int:
        """Return the step that has the same number before anything starts afresh."""
        return (self.first or 0) + self.number(step) - 1

    def renewed(self, noise: NoiseSource, step: int) -> NoiseSource:
        """Return noise that is another one after everything has started afresh."""
        return noise if self.renewal is None else noise.derive("renewal", int(self.renewals(step)))

    def starts_afresh(self, before: int, step: int) -> bool:
        """Return whether everything starts afresh between two steps, the first of which may be before the run."""
        return self.renewal is not None and self.renewals(max(before, self.first or 0)) != self.renewals(step)

    @property
    def label(self) -> str:
        """The windows as a part of noise labels. It stays as it is in all versions."""
        return f"{self.size} {self.first} {self.end} {self.allowed_lateness}{self.further_label}"

    @property
    def further_label(self) -> str:
        """Origin and renewal as a part of noise labels; nothing for windows that are counted from 1970 and last."""
        origin = f" from {self.origin}" if self.origin else ""
        return origin if self.renewal is None else f"{origin} renewed {self.renewal}"

    @property
    def length(self) -> str:
        """How long a window is, in words."""
        return in_words(self.size)

    @property
    def renewal_length(self) -> str:
        """The length of a budget period in words."""
        return in_words((self.renewal or 0) * self.size)

    @property
    def person_in_period(self) -> PrivacyUnit:
        """What one person sends in a budget period, as a unit."""
        return person_in((self.renewal or 0) * self.size, self.bounds_micros(self.first or 0)[0])

    @property
    def grid(self) -> int:
        """Microseconds of which the distance between the ends of any two windows is a multiple."""
        return self.size

    def assign(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of events (int64 microseconds) that lie in a step of the run, and their steps, int64.

        Steps before the origin, and those decided only after the end of event time, are left out.
        """
        steps = self._step_of(times)
        inside = (steps >= max(0, self.first or 0)) & (steps <= self.latest(END_OF_TIME, STAGES))
        if self.end is not None:
            inside &= steps < self.end
        rows = np.flatnonzero(inside)
        return rows, steps[rows]

    def _step_of(self, times: np.ndarray) -> np.ndarray:
        """Return the step of each moment, below 0 before the origin."""
        since = np.maximum(times, self.origin - 1) - self.origin
        steps: np.ndarray = since // self.size
        return steps

    def bounds_micros(self, step: int) -> tuple[int, int]:
        """Return start and end of a step's window, in microseconds since 1970 UTC."""
        start = self.origin + step * self.size
        return start, start + self.size

    def bounds(self, step: int) -> tuple[Timestamp, Timestamp]:
        """Return start and end of a step's window."""
        start, end = self.bounds_micros(step)
        return timestamp(start), timestamp(end)

    def starting(self, starts: np.ndarray) -> np.ndarray:
        """Return the steps whose windows start at these moments, int64 microseconds."""
        return (starts - self.origin) // self.size

    def after(self, moments: np.ndarray, length: int) -> np.ndarray:
        """Return what is so long after each moment, int64 microseconds."""
        return moments + length

    def begun_before(self, moments: np.ndarray) -> np.ndarray:
        """Return the last step that starts before each moment, int64 microseconds."""
        return -(-(moments - self.origin) // self.size) - 1

    def ending(self, end: Timestamp) -> int:
        """Return the step whose window ends then."""
        return int(end.micros - self.origin - self.size) // self.size

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
        return (micros - self.origin - self.size - self.allowed_lateness - timer_offset * MILLISECOND) // self.size


def _of_clocks(size: int, off: int) -> str:
    """Return what to do about windows of whole days that miss an end by no more than clocks change by, else nothing."""
    days, rest = divmod(size, DAY)
    if rest or off > HOUR:
        return ""
    return f"; if clocks change in between, window must be {days}day{'s' * (days > 1)}, of the calendar"


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
        if (calendar := getattr(steps, "calendar", None)) is None:
            rule = f"'window', 'start' or a number of seconds, with windows of {steps.length}"
            raise ValueError(f"over must be {rule}, got {over!r}")
        wanted = _in_calendar("over", over, calendar)
        number = None if wanted is None else wanted.times(calendar)
    else:
        micros = to_micros("over", over)
        number = None if micros % steps.size else micros // steps.size
    if number is None:
        given = over if isinstance(over, str) else in_words(to_micros("over", over))
        raise ValueError(f"over must be a multiple of window, got {given} with windows of {steps.length}")
    return number if number > 1 else "window"


def _in_calendar(name: str, given: Length | None, window: Calendar) -> Calendar | None:
    """Return a duration in the calendar of a window; None for none."""
    if given is None:
        return None
    if not isinstance(given, str):
        example = "such as 3months or 1year, with windows of a calendar"
        raise ValueError(f"{name} must be days, weeks, months or years, {example}, got {given} seconds")
    found = Calendar.parse(given, name, window.zone)
    if found.zone != window.zone:
        raise ValueError(f"{name} must be in the time zone of the window, {window.zone}, got {found.zone}")
    return found


def person_in(length: int, start: int) -> PrivacyUnit:
    """Return what one person sends in one window of a length, as a unit; one of them begins at `start`."""
    return PrivacyUnit(what="person", window=length, origin=start % length)


def _iso(seconds: Any) -> str:
    """Write a moment as people do."""
    return iso(round(seconds * MICROS))


def _renewal(renew_every: float, size: int, first: int | None) -> int:
    """Return the number of steps of a budget period."""
    micros = to_micros("renew_every", renew_every)
    if first is None:
        raise ValueError("start must be given with renew_every, which counts from it")
    if micros % size:
        raise ValueError(f"renew_every must be a multiple of window, {in_words(size)}, got {in_words(micros)}")
    return micros // size


def of_period(guarantee: PrivacyGuarantee, steps: Steps) -> PrivacyGuarantee:
    """Return what one person is promised in one period, given what a run of one period promises: the same if it lasts.

    Nothing that is remembered outlives a period, and a window has events of its own period alone. So what one person
    does in one period moves what is published in it, and nothing else. An event lies in one period anyway.
    """
    if steps.renewal is None:
        return guarantee
    start = steps.bounds_micros(steps.first or 0)[0]
    limits = [limit.replace("the whole run", "one period") for limit in guarantee.limits]
    limits.append(f"All limits and budgets begin again every {steps.renewal_length}, counted from {iso(start)}.")
    unit = guarantee.unit
    if unit == PERSON:
        unit = steps.person_in_period
        limits.append("A person who takes part in m periods is promised m times this epsilon and this delta.")
    return replace(guarantee, unit=unit, limits=tuple(limits))
