"""The time of day for watermarks of sources, which a clock that is put forward does not carry along."""

from __future__ import annotations

import time
from collections.abc import Callable

from privstream.pipelines.sources.polled_source import MICROS


class SteadyClock:
    """The time of day as this process began with it, plus what has passed since by the monotonic clock.

    A watermark that follows the time of day must not follow a jump of it: put forward by an hour, it would decide the
    windows of that hour at once, and all events that come in it would be late. So a jump forward is not followed until
    something has arrived that others have stamped with a later time, which is the proof that it is as late as that. A
    jump backward is followed: whoever holds a watermark does not let it go back anyway.

    Args:
        time_of_day: seconds since 1970.
        monotonic: seconds since any moment.
    """

    def __init__(
        self, time_of_day: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._time_of_day, self._monotonic = time_of_day, monotonic
        self._ahead = self._micros(time_of_day) - self._micros(monotonic)

    def now(self) -> int:
        """Return now in microseconds since 1970."""
        return min(self._micros(self._time_of_day), self._micros(self._monotonic) + self._ahead)

    def at_least(self, stamp: int) -> None:
        """Learn that something has been stamped elsewhere, at so many microseconds since 1970, and is here by now."""
        self._ahead = max(self._ahead, stamp - self._micros(self._monotonic))

    @staticmethod
    def _micros(seconds: Callable[[], float]) -> int:
        return int(seconds() * MICROS)


CLOCK = SteadyClock()
"""Of this process: sources that are made later have the time with which it began."""
