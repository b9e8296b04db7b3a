"""What a person may add to a histogram: so many categories in a window, and so many in the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    decode,
    seal,
    string_buffers,
)
from privstream.transforms.events.bounding import place_in_run
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.events.shards import people_key, split_by_shard
from privstream.transforms.histograms.events import Categories, ReadCategories, count
from privstream.transforms.timing.on_time_markers import KeyedBatch
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.public_clock import on_clocks
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps


class SplitRows(ReadCategories):
    """Turn Arrow batches into `EventBatch`es per step and shard of people, all streams together.

    People become keyed 64-bit hashes; an item is stream * domain size + category.
    """

    def __init__(self, *, steps: Steps, categories: Categories, noise: NoiseSource, shards: int) -> None:
        super().__init__(steps=steps, categories=categories)
        self.noise = noise
        self.shards = shards

    def setup(self) -> None:
        """Derive the hash, which depends on nothing but the key."""
        self._user_hash = self.noise.derive("user hash")

    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        """Split one batch."""
        found = self.read(batch)
        if not len(found.rows):
            return
        users = self._user_hash.hash_bytes(*reversed(string_buffers(batch["user"])))[found.rows]
        items = (found.streams * len(self.categories.domain) + found.positions).astype(np.uint64)
        times = batch["time"].to_numpy()[found.rows]
        yield from split_by_shard(users, items, times, found.steps, self.shards)


def first_rows(users: np.ndarray, items: np.ndarray, times: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `limit` rows of each person, by time, then by item, and their places (uint16) in that order.

    Both depend on nothing but the person's own rows, whatever their order in the input: equal rows are alike.
    """
    order = np.lexsort((items, times, users))
    place = place_in_run(users, order)
    rows = order[place[order] < limit]
    return rows, place[rows].astype(np.uint16)


class BoundRows(OnTimeBatches, state="bound_rows"):
    """Per step and shard of people: late batches out, and each person's first rows on, by shard of people."""

    def __init__(self, *, steps: Steps, categories: Categories, timer_offset: int, limit: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.categories = categories
        self.limit = limit
        self.limited = LimitCounter("items", steps)

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late rows."""
        rows = decode(EventBatch, batch)
        self.late.inc(len(rows.users))
        columns, counts = np.unique(rows.items.astype(np.int64), return_counts=True)
        yield from late_counts(self.steps, self.categories, key.step, columns, counts)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Bound one step of one shard of people."""
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        rows, places = first_rows(events.users, events.items, events.times, self.limit)
        self.limited.add(key.step, len(events.users), len(events.users) - len(rows))
        kept = HolderBatch(events.users[rows], events.items[rows], places, Names.none())
        yield people_key(key.shard), seal(key, kept)


class LimitRows(OrderedSteps, state="limit_rows"):
    """Per shard of people: leave out what is beyond a person's share of the whole run, and count the rest.

    Steps are handled in order, so what is left of a person's rows depends on that person's rows alone.
    """

    def __init__(self, *, steps: Steps, categories: Categories, timer_offset: int, limit: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.categories = categories
        self.limit = limit
        self.limited = LimitCounter("contributions", steps)

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: UserCounters) -> Handled:
        """Admit rows while their person has some left, and count what is admitted."""
        rows = HolderBatch.join([batch for _, batch in batches])
        admitted = rows.ranks.astype(np.int64) < self.limit - state.charged(rows.users)
        self.limited.add(step, len(admitted), int(len(admitted) - admitted.sum()))
        charges = Charges.of(rows.users[admitted])
        streams, positions = np.divmod(rows.items[admitted].astype(np.int64), len(self.categories.domain))
        counts = list(on_clocks(count(self.categories, streams, np.full(len(streams), step), positions)))
        return Handled(state.add(charges), charges.to_bytes() if len(charges) else None, counts)

    def describe_late(self, key: StepKey, batch: HolderBatch) -> Iterator[Any]:
        """Describe late rows by stream and category."""
        columns, counts = np.unique(batch.items.astype(np.int64), return_counts=True)
        return late_counts(self.steps, self.categories, key.step, columns, counts)

    def decode(self, key: bytes, segments: list[bytes]) -> UserCounters:
        """Add up the log."""
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    def encode(self, state: UserCounters) -> list[bytes]:
        """Write one entry per person."""
        return state.compact().to_segments()


def late_counts(
    steps: Steps, categories: Categories, step: int, columns: np.ndarray, counts: np.ndarray, stream: int = 0
) -> Iterator[Any]:
    """Describe late events by stream, window and category, with how many there were; columns may run over streams."""
    for column, number in zip(columns.tolist(), counts.tolist(), strict=True):
        beyond, position = divmod(column, len(categories.domain))
        name = categories.streams[stream + beyond]
        record = f"{categories.domain[position]} ({number} events)"
        yield late_letter(steps, step, "late events", record, name)
