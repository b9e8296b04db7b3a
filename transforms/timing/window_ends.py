"""Rows of an ordered stage get the last moment of their window as timestamp, and are not late for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import TimestampedValue
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.clocked import ClockedSteps, Outputs
from privstream.transforms.timing.public_clock import StartClocks, stepped
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

ONE_KEY = ""

Choose = Callable[[list[Any]], list[Any]]
Follow = Callable[[list[Any], list[Any]], list[Any]]


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Give rows the last moment of their window as timestamp, and hold the watermark there until they have come.

    A stage that knows of a step only by its data cannot hold the watermark for it: when the first batch comes, the
    watermark may have passed the window's end. So rows pass this stage, whose clock holds the watermark for every
    window, whether it has rows or not, and publishes them a millisecond later.

    Args:
        steps: those of the rows; without a first or a last one, all that there are.
        row_type: of the rows, with `window_end`.
        timer_offset: that of this stage, after the one that the rows come from.
        choose: from all rows of a window, in any order, to those that are published.
        follow: from the chosen rows, and the rows published for the window before, to those that are published.
    """

    def __init__(
        self, steps: Steps, row_type: type, *, timer_offset: int, choose: Choose = list, follow: Follow | None = None
    ) -> None:
        super().__init__()
        self.choose = choose
        self.follow = follow
        end = steps.latest(END_OF_TIME, STAGES) + 1 if steps.end is None else steps.end
        self.steps = replace(steps, first=steps.first or 0, end=end, renewal=None)
        self.starts_afresh = steps.starts_afresh
        self.row_type = row_type
        self.timer_offset = timer_offset

    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        """Bring the rows and the start of the clock under one key."""
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(under_one_key, coder, self.steps).with_output_types(Keyed)
        once = rows.pipeline | "Once" >> beam.Impulse()
        start = once | "StartClock" >> beam.ParDo(StartClocks((ONE_KEY,))).with_output_types(Keyed)
        publish = PublishAtEnds(self.steps, coder, self.timer_offset, self.choose, self.follow, self.starts_afresh)
        together = (encoded, start) | "WithStart" >> beam.Flatten()
        return cast(PCollection[Any], together | beam.ParDo(publish).with_output_types(self.row_type))


def under_one_key(row: Any, coder: Coder, steps: Steps) -> Keyed:
    """Encode a row, with the step of its window."""
    step = steps.ending(row.window_end)
    return ONE_KEY.encode(), stepped(int(step), coder.encode(row))


class PublishAtEnds(ClockedSteps, state="window_ends"):
    """Keep rows until their step is over.

    A timer does not know where the watermark is, and there may be billions of steps before it: so the blocks of the
    clock have 2, 4, 8, .. steps. Each round of their timers finds one more binary digit of the present step.

    What is remembered are the rows of the last step, if those of the next one depend on them. No clock starts afresh
    here: there may be billions of steps before the first row.

    Rows could be passed on as they come. But FnApiRunner gives side inputs again whatever a stage emitted before its
    last bundle, and the last is that of the timers.
    """

    chunk = 1 << 62

    def __init__(
        self,
        steps: Steps,
        coder: Coder,
        timer_offset: int,
        choose: Choose,
        follow: Follow | None,
        starts_afresh: Callable[[int, int], bool],
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.starts_afresh = starts_afresh
        self.coder = coder
        self.choose = choose
        self.follow = follow
        self._blocks = tuple(1 << level for level in range(self._last.bit_length() + 1))

    def initial(self, key: bytes) -> list[Any]:
        """Remember no rows."""
        return []

    def snapshot(self, state: list[Any]) -> bytes:
        """Encode rows; nothing if there are none."""
        rows = {str(place): self.coder.encode(row) for place, row in enumerate(state)}
        return pack("published rows", 1, rows) if rows else b""

    def restore(self, data: bytes) -> list[Any]:
        """Decode what `snapshot` wrote."""
        found: dict[str, Any] = unpack("published rows", 1, data) if data else {}
        return [self.coder.decode(row) for row in found.values()]

    def count(self, steps: int) -> None:
        """Count nothing: nothing is decided here, and there may be billions of steps before the first row."""

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Pass a row of a step that is over on; no proper runner lets that happen."""
        yield TimestampedValue(self.coder.decode(batch), self.steps.last_moment(step))

    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: list[Any]
    ) -> tuple[list[Any], Outputs]:
        """Publish rows of all steps that are over."""
        published = {first - 1: state}
        for step, encoded in batches.items():
            rows = self.choose([self.coder.decode(row) for row in encoded])
            before = [] if self.starts_afresh(step - 1, step) else published.get(step - 1, [])
            published[step] = rows if self.follow is None else self.follow(rows, before)
        remembered = [] if self.follow is None else published.get(last, [])
        return remembered, [(step, row) for step in batches for row in published[step]]
