"""Count events by item, whoever sent them: where the unit is an event, nothing of a person is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from privstream.transforms.batches import CountBatch, EventBatch, InStreams, Keyed, StepKey
from privstream.transforms.counts.stream_counts import add_up, sealed_counts
from privstream.transforms.events.bounding import BoundEvents
from typing_extensions import override


class CountEvents(BoundEvents, state="count_events"):
    """Per group of streams, step and shard of items: events in, counts of those that were in
    time out, with sums of values."""

    @override
    def bound(self, key: StepKey, events: InStreams[EventBatch]) -> Iterator[Keyed]:
        found = events.batch
        sums = None if found.values is None else found.values.astype(np.int64)
        ones = CountBatch(found.items, np.ones(len(found.items), np.int64), found.names, None, sums)
        yield sealed_counts(key, add_up(InStreams(events.streams, events.starts, ones)))
