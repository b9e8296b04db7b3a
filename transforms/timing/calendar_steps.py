"""Windows of a calendar as numbered steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.transforms.timing.calendar import Calendar
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Moment, Steps, person_in, to_micros
from typing_extensions import override

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp


@dataclass(frozen=True, kw_only=True)
class CalendarSteps(Steps):
    """Windows of a calendar from `start` on, the first of which is step 0; `size` is their mean length.

    Attributes:
        calendar: how long each is.
        start: of the first one, in microseconds since 1970 UTC.
        until: end of the last one, or None.
        renews: length of the budget periods, or None; `renewal` is the number of steps
            that end in the longest one.
    """

    calendar: Calendar
    start: int
    until: int | None
    renews: Calendar | None = None

    @classmethod
    def counted(
        cls,
        calendar: Calendar,
        start: Moment | None,
        end: Moment | None,
        windows: int | None,
        renews: Calendar | None,
        allowed_lateness: int,
    ) -> CalendarSteps:
        """Make the windows from `start` on, until `end` or so many.

        Raises:
            ValueError: there is no start, or no window starts or ends there, or one of the calendars does not fit to
                the others.
        """
        if start is None:
            raise ValueError("start must be given with windows of a calendar, which are counted from it")
        first, until = to_micros("start", start, minimum=0), None
        if windows is not None:
            starts = calendar.starts(first, None)
            until = int(starts[checks.integer("windows", windows, minimum=1, maximum=len(starts) - 1)])
        elif end is not None:
            until = to_micros("end", end, minimum=0)
        count = len(calendar.starts(first, until)) - 1
        made = cls(
            size=calendar.length,
            origin=first,
            first=0,
            end=None if until is None else count,
            allowed_lateness=allowed_lateness,
            calendar=calendar,
            start=first,
            until=until,
            renews=renews,
        )
        return made if renews is None else replace(made, renewal=made.most_in_period(renews))

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: workers work the starts out themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def starts(self) -> np.ndarray:
        """The starts of all windows, and the end of the last one."""
        return self.calendar.starts(self.start, self.until)

    @property
    def ends(self) -> np.ndarray:
        """The ends of all windows."""
        return self.starts[1:]

    @cached_property
    def periods(self) -> np.ndarray:
        """The starts of the budget periods."""
        assert self.renews is not None
        starts: np.ndarray = self.renews.starts(self.start, None)
        return starts[: np.searchsorted(starts, self.starts[-1])]

    def most_in_period(self, renews: Calendar) -> int:
        """Return how many windows end in the longest period."""
        made = replace(self, renews=renews, renewal=1)
        if renews.length < self.size or not np.isin(made.periods, self.starts).all():
            rule = f"must be a time after which one of the windows, {self.length}, always begins"
            raise ValueError(f"renew_every {rule}, and at least one of them, got {renews}")
        return int(np.bincount(made.renewals(np.arange(len(made.ends)))).max())

    @override
    def renewals(self, step: Any) -> Any:
        if self.renewal is None:
            return step * 0
        ends = self.ends[np.clip(step, 0, len(self.ends) - 1)]
        found = np.searchsorted(self.periods, ends) - 1  # one that ends with a period is in it
        return found if isinstance(step, np.ndarray) else int(found)

    @override
    def first_of_period(self, step: int) -> int:
        if self.renewal is None:
            return 0
        return int(np.searchsorted(self.ends, self.periods[self.renewals(step)], side="right"))

    @override
    def last_of_period(self, step: int) -> int:
        if self.renewal is None or (following := self.renewals(step) + 1) == len(self.periods):
            return END_OF_TIME
        return int(np.searchsorted(self.ends, self.periods[following], side="right")) - 1

    @property
    @override
    def length(self) -> str:
        return str(self.calendar)

    @property
    @override
    def renewal_length(self) -> str:
        return str(self.renews)

    @property
    @override
    def person_in_period(self) -> PrivacyUnit:
        assert self.renews is not None
        grid = int(np.gcd.reduce(np.diff(self.renews.starts(self.start, None))))
        return replace(person_in(grid, self.start), calendar=self.renews.since(self.start))

    @cached_property
    @override
    def grid(self) -> int:
        return int(np.gcd.reduce(np.diff(self.starts)))

    @property
    @override
    def further_label(self) -> str:
        digest = hashlib.blake2b(self.starts.astype("<i8").tobytes(), digest_size=16).hexdigest()
        renewed = "" if self.renewal is None else f" renewed every {self.renews}"
        return f" of {self.calendar} from {self.start}: {digest}{renewed}"

    @override
    def _step_of(self, times: np.ndarray) -> np.ndarray:
        steps = np.searchsorted(self.starts, times, side="right") - 1
        return np.where(steps < len(self.ends), steps, -1)

    @override
    def bounds_micros(self, step: int) -> tuple[int, int]:
        return self._begin(step), self._begin(step + 1)

    def _begin(self, step: int) -> int:
        """Return the start of a step; beyond those of a calendar they follow each other as they do on average."""
        inside = min(max(step, 0), len(self.starts) - 1)
        return int(self.starts[inside]) + (step - inside) * self.size

    @override
    def starting(self, starts: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.searchsorted(self.starts, starts)
        return found

    @override
    def after(self, moments: np.ndarray, length: int) -> np.ndarray:
        """Of whole windows it is the start of a window, so that a day is over when the day is, with 23 or 25 hours."""
        windows, rest = divmod(length, self.size)
        if rest:
            return moments + length
        later: np.ndarray = self.starts[np.minimum(self.begun_before(moments + 1) + windows, len(self.starts) - 1)]
        return later

    @override
    def begun_before(self, moments: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.searchsorted(self.starts, moments) - 1
        return found

    @override
    def ending(self, end: Timestamp) -> int:
        return int(np.searchsorted(self.ends, end.micros, side="right")) - 1

    @override
    def latest(self, micros: int, timer_offset: int = 0) -> int:
        decided, ends = micros - self.allowed_lateness - timer_offset * MILLISECOND, self.ends
        if decided >= ends[-1]:
            return len(ends) - 1 + (decided - int(ends[-1])) // self.size
        if decided < self.start:
            return -2 - (self.start - decided - 1) // self.size
        return int(np.searchsorted(ends, decided, side="right")) - 1
