"""Counts per item of many streams together, and how they travel: by group of streams and shard of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from privstream.transforms.batches import CountBatch, InStreams, Keyed, StepKey, group_of, seal_encoded, sealed_batch
from privstream.transforms.events.bounding import first_of_run

StreamCounts = InStreams[CountBatch]


def add_up(rows: StreamCounts) -> StreamCounts:
    """Add up the rows of each item of a stream; items are distinct and increasing in each stream then."""
    codes, batch = rows.codes, rows.batch
    order = np.lexsort((batch.items, codes)) if len(rows.streams) > 1 else np.argsort(batch.items)
    starts = np.flatnonzero(first_of_run(codes[order], batch.items[order]))

    def total(column: Any) -> Any:
        return column if column is None or not len(starts) else np.add.reduceat(column[order], starts)

    kept = order[starts]
    added = CountBatch(batch.items[kept], total(batch.counts), batch.names, total(batch.new), total(batch.sums))
    return InStreams(rows.streams, np.searchsorted(codes[kept], np.arange(len(rows.streams) + 1)), added)


def joined(parts: Sequence[StreamCounts]) -> StreamCounts:
    """Add counts up, stream by stream and item by item."""
    return add_up(InStreams.join(CountBatch, parts))


def by_group(step: int, counted: StreamCounts, shards: int) -> Iterator[Keyed]:
    """Send counts of a step on by group of streams and shard of items; streams without any are left out."""
    group = np.array([int(group_of(stream)) for stream in counted.streams], np.int64)[counted.codes]
    place = group * shards + (counted.batch.items % np.uint64(shards)).astype(np.int64)
    for number in np.unique(place).tolist():
        to = StepKey(str(number // shards), step, number % shards)
        yield sealed_counts(to, counted.take(np.flatnonzero(place == number)))


def sealed_counts(key: StepKey, counted: StreamCounts) -> Keyed:
    """Return what `PublishWindows` takes."""
    return key._replace(step=0).to_bytes(), seal_encoded(key, counted.to_bytes())


def unsealed_counts(record: bytes) -> StreamCounts:
    """Return the counts in what `sealed_counts` returned."""
    return InStreams.from_bytes(CountBatch, sealed_batch(record))
