"""Drop the items that are down, and stay so whoever of the people who have them still counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import (
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    seal_encoded,
    sealed_batch,
    string_buffers,
)
from privstream.transforms.events.late import late_in_streams
from privstream.transforms.heavy_hitters.item_counts import ItemCounts
from privstream.transforms.heavy_hitters.monitor_stage import MonitorStage
from privstream.transforms.stream_groups import InStreams, seal_parts
from privstream.transforms.timing.ordered import Handled

NO_ITEMS = np.empty(0, np.uint64)
NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class MayBeUp:
    """The items of a shard that may be up before a step, which is the one after the last in which somebody had one."""

    step: int
    items: np.ndarray


MayBeUpIn = dict[str, MayBeUp]
"""By stream; nothing may be up in others. An entry is never changed."""


class PruneDownItems(MonitorStage, state="prune_down_items"):
    """Per group of streams and shard of items: keep the items that may be up, or may go up.

    This changes no answer. The monitor counts only people who have charges left, so its counts are at most those taken
    here, and both compare with the same hidden thresholds: what is up there may be up here. Everybody with such an item
    is kept, since its end charges them, however few they are.

    The log has, of each step, the streams in which something may be up, or no longer may.
    """

    monitor: StatusMonitor
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")

    def handle(
        self, key: bytes, step: int, batches: list[tuple[StepKey, InStreams[HolderBatch]]], state: MayBeUpIn
    ) -> Handled:
        """Prune one step of one shard; streams without rows, in which nobody has anything, go on."""
        found = ItemCounts.of(InStreams.join(HolderBatch, [batch for _, batch in batches]))
        kept, after, changed = self._test(step, found, state)
        self.tested.inc(len(kept))
        self.kept.inc(int(kept.sum()))
        empty = InStreams.empty(HolderBatch, found.held.without_rows)
        to = batches[0][0]
        outputs = [
            (stream.encode(), part)
            for stream, batch in (*empty.each(), *found.having(kept).each())
            for part in seal_parts(to._replace(stream=stream), batch)
        ]
        segment = _segment({stream: after[stream] for stream in changed}) if changed else None
        return Handled(self._held(state | after), segment, outputs)

    def _test(self, step: int, found: ItemCounts, state: MayBeUpIn) -> tuple[np.ndarray, MayBeUpIn, list[str]]:
        """Return which items may be up before or after a step, what follows, and in which streams that must be kept."""
        alike, noise = self.steps.alike(step), self.steps.renewed(self.noise, step)
        listed = self.monitor.domain_size is not None
        kept = np.zeros(len(found.items), bool) if listed else found.could_exceed(self.monitor, alike, noise)
        following: MayBeUpIn = {}
        changed: list[str] = []
        for stream, some in (*found.runs, *((stream, slice(0)) for stream in found.held.without_rows)):
            items, rising = found.items[some], kept[some]
            before, after = NO_ITEMS, items[rising] if rising.any() else NO_ITEMS
            if listed or stream in state:
                source = noise.derive("stream", stream)
                before = self._before(state.get(stream, self._nothing), alike, source)
                after = self.monitor.may_be_up(alike, before, items, found.counts[some], source)
                kept[some] = np.isin(items, np.union1d(before, after))
            following[stream] = MayBeUp(alike + 1, after)
            if len(before) or len(after):
                changed.append(stream)
        return kept, following, changed

    @property
    def _nothing(self) -> MayBeUp:
        return MayBeUp(self.steps.first or 0, NO_ITEMS)

    def _before(self, state: MayBeUp, step: int, noise: NoiseSource) -> np.ndarray:
        """Return what may be up before a step, with items that went up while nobody here had anything."""
        items, at = state.items, self.monitor.next_absent_hit(state.step, step, noise)
        while at is not None:
            items = self.monitor.may_be_up(at, items, NO_ITEMS, NO_COUNTS, noise)
            at = self.monitor.next_absent_hit(at + 1, step, noise)
        return items

    def _held(self, state: MayBeUpIn) -> MayBeUpIn:
        """Leave out streams in which nothing may be up, unless items of a list may go up although nobody has them."""
        listed = self.monitor.domain_size is not None
        return {stream: one for stream, one in state.items() if listed or len(one.items)}

    def unpack(self, record: bytes) -> InStreams[HolderBatch]:
        """Return the holdings in a sealed record."""
        return InStreams.from_bytes(HolderBatch, sealed_batch(record))

    def describe_late(self, key: StepKey, batch: InStreams[HolderBatch]) -> Iterator[Any]:
        """Describe late holdings by item."""
        return late_in_streams(self.steps, key, batch, self.domain)

    def decode(self, key: bytes, segments: list[bytes]) -> MayBeUpIn:
        """Take what was written last of each stream."""
        state: MayBeUpIn = {}
        for segment in segments:
            state.update(_changes(segment))
        return self._held(state)

    def encode(self, state: MayBeUpIn) -> list[bytes]:
        """Write all."""
        return [_segment(state)]


def _segment(changes: MayBeUpIn) -> bytes:
    streams = sorted(changes)
    offsets, text = string_buffers(pa.array(streams, pa.large_string()))
    parts = [changes[stream].items for stream in streams]
    columns = {
        "offsets": offsets,
        "text": text,
        "steps": np.array([changes[stream].step for stream in streams], np.int64),
        "starts": np.cumsum([0, *map(len, parts)], dtype=np.int64),
        "items": np.concatenate([NO_ITEMS, *parts]),
    }
    return pack("may be up in streams", 1, columns)


def _changes(segment: bytes) -> MayBeUpIn:
    """Decode what `_segment` wrote."""
    found: dict[str, Any] = unpack("may be up in streams", 1, segment)
    streams = Names(np.arange(len(found["steps"]), dtype=np.uint64), found["offsets"], found["text"]).to_arrow()
    parts = np.split(found["items"], found["starts"][1:-1])
    columns = zip(streams.to_pylist(), found["steps"].tolist(), parts, strict=False)
    return {stream: MayBeUp(step, items) for stream, step, items in columns}


def by_shard(element: Keyed) -> Keyed:
    """Seal what people have in one step of one shard of items, under its group of streams and the shard."""
    key = StepKey.from_bytes(element[0])
    return key._replace(step=0).to_bytes(), seal_encoded(key, element[1])
