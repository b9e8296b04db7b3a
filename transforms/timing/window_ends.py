"""Rows of an ordered stage get the last moment of their window as timestamp, and are not late for it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder, Coder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.clocked import SEED
from privstream.transforms.timing.holds import set_timer
from privstream.transforms.timing.runner_check import check_state
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

_STEP = struct.Struct(">q")


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Give rows the last moment of their window as timestamp, and hold the watermark there until they have come.

    A stage that knows of a step only by its data cannot hold the watermark for it: when the first batch comes, the
    watermark may have passed the window's end. So rows pass this stage, whose clock holds the watermark for every
    window, whether it has rows or not, and publishes them a millisecond later.

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
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(_under_one_key, coder).with_output_types(Keyed)
        start = rows.pipeline | "Once" >> beam.Impulse() | "StartClock" >> beam.Map(_start).with_output_types(Keyed)
        publish = beam.ParDo(PublishAtEnds(self.steps, coder, self.stage)).with_output_types(self.row_type)
        return cast(PCollection[Any], (encoded, start) | "WithStart" >> beam.Flatten() | publish)


def _under_one_key(row: Any, coder: Coder) -> Keyed:
    """Encode a row."""
    return b"", coder.encode(row)


def _start(_: bytes) -> Keyed:
    """Make what starts the clock; it holds the watermark back until it has been handled."""
    return b"", SEED


class PublishAtEnds(beam.DoFn):
    """Keep rows until their step is over; an event-time timer that goes from step to step holds the watermark for them.

    Where the watermark stands is not told, and there may be billions of steps before it: so further timers, at the ends
    of blocks of 2, 4, 8, .. steps, skip the past. Each round of them finds one more binary digit of the present step.

    Rows could be passed on as they come. But FnApiRunner gives side inputs again whatever a stage emitted before its
    last bundle, and the last is that of the timers.
    """

    ROWS = BagStateSpec("window_ends_rows", BytesCoder())  # encoded rows of steps that are not over
    PASSED = ReadModifyWriteStateSpec("window_ends_passed", BytesCoder())  # the last step that is over
    DUE = TimerSpec("window_ends_due", TimeDomain.WATERMARK)  # tagged by the binary logarithm of the block's length

    def __init__(self, steps: Steps, coder: Coder, stage: int) -> None:
        self.steps = steps
        self.coder = coder
        self.stage = stage
        self._before = (steps.first or 0) - 1
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1

    def process(
        self,
        element: Keyed,
        rows: Any = beam.DoFn.StateParam(ROWS),
        passed: Any = beam.DoFn.StateParam(PASSED),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Keep a row, or start the clock; a row of a step that is over, which no proper runner lets happen, goes on."""
        check_state(passed)
        over, data = _read(passed), element[1]
        if data == SEED:
            if over is None:
                self._go_on(None, self._before, passed, due)
        elif over is not None and self._step(self.coder.decode(data)) <= over:
            yield self._stamped(self.coder.decode(data))
        else:
            rows.add(data)

    @on_timer(DUE)
    def on_due(
        self,
        time: Any = beam.DoFn.TimestampParam,
        rows: Any = beam.DoFn.StateParam(ROWS),
        passed: Any = beam.DoFn.StateParam(PASSED),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Publish the rows of all steps that are over; runners may deliver timers in any order."""
        before = _read(passed)
        over = min(self.steps.latest(time.micros, self.stage), self._last)
        if before is None or over <= before:
            return
        waiting = list(rows.read())
        if waiting:
            rows.clear()
        for data in waiting:
            row = self.coder.decode(data)
            if self._step(row) <= over:
                yield self._stamped(row)
            else:
                rows.add(data)
        self._go_on(before, over, passed, due)

    def _step(self, row: Any) -> int:
        """Return the step of a row's window."""
        return int((row.window_end.micros - self.steps.size) // self.steps.period)

    def _stamped(self, row: Any) -> TimestampedValue[Any]:
        """Give a row its time."""
        return TimestampedValue(row, self.steps.last_moment(self._step(row)))

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


def _read(passed: Any) -> int | None:
    """Return the last step that is over; None before the clock has been started."""
    data = passed.read()
    return None if data is None else int(_STEP.unpack(data)[0])
