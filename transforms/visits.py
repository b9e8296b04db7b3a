"""Steps of a known domain that must be decided although nobody may hold anything."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
import numpy as np
from privstream.mechanisms.noise import NoiseSource
from privstream.mechanisms.threshold_monitor import ThresholdMonitor
from privstream.transforms.batches import HolderBatch, Names, StepKey, encode
from privstream.transforms.steps import Steps


class VisitAbsentHits(beam.DoFn):
    """Per public stream: an empty batch for each step in which an item is a hit even if nobody holds it.

    All visits are sent at once, and go through the stages as data does: timers that set timers would be simpler, but
    not every runner holds the watermark for them.

    Args:
        shard: a shard that no item has, so that no stage takes a visit for the data of a step.
    """

    def __init__(self, *, monitor: ThresholdMonitor, steps: Steps, noise: NoiseSource, shard: int) -> None:
        self.monitor = monitor
        self.steps = steps
        self.noise = noise
        self.shard = shard

    def process(self, stream: str) -> Iterator[tuple[bytes, bytes]]:
        """Look through all steps of the run."""
        if self.steps.first is None or self.steps.end is None:
            raise ValueError("start, and end or horizon, must be given to test a domain in every window")
        noise = self.noise.derive("stream", stream)
        nobody = HolderBatch(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint16), Names.none())
        step = self.monitor.next_absent_hit(self.steps.first, self.steps.end, noise)
        while step is not None:
            yield StepKey(stream, step, self.shard).to_bytes(), encode(nobody)
            step = self.monitor.next_absent_hit(step + 1, self.steps.end, noise)
