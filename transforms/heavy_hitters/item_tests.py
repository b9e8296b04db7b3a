"""Drop the items whose hidden threshold even all their holders together miss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import HolderBatch, StepKey, decode, seal
from privstream.transforms.timing.steps import Steps


class TestItems(beam.DoFn):
    """Per stream, step and shard of items: keep the items that may still be hits.

    This changes no answer. The monitor counts only holders that have charges left, so its count is at most the one
    taken here, and both compare with the same hidden threshold.
    """

    __test__ = False  # not a test case

    BATCHES = BagStateSpec("test_items_batches", BytesCoder())  # encoded batches of a step that is still open
    DUE = TimerSpec("test_items_due", TimeDomain.WATERMARK)

    def __init__(self, *, monitor: ThresholdMonitor, steps: Steps, noise: NoiseSource, stage: int) -> None:
        self.steps = steps
        self.stage = stage
        self.monitor = monitor
        self.noise = noise
        self.tested = Metrics.counter("privstream", "items_tested")
        self.kept = Metrics.counter("privstream", "items_near_heavy")

    def process(
        self,
        element: tuple[bytes, bytes],
        batches: Any = beam.DoFn.StateParam(BATCHES),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        """Keep a batch until its step is due."""
        key, data = element
        batches.add(data)
        due.set(self.steps.decision_time(StepKey.from_bytes(key).step, self.stage))

    @on_timer(DUE)
    def on_due(self, key: Any = beam.DoFn.KeyParam, batches: Any = beam.DoFn.StateParam(BATCHES)) -> Iterator[Any]:
        """Test the items, and free the state."""
        held = [decode(HolderBatch, data) for data in batches.read()]
        batches.clear()
        if held:
            yield from self.test(StepKey.from_bytes(key), held)

    def test(self, key: StepKey, batches: list[HolderBatch]) -> Iterator[tuple[bytes, bytes]]:
        """Test the items of one step of one shard; a visit, which holds none, goes on."""
        items, counts = np.unique(np.concatenate([batch.items for batch in batches]), return_counts=True)
        noise = self.noise.derive("stream", key.stream)
        candidates = items[self.monitor.may_hit(key.step, items, counts, noise)]
        self.tested.inc(len(items))
        self.kept.inc(len(candidates))
        kept = [batch.take(rows) for batch in batches if len(rows := np.flatnonzero(np.isin(batch.items, candidates)))]
        if kept or not len(items):
            yield key.stream.encode(), seal(key, HolderBatch.join(kept))
