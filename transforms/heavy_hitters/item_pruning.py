"""Drop the items whose hidden threshold is above the number of all people who have them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import HolderBatch, Keyed, StepKey, decode, seal
from privstream.transforms.timing.step_batches import StepBatches
from privstream.transforms.timing.steps import Steps


class PruneItems(StepBatches, state="prune_items"):
    """Per stream, step and shard of items: keep the items that may still be hits.

    This changes no answer. The monitor counts only people who have charges left, so its count is at most the one taken
    here, and both compare with the same hidden threshold.
    """

    def __init__(self, *, monitor: ThresholdMonitor, steps: Steps, noise: NoiseSource, timer_offset: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.monitor = monitor
        self.noise = noise
        self.tested = Metrics.counter("privstream", "items_tested")
        self.kept = Metrics.counter("privstream", "items_near_heavy")

    def act(self, key: StepKey, records: list[bytes]) -> Iterator[Keyed]:
        """Test the items of one step of one shard; an empty step, in which nobody holds anything, goes on."""
        batches = [decode(HolderBatch, data) for data in records]
        items, counts = np.unique(np.concatenate([batch.items for batch in batches]), return_counts=True)
        noise = self.steps.renewed(self.noise, key.step).derive("stream", key.stream)
        candidates = items[self.monitor.could_exceed(self.steps.alike(key.step), items, counts, noise)]
        self.tested.inc(len(items))
        self.kept.inc(len(candidates))
        kept = [batch.take(rows) for batch in batches if len(rows := np.flatnonzero(np.isin(batch.items, candidates)))]
        if kept or not len(items):
            yield key.stream.encode(), seal(key, HolderBatch.join(kept))
