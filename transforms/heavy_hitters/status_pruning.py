"""Drop the items that are down, and stay so whoever of the people who have them still counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, Keyed, StepKey, seal
from privstream.transforms.heavy_hitters.monitor_stage import MonitorStage
from privstream.transforms.stream_groups import InStreams
from privstream.transforms.timing.ordered import Handled

NO_ITEMS = np.empty(0, np.uint64)
NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class MayBeUp:
    """The items of a shard that may be up before a step, which is the one after the last in which somebody had one."""

    step: int
    items: np.ndarray


class PruneDownItems(MonitorStage, state="prune_down_items"):
    """Per stream and shard of items: keep the items that may be up, or may go up.

    This changes no answer. The monitor counts only people who have charges left, so its counts are at most those taken
    here, and both compare with the same hidden thresholds: what is up there may be up here. Everybody with such an item
    is kept, since its end charges them, however few they are.
    """

    monitor: StatusMonitor
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: MayBeUp) -> Handled:
        """Prune one step of one shard; an empty step, in which nobody has anything, goes on."""
        stream, alike = StepKey.from_bytes(key).stream, self.steps.alike(step)
        noise = self.steps.renewed(self.noise, step).derive("stream", stream)
        held = [batch for _, batch in batches]
        items, counts = np.unique(np.concatenate([NO_ITEMS, *(batch.items for batch in held)]), return_counts=True)
        before = self._before(state, alike, noise)
        after = self.monitor.may_be_up(alike, before, items, counts, noise)
        candidates = np.intersect1d(items, np.union1d(before, after), assume_unique=True)
        self.tested.inc(len(items))
        self.kept.inc(len(candidates))
        kept = [batch.take(rows) for batch in held if len(rows := np.flatnonzero(np.isin(batch.items, candidates)))]
        outputs = [(stream.encode(), seal(batches[0][0], HolderBatch.join(kept)))] if kept or not len(items) else []
        changed = len(before) or len(after)
        state = MayBeUp(alike + 1, after)
        return Handled(state, _segment(state) if changed else None, outputs)

    def _before(self, state: MayBeUp, step: int, noise: NoiseSource) -> np.ndarray:
        """Return what may be up before a step, with items that went up while nobody here had anything."""
        items, at = state.items, self.monitor.next_absent_hit(state.step, step, noise)
        while at is not None:
            items = self.monitor.may_be_up(at, items, NO_ITEMS, NO_COUNTS, noise)
            at = self.monitor.next_absent_hit(at + 1, step, noise)
        return items

    def decode(self, key: bytes, segments: list[bytes]) -> MayBeUp:
        """Take what was written last."""
        if not segments:
            return MayBeUp(self.steps.first or 0, NO_ITEMS)
        found: dict[str, Any] = unpack("may be up", 1, segments[-1])
        return MayBeUp(**found)

    def encode(self, state: MayBeUp) -> list[bytes]:
        """Write all."""
        return [_segment(state)]


def _segment(state: MayBeUp) -> bytes:
    return pack("may be up", 1, vars(state))


def by_shard(element: Keyed) -> Iterator[Keyed]:
    """Seal what people have in one step of one shard of items, under each stream and the shard."""
    key = StepKey.from_bytes(element[0])
    for stream, held in InStreams.from_bytes(HolderBatch, element[1]).each():
        to = key._replace(stream=stream)
        yield to._replace(step=0).to_bytes(), seal(to, held)
