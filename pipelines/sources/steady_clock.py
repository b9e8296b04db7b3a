"""The time of day for watermarks of sources, which a clock that is put forward does not carry along at once."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable

from privstream.pipelines.sources.polled_source import MICROS

LASTS = 600 * MICROS
"""A clock that is off by the same for a whole period of so many microseconds is believed."""


def elapsed() -> float:
    """Return the seconds since any moment, those in which the machine was suspended included where the system can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class SteadyClock:
    """The time of day as it was when this clock was made, plus what has passed since.

    A watermark that follows the time of day must not follow a jump of it: put forward by an hour, it would decide the
    windows of that hour at once, and all events that come in it would be late. So a jump forward is not followed before
    something has arrived that others have stamped with a later time, which is the proof that it is as late as that, or
    before the jump has lasted: after each period of ten minutes the time goes on with the least jump that there was in
    all of the period, 10 to 20 minutes after the jump. Else a clock that has been set right would hold the watermark
    back for good. A jump backward is followed at once, since whoever holds a watermark does not let it go back anyway;
    once it has lasted as long, the way forward again is a jump like any other.

    Its methods may be called by several threads.

    Args:
        time_of_day: seconds since 1970.
        passed: seconds since any moment.
    """

    def __init__(self, time_of_day: Callable[[], float] = time.time, passed: Callable[[], float] = elapsed) -> None:
        self._time_of_day, self._passed = time_of_day, passed
        self._lock = threading.Lock()
        day, self._began = self._read()
        self._ahead = self._least = self._most = day - self._began

    def now(self) -> int:
        """Return now in microseconds since 1970."""
        with self._lock:
            day, passed = self._read()
            ahead = day - passed
            self._least, self._most = min(self._least, ahead), max(self._most, ahead)
            if passed - self._began >= LASTS:
                self._ahead = min(max(self._ahead, self._least), self._most)
                self._began, self._least, self._most = passed, ahead, ahead
            return min(day, passed + self._ahead)

    def at_least(self, stamp: int) -> None:
        """Learn that something has been stamped elsewhere, at so many microseconds since 1970, and is here by now.

        A stamp beyond the time of day proves nothing.
        """
        with self._lock:
            day, passed = self._read()
            if stamp <= day:
                self._ahead = max(self._ahead, stamp - passed)

    def _read(self) -> tuple[int, int]:
        """Return the time of day and what has passed, in microseconds."""
        return int(self._time_of_day() * MICROS), int(self._passed() * MICROS)


@functools.cache
def clock_of(source: str) -> SteadyClock:
    """Return the clock of a source in this process, which begins when it is first asked for.

    All parts of a source share it. What another source has stamped proves nothing here: its clock may be wrong.
    """
    return SteadyClock()
