"""Steps of a known domain that must be decided even if nobody has an item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from privstream.mechanisms.monitor.threshold_monitor import ItemMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, StepKey
from privstream.transforms.stream_groups import InStreams, group_of
from privstream.transforms.timing.on_time_markers import KeyedBatch, digest
from privstream.transforms.timing.steps import Steps


class EmitEmptySteps(beam.DoFn):
    """An empty batch for each step of a public stream in which an item is a hit even if nobody has it.

    All of them are sent at once, and go through all stages as events do: timers in the monitor that set timers would be
    simpler, but not every runner holds the watermark for them.

    Args:
        shard: a shard that no person has.
    """

    def __init__(
        self, *, monitor: ItemMonitor[Any], steps: Steps, noise: NoiseSource, streams: tuple[str, ...], shard: int
    ) -> None:
        self.monitor = monitor
        self.steps = steps
        self.noise = noise
        self.streams = streams
        self.shard = shard

    def process(self, _: bytes) -> Iterator[KeyedBatch]:
        """Look through all steps of the run, in every stream."""
        for stream in self.streams:
            nobody = InStreams.empty(EventBatch, [stream]).to_bytes()
            for step in self.steps_of(stream):
                yield StepKey(group_of(stream), step, self.shard).to_bytes(), (digest(nobody), nobody)

    def steps_of(self, stream: str) -> Iterator[int]:
        """Find these steps."""
        if self.steps.first is None or self.steps.end is None:
            raise ValueError("start, and end or horizon, must be given to test a domain in every window")
        step = self.steps.first
        while step < self.steps.end:
            end = min(self.steps.end, self.steps.last_alike(step) + 1)
            noise = self.steps.renewed(self.noise, step).derive("stream", stream)
            later = step - self.steps.alike(step)  # than the steps of the mechanism
            found = self.monitor.next_absent_hit(step - later, end - later, noise)
            if found is not None:
                yield found + later
            step = end if found is None else found + later + 1
