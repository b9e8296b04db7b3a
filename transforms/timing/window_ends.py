"""Rows of all shards together, window by window: a stage chooses what is published of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

Choose = Callable[[list[Any]], list[Any]]
Follow = Callable[[list[Any], list[Any]], list[Any]]


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Choose, of all rows of a window, those that are published.

    Args:
        steps: those of the rows.
        row_type: of the rows, with `window_end`.
        timer_offset: that of this stage, after the one that the rows come from.
        choose: from all rows of a window, in any order, to those that are published.
        follow: from the chosen rows, and the rows published for the window before, to those that are published.
    """

    def __init__(
        self, steps: Steps, row_type: type, *, timer_offset: int, choose: Choose = list, follow: Follow | None = None
    ) -> None:
        super().__init__()
        self.steps = steps
        self.row_type = row_type
        self.timer_offset = timer_offset
        self.choose = choose
        self.follow = follow

    @override
    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(under_one_key, coder, self.steps).with_output_types(Keyed)
        clocked = encoded | "WithClock" >> WithClock(self.steps)
        publish = PublishAtEnds(
            steps=self.steps, timer_offset=self.timer_offset, coder=coder, choose=self.choose, follow=self.follow
        )
        return cast(PCollection[Any], clocked | beam.ParDo(publish).with_output_types(self.row_type))


def under_one_key(row: Any, coder: Coder, steps: Steps) -> Keyed:
    """Encode a row, with the step of its window."""
    return on_clock(int(steps.ending(row.window_end)), coder.encode(row))


class PublishAtEnds(StepFn, state="window_ends"):
    """Publish the rows of a window together. What is remembered are those of the last one, if others depend on them."""

    def __init__(self, *, steps: Steps, timer_offset: int, coder: Coder, choose: Choose, follow: Follow | None) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.coder = coder
        self.choose = choose
        self.follow = follow

    @override
    def initial(self, key: bytes) -> list[Any]:
        return []

    @override
    def snapshot(self, state: list[Any]) -> bytes:
        return pack("published rows", 1, {str(place): self.coder.encode(row) for place, row in enumerate(state)})

    @override
    def restore(self, data: bytes) -> list[Any]:
        found: dict[str, Any] = unpack("published rows", 1, data)
        return [self.coder.decode(row) for row in found.values()]

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = self.choose([self.coder.decode(row) for row in batches])
        if self.follow is None:
            return state, rows
        rows = self.follow(rows, state)
        return rows, rows
