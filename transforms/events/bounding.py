"""Bound what one person contributes to a step: distinct items, and at most so many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.noise.routed import SideBySide, SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, HolderBatch, Keyed, StepKey, seal_encoded, totals
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_in_streams
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.events.shards import people_key
from privstream.transforms.stream_groups import InStreams
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps

SELECTIONS = ("last", "first", "random")


class Kept(NamedTuple):
    """What is kept of events.

    Attributes:
        rows: one for each item of a person that is kept.
        ranks: uint16, for each of these the place of its item in a random order of the person's kept items.
        left_out: how many items of people are not kept, however often and in whichever batches they came.
    """

    rows: np.ndarray
    ranks: np.ndarray
    left_out: int


def bound_items(
    users: np.ndarray,
    items: np.ndarray,
    times: np.ndarray,
    *,
    limit: int,
    selection: str,
    noise: NoiseSource,
) -> Kept:
    """Choose rows such that each person keeps at most `limit` distinct items.

    Args:
        users: uint64 hashes, shape (n,).
        items: uint64, shape (n,).
        times: int64 microseconds, shape (n,).
        limit: items kept per person, >= 1.
        selection: "last" or "first" by time (ties by item), or "random".
        noise: orders a person's items for "random", and for the ranks.

    Returns:
        What is kept: a function of each person's own events, the limit and the key alone, whatever their order in the
        input.
    """
    return bound_people(
        users,
        items,
        times,
        limit=limit,
        selection=selection,
        lots=lambda rows: noise.words(np.stack([users[rows], items[rows]], axis=1))[:, 0, 0],
    )


def bound_people(
    users: np.ndarray,
    items: np.ndarray,
    times: np.ndarray,
    *,
    limit: int,
    selection: str,
    lots: Callable[[np.ndarray], np.ndarray],
) -> Kept:
    """Choose rows as `bound_items` does, where `users` are any uint64 numbers.

    `lots` returns random numbers, uint64, for rows in the order of `users`.
    """
    order = np.argsort(users)
    alone = first_of_run(users[order])
    alone[:-1] &= alone[1:]
    one, many = order[alone], order[~alone]  # most have one event in a window: nothing to choose, nothing to draw
    rows, ranks, left_out = _choose(
        users[many],
        items[many],
        -times[many] if selection == "last" else times[many],
        limit,
        random=selection == "random",
        lots=lambda rows: lots(many[rows]),
    )
    return Kept(np.concatenate([one, many[rows]]), np.concatenate([np.zeros(len(one), np.uint16), ranks]), left_out)


def _choose(
    users: np.ndarray,
    items: np.ndarray,
    times: np.ndarray,
    limit: int,
    *,
    random: bool,
    lots: Callable[[np.ndarray], np.ndarray],
) -> Kept:
    """Choose rows by least time, or at random, and rank them."""
    order = np.lexsort((times, items, users))
    held = order[first_of_run(users[order], items[order])]  # by person, then by item
    if limit == 1 and not random and len(held):
        starts = np.flatnonzero(first_of_run(users[held]))
        least = np.minimum.reduceat(times[held], starts)
        least = np.repeat(least, np.diff(np.append(starts, len(held))))
        rows = held[times[held] == least]
        rows = rows[first_of_run(users[rows])]
        return Kept(rows, np.zeros(len(rows), np.uint16), len(held) - len(rows))
    lot = lots(held)
    priority = lot if random else times[held]
    place = place_in_run(users[held], np.lexsort((items[held], priority, users[held])))
    kept = place < limit
    rows, lot = held[kept], lot[kept]
    ranks = place[kept] if random else place_in_run(users[rows], np.lexsort((items[rows], lot, users[rows])))
    return Kept(rows, ranks.astype(np.uint16), len(held) - len(rows))


def added_up(users: np.ndarray, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row the sum, int64, of the whole numbers in all rows with its person and item."""
    order = np.lexsort((items, users))
    first = first_of_run(users[order], items[order])
    pairs = np.empty(len(order), np.int64)
    pairs[order] = np.cumsum(first) - 1
    return totals(pairs, values.astype(np.int64), int(first.sum()))[pairs]


def first_of_run(*columns: np.ndarray) -> np.ndarray:
    """Mark the rows of sorted columns that differ from the row before."""
    first = np.ones(len(columns[0]), bool)
    if len(first):
        first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def place_in_run(users: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return for each row how many rows of the same person come before it in `order`, which sorts by person."""
    first = np.flatnonzero(first_of_run(users[order]))
    lengths = np.diff(np.append(first, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return place


class BoundPerWindow(OnTimeBatches, state="bound_per_window"):
    """Per group of streams, step and shard of people: events in, bounded holdings out, with sums of values if any.

    Each stream is bounded by itself. They go on keyed by group of streams and shard of items, or `by_people`, for
    `BoundAcrossWindows`, by shard of people.

    A batch without an on-time marker (see `WithOnTimeMarkers`) is late: it is counted and described in the dead-letter
    output, never used. When the step is due, all state of the key is freed.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        items_per_step: int,
        selection: str,
        item_shards: int,
        by_people: bool = False,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain
        self._sources = SourcesByName(partial(noise.derive, "item order"))
        self.items_per_step = items_per_step
        self.selection = selection
        self.item_shards = item_shards
        self.by_people = by_people
        self.limited = LimitCounter("items", steps)

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late events."""
        events = InStreams.from_bytes(EventBatch, batch)
        self.late.inc(len(events.users))
        yield from late_in_streams(self.steps, key, events, self.domain)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Bound one step of one shard of people."""
        events = InStreams.join(EventBatch, [InStreams.from_bytes(EventBatch, batch) for batch in batches])
        rows, people = events.batch, events.people()
        kept = bound_people(
            people,
            rows.items,
            rows.times,
            limit=self.items_per_step,
            selection=self.selection,
            lots=lambda some: self._lots(key.step, events, some),
        )
        self.limited.add(key.step, len(kept.rows) + kept.left_out, kept.left_out)
        values = None if rows.values is None else added_up(people, rows.items, rows.values)[kept.rows]
        batch = HolderBatch(rows.users[kept.rows], rows.items[kept.rows], kept.ranks, rows.names, values)
        held = InStreams.sort(events.streams, events.codes[kept.rows], batch)
        if self.by_people:
            yield people_key(key.shard), seal_encoded(key, held.to_bytes())
        else:
            yield from split_by_item(key, held, self.item_shards)

    def _lots(self, step: int, events: InStreams[EventBatch], rows: np.ndarray) -> np.ndarray:
        """Draw for rows, in the order of streams, what orders the items of a person."""
        labels = np.stack([events.users[rows], events.batch.items[rows]], axis=1)
        codes = events.codes[rows]
        starts = np.flatnonzero(first_of_run(codes)).tolist()
        if not starts:
            return np.empty(0, np.uint64)
        sources = [self._sources[events.streams[code]].derive(step) for code in codes[starts].tolist()]
        return SideBySide(sources, [*starts, len(rows)]).words(labels)[:, 0, 0]


def split_by_item(key: StepKey, held: InStreams[HolderBatch], shards: int) -> Iterator[tuple[bytes, bytes]]:
    """Part holdings by shard of items; streams without any, as in an empty step, go to a shard of their own."""
    if empty := held.without_rows:
        yield key._replace(shard=shards).to_bytes(), InStreams.empty(HolderBatch, empty).to_bytes()
    shard = held.batch.items % np.uint64(shards)
    for i in np.unique(shard).tolist():
        yield key._replace(shard=i).to_bytes(), held.take(np.flatnonzero(shard == i)).to_bytes()
