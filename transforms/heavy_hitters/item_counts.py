"""How many people have each item, in each stream of a record; and which of these items may be hits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from privstream.mechanisms.monitor.threshold_monitor import ItemMonitor
from privstream.mechanisms.noise.routed import SideBySide
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import HolderBatch
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.stream_groups import InStreams


@dataclass(frozen=True, eq=False)
class ItemCounts:
    """The items of each stream, stream after stream, in the order of items.

    Attributes:
        held: who has what.
        order: its rows, in the order of streams and items.
        items: uint64, shape (n,): distinct in each stream.
        counts: int64, shape (n,): how many rows each of them has.
        starts: the items of the i-th stream that has any are starts[i] to starts[i + 1].
        streams: names of these streams.
    """

    held: InStreams[HolderBatch]
    order: np.ndarray
    items: np.ndarray
    counts: np.ndarray
    starts: list[int]
    streams: list[str]

    @classmethod
    def of(cls, held: InStreams[HolderBatch]) -> ItemCounts:
        """Count."""
        codes = held.codes
        order = np.lexsort((held.batch.items, codes))
        first = np.flatnonzero(first_of_run(codes[order], held.batch.items[order]))
        items, codes = held.batch.items[order][first], codes[order][first]
        starts = np.flatnonzero(first_of_run(codes))
        streams = [held.streams[code] for code in codes[starts].tolist()]
        return cls(held, order, items, np.diff(np.append(first, len(order))), [*starts.tolist(), len(items)], streams)

    @property
    def runs(self) -> list[tuple[str, slice]]:
        """The streams that have items, and which items are theirs."""
        return [(name, slice(*ab)) for name, ab in zip(self.streams, itertools.pairwise(self.starts), strict=True)]

    def could_exceed(self, monitor: ItemMonitor[Any], step: int, noise: NoiseSource) -> np.ndarray:
        """Return which items may be hits, each tested once in each stream; `noise` is that of all streams."""
        sources = [noise.derive("stream", stream) for stream in self.streams]
        if monitor.domain_size is None and sources:
            return monitor.could_exceed(step, self.items, self.counts, SideBySide(sources, self.starts))
        # Each stream has its own items that are hits although nobody has them.
        parts = zip(sources, self.runs, strict=True)
        tested = [monitor.could_exceed(step, self.items[some], self.counts[some], s) for s, (_, some) in parts]
        return np.concatenate([np.zeros(0, bool), *tested])

    def having(self, kept: np.ndarray) -> InStreams[HolderBatch]:
        """Return who has some of the items, given by a mask."""
        return self.held.take(np.sort(self.order[np.repeat(kept, self.counts)]))
