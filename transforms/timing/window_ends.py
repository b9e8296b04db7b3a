"""Rows of an ordered stage get the last moment of their window as timestamp, and are not late for it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration
from privstream.transforms.timing.holds import set_timer
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

MICROSECOND = Duration(micros=1)
_STEP = struct.Struct(">q")


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Give rows the last moment of their window as timestamp, and hold the watermark there until they have come.

    A stage that knows of a step only by its data cannot hold the watermark for it: when the first batch comes, the
    watermark may have passed the window's end. So rows pass this stage, whose clock holds the watermark for every
    window, whether it has rows or not.

    Args:
        steps: those of the rows.
        row_type: of the rows, with `window_end`.
        stage: number of this stage, after the one that the rows come from.
    """

    def __init__(self, steps: Steps, row_type: type, *, stage: int) -> None:
        super().__init__()
        self.steps = steps
        self.row_type = row_type
        self.stage = stage

    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        """Bring the rows and the start of the clock under one key."""
        keyed: Any = tuple[bytes, self.row_type | None]  # type: ignore[name-defined]
        together = rows | "UnderOneKey" >> beam.Map(_under_one_key).with_output_types(keyed)
        start = rows.pipeline | "Once" >> beam.Impulse() | "StartClock" >> beam.Map(_start).with_output_types(keyed)
        hold = beam.ParDo(HoldForRows(self.steps, self.stage)).with_output_types(self.row_type)
        return cast(PCollection[Any], (together, start) | "WithStart" >> beam.Flatten() | hold)


def _under_one_key(row: Any) -> tuple[bytes, Any]:
    """Key a row."""
    return b"", row


def _start(_: bytes) -> tuple[bytes, Any]:
    """Make what starts the clock; it holds the watermark back until it has been handled."""
    return b"", None


class HoldForRows(beam.DoFn):
    """Pass rows on; an event-time timer that goes from step to step holds the watermark at the end of the next.

    Where the watermark stands is not told, and there may be billions of steps before it: so further timers, at the ends
    of blocks of 2, 4, 8, .. steps, skip the past. Each round of them finds one more binary digit of the present step.
    """

    PASSED = ReadModifyWriteStateSpec("window_ends_passed", BytesCoder())  # the last step that is over
    DUE = TimerSpec("window_ends_due", TimeDomain.WATERMARK)  # tagged by the binary logarithm of the block's length

    def __init__(self, steps: Steps, stage: int) -> None:
        self.steps = steps
        self.stage = stage
        self._before = (steps.first or 0) - 1
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1

    def process(
        self,
        element: tuple[bytes, Any],
        passed: Any = beam.DoFn.StateParam(PASSED),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Pass a row on, or start the clock."""
        row = element[1]
        if row is not None:
            yield TimestampedValue(row, row.window_end - MICROSECOND)
        elif passed.read() is None:
            self._go_on(None, self._before, passed, due)

    @on_timer(DUE)
    def on_due(
        self,
        time: Any = beam.DoFn.TimestampParam,
        passed: Any = beam.DoFn.StateParam(PASSED),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        """Let go of the steps that are over; runners may deliver timers in any order."""
        before = _STEP.unpack(passed.read())[0]
        over = min(self.steps.latest(time.micros, self.stage), self._last)
        if over > before:
            self._go_on(before, over, passed, due)

    def _go_on(self, before: int | None, over: int, passed: Any, timer: Any) -> None:
        """Set the timers of the next step and of the ends of the blocks that it is in, unless set."""
        passed.write(_STEP.pack(over))
        if over == self._last:
            return
        for level in reversed(range(self._last.bit_length() + 1)):
            target = self._block_end(level, over)
            if before is None or self._block_end(level, before) != target:
                fire = self.steps.decision_time(target, self.stage)
                set_timer(timer, fire, hold=fire if level else self.steps.last_moment(target), tag=str(level))

    def _block_end(self, level: int, over: int) -> int:
        """Return the last step of the block of 2 ** level steps that the next step is in."""
        return min((over + 1) | ((1 << level) - 1), self._last)
