"""Drop the items whose hidden threshold is above the number of all people who have them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.side_by_side import SideBySide
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import HolderBatch, Keyed, StepKey
from privstream.transforms.events.bounding import first_of_run
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
        kept = held.take(self._near_heavy(key.step, held))
        for stream, batch in (*InStreams.empty(HolderBatch, held.without_rows).each(), *kept.each()):
            for part in seal_parts(key._replace(stream=stream), batch):
                yield stream.encode(), part

    def _near_heavy(self, step: int, held: InStreams[HolderBatch]) -> np.ndarray:
        """Return the rows, increasing, of the items that may still be hits, each tested once in each stream."""
        codes = held.codes
        order = np.lexsort((held.batch.items, codes))
        first = first_of_run(codes[order], held.batch.items[order])
        items, streams = held.batch.items[order][first], codes[order][first]
        counts = np.diff(np.append(np.flatnonzero(first), len(order)))
        noise, alike = self.steps.renewed(self.noise, step), self.steps.alike(step)
        starts = [*np.flatnonzero(first_of_run(streams)).tolist(), len(items)]
        sources = [noise.derive("stream", held.streams[stream]) for stream in streams[starts[:-1]].tolist()]
        found = np.zeros(0, bool)
        if self.monitor.domain_size is None and sources:
            found = self.monitor.could_exceed(alike, items, counts, SideBySide(sources, starts))
        elif sources:  # each stream has its own items that are hits although nobody has them
            parts = zip(sources, itertools.pairwise(starts), strict=True)
            found = np.concatenate(
                [self.monitor.could_exceed(alike, items[a:b], counts[a:b], s) for s, (a, b) in parts]
            )
        self.tested.inc(len(items))
        self.kept.inc(int(found.sum()))
        return np.sort(order[np.repeat(found, counts)])
