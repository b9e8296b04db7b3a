"""Count events by item, whoever sent them: where the unit is an event, nothing of a person is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from privstream.transforms.batches import CountBatch, EventBatch, Keyed, StepKey, decode, seal, totals
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_events
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps


class CountEvents(OnTimeBatches, state="count_events"):
    """Per stream, step and shard of items: events in, counts of those that were in time out, with sums of values."""

    def __init__(self, *, steps: Steps, timer_offset: int, domain: Domain | None) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late events."""
        events = decode(EventBatch, batch)
        self.late.inc(len(events.items))
        yield from late_events(self.steps, key, events, self.domain)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Count one step of one shard of items."""
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        items, place, counts = np.unique(events.items, return_inverse=True, return_counts=True)
        sums = None if events.values is None else totals(place, events.values.astype(np.int64), len(items))
        to = StepKey(key.stream, 0, key.shard)
        yield to.to_bytes(), seal(key, CountBatch(items, counts, events.names, None, sums))
