"""Windows as numbered steps: which steps an event belongs to, and when a step is decided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks

Seconds = float
"""A duration in seconds."""

Moment = float
"""A point in time: seconds since 1970 UTC."""

Span = str | float
"""What a count is about: a "window", all since the "start", or so many seconds."""

MICROS = 1_000_000
MILLISECOND = 1_000  # the finest step of event time on every runner
STAGES = 10  # more than the dataflow has
END_OF_TIME = int(GlobalWindow().max_timestamp().micros)  # the last moment at which a timer fires


def to_micros(name: str, seconds: float, *, minimum: int = MILLISECOND) -> int:
    """Return a duration in microseconds; it must be a whole number of milliseconds."""
    micros = round(checks.real(name, seconds) * MICROS)
    if micros < minimum or micros % MILLISECOND:
        least = "> 0" if minimum else ">= 0"
        raise ValueError(f"{name} must be {least} and a whole number of milliseconds, got {seconds} seconds")
    return micros


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Fixed or sliding windows, numbered: step s is the window [s * period, s * period + size).

    Attributes:
        size: length of a window in microseconds.
        period: distance between the starts of two windows in microseconds; `size` for fixed windows.
        first: number of the first step, or None for no bound.
        end: number after the last step, or None.
        allowed_lateness: microseconds between the end of a window and its decision.
    """

    size: int
    period: int
    first: int | None = None
    end: int | None = None
    allowed_lateness: int = 0

    @classmethod
    def of(
        cls,
        *,
        window: float,
        period: float | None = None,
        start: float | None = None,
        end: float | None = None,
        allowed_lateness: float = 0,
    ) -> Steps:
        """Make the steps from seconds; `start` and `end` are seconds since 1970 UTC at which a window may start."""
        size = to_micros("window", window)
        step = size if period is None else to_micros("period", period)
        if step > size:
            raise ValueError(f"period must be <= window, got {period} > {window}")
        first = None if start is None else _boundary("start", start, step, step)
        last = None if end is None else _boundary("end", end, step, size)
        if first is not None and last is not None and last < first:
            raise ValueError(f"end must leave room for one window after start, got start {start}, end {end}")
        return cls(
            size=size,
            period=step,
            first=first,
            end=None if last is None else last + 1,
            allowed_lateness=to_micros("allowed_lateness", allowed_lateness, minimum=0),
        )

    def __post_init__(self) -> None:
        checks.integer("size", self.size, minimum=1)
        checks.integer("period", self.period, minimum=1)
        checks.integer("allowed_lateness", self.allowed_lateness, minimum=0)

    @property
    def count(self) -> int | None:
        """Number of steps, or None without a first or a last one."""
        return None if self.first is None or self.end is None else self.end - self.first

    @property
    def label(self) -> str:
        """The windows as a part of noise labels. It stays as it is in all versions."""
        return f"{self.size} {self.first} {self.end} {self.allowed_lateness}"

    @property
    def overlap(self) -> int:
        """Number of windows that one event may lie in."""
        return -(-self.size // self.period)

    def assign(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers and steps, int64, one pair for each step that each event (int64 microseconds) lies in.

        Steps before 1970, and those decided only after the end of event time, are left out.
        """
        newest = times // self.period
        rows = np.tile(np.arange(len(times)), self.overlap)
        steps = np.concatenate([newest - back for back in range(self.overlap)])
        inside = (steps >= 0) & (steps <= self.latest(END_OF_TIME, STAGES))
        inside &= times[rows] - steps * self.period < self.size
        if self.first is not None:
            inside &= steps >= self.first
        if self.end is not None:
            inside &= steps < self.end
        return rows[inside], steps[inside]

    def bounds(self, step: int) -> tuple[Timestamp, Timestamp]:
        """Return start and end of a step's window."""
        return Timestamp(micros=step * self.period), Timestamp(micros=step * self.period + self.size)

    def last_moment(self, step: int) -> Timestamp:
        """Return the last microsecond of a step's window, the timestamp of its rows as everywhere in Beam."""
        return Timestamp(micros=step * self.period + self.size - 1)

    def decision_time(self, step: int, timer_offset: int = 0) -> Timestamp:
        """Return the event time at which a stage of the dataflow acts on a step.

        An element emitted at the watermark T may reach the next stage after that stage's timers at T: so each stage
        acts one millisecond after the one before: `timer_offset` is the number of that stage.
        """
        return Timestamp(micros=step * self.period + self.size + self.allowed_lateness + timer_offset * MILLISECOND)

    def latest(self, micros: int, timer_offset: int = 0) -> int:
        """Return the last step on which a stage acts by the event time `micros`; may be negative."""
        return (micros - self.size - self.allowed_lateness - timer_offset * MILLISECOND) // self.period


def windows_in(over: Span, steps: Steps) -> str | int:
    """Return "window", "start", or the number of windows that so many seconds have; one alone is a "window"."""
    if isinstance(over, str):
        if over not in ("window", "start"):
            raise ValueError(f"over must be 'window', 'start' or a number of seconds, got {over!r}")
        return over
    micros = to_micros("over", over)
    if micros % steps.size:
        raise ValueError(f"over must be a multiple of window, got {over:g} s with windows of {steps.size / MICROS:g} s")
    return micros // steps.size if micros > steps.size else "window"


def _boundary(name: str, seconds: float, period: int, length: int) -> int:
    """Return the step that starts at `start`, or the last one that ends by `end`."""
    micros = to_micros(name, seconds, minimum=0)
    if name == "start":
        if micros % period:
            raise ValueError(f"start must be a multiple of the window's period of {period / MICROS:g} s, got {seconds}")
        return micros // period
    return (micros - length) // period
