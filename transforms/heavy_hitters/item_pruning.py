"""Drop the items whose hidden threshold is above the number of all people who have them."""

from __future__ import annotations

from collections.abc import Iterator

from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import HolderBatch, Keyed, StepKey
from privstream.transforms.heavy_hitters.item_counts import ItemCounts
from privstream.transforms.stream_groups import InStreams, seal_parts
from privstream.transforms.timing.step_batches import StepBatches
from privstream.transforms.timing.steps import Steps


class PruneItems(StepBatches, state="prune_items"):
    """Per group of streams, step and shard of items: keep the items that may still be hits.

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
        held = InStreams.join(HolderBatch, [InStreams.from_bytes(HolderBatch, data) for data in records])
        found = ItemCounts.of(held)
        near = found.could_exceed(self.monitor, self.steps.alike(key.step), self.steps.renewed(self.noise, key.step))
        self.tested.inc(len(near))
        self.kept.inc(int(near.sum()))
        for stream, batch in (*InStreams.empty(HolderBatch, held.without_rows).each(), *found.having(near).each()):
            for part in seal_parts(key._replace(stream=stream), batch):
                yield stream.encode(), part
