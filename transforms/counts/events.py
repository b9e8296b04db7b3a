"""Count events by item, whoever sent them: where the unit is an event, nothing of a person is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from privstream.transforms.batches import CountBatch, EventBatch, InStreams, Keyed, StepKey
from privstream.transforms.counts.stream_counts import add_up, sealed_counts
from privstream.transforms.events.dead_letters import late_in_streams
from privstream.transforms.events.domain import Domain
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.steps import Steps


class CountEvents(OnTimeBatches, state="count_events"):
    """Per group of streams, step and shard of items: events in, counts of those that were in
    time out, with sums of values."""

    def __init__(self, *, steps: Steps, timer_offset: int, domain: Domain | None) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late events."""
        events = InStreams.from_bytes(EventBatch, batch)
        self.late.inc(len(events.users))
        yield from late_in_streams(self.steps, key, events, self.domain)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Count one step of one shard of items."""
        events = InStreams.join(EventBatch, [InStreams.from_bytes(EventBatch, batch) for batch in batches])
        found = events.batch
        sums = None if found.values is None else found.values.astype(np.int64)
        ones = CountBatch(found.items, np.ones(len(found.items), np.int64), found.names, None, sums)
        yield sealed_counts(key, add_up(InStreams(events.streams, events.starts, ones)))
