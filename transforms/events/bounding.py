"""Bound what one person contributes: to a step, and over the whole run; and count what limits leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.routed import SideBySide, SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    InStreams,
    Keyed,
    StepKey,
    group_of,
    seal_encoded,
    sealed_batch,
    totals,
)
from privstream.transforms.events.dead_letters import late_in_streams
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.split import people_key
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps

PARTS = ("", "_at_first", "_at_last")
"""How names of counters end: in all, in the first quarter of the windows, and in the last."""

QUARTER = 4


class LimitCounter:
    """Counts what comes to a limit, and what it leaves out; with `steps`, at the beginning and at the end of a run too.

    A limit that people use up leaves out more at the end, which can look like a decline. Where the number of windows is
    public, and more than one, what comes in the first quarter of them and in the last is counted by itself; where
    everything starts afresh, that is in the quarters of each period. The counters are exact, and not for publication.

    Args:
        name: of the limit: the counters are `<name>_before_limit` and `<name>_over_limit`, and those of quarters.
        steps: the windows; None where it is not known to which one an event belongs.
    """

    def __init__(self, name: str, steps: Steps | None = None) -> None:
        self._came = [Metrics.counter("privstream", f"{name}_before_limit{part}") for part in PARTS]
        self._left_out = [Metrics.counter("privstream", f"{name}_over_limit{part}") for part in PARTS]
        self._steps = None if steps is None or (steps.count or 1) < 2 else steps

    def add(self, step: int, came: int, left_out: int) -> None:
        """Count what came in a step, and how much of it was left out."""
        for part in self._parts(step):
            self._came[part].inc(came)
            self._left_out[part].inc(left_out)

    def _parts(self, step: int) -> list[int]:
        """Return which counters a step belongs to."""
        if self._steps is None or self._steps.count is None:
            return [0]
        number, windows = self._steps.number(step), self._steps.count
        first, last = QUARTER * (number - 1) < windows, QUARTER * (windows - number) < windows
        return [0, *([1] if first else []), *([2] if last else [])]


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


NOBODY = UserCounters()
NOTHING = Charges.none()


@dataclass(frozen=True)
class Contributions:
    """How often each person has taken part, in all and per stream (keyed hash of person and stream)."""

    participations: UserCounters = NOBODY
    memberships: UserCounters = NOBODY
    streams: UserCounters = NOBODY


class BoundAcrossWindows(OrderedSteps, state="bound_across_windows"):
    """Per shard of people: leave out who has taken part in enough steps, or is new to a stream but in enough others.

    Steps are handled in order, and within a step a person's streams in an order that depends on nothing but the
    person, the step and the key. So what is left of a person's events depends on that person's events alone.

    Args:
        participations: steps of streams that one person takes part in at most, or None.
        streams: streams that one person takes part in at most, or None.
        by_people: whether what is left goes on by shard of people, and not by group of streams and shard of items.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        item_shards: int,
        participations: int | None = None,
        streams: int | None = None,
        domain: Domain | None = None,
        by_people: bool = False,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain
        self.noise = noise
        self.item_shards = item_shards
        self.by_people = by_people
        self.participations = participations
        self.streams = streams
        self._sources = SourcesByName(partial(noise.derive, "person in stream"))
        self.limited = LimitCounter("holdings", steps)

    def handle(
        self, key: bytes, step: int, batches: list[tuple[StepKey, InStreams[HolderBatch]]], state: Contributions
    ) -> Handled:
        """Admit each person to streams and steps while the limits allow it."""
        held = InStreams.join(HolderBatch, [batch for _, batch in batches])
        (people, in_stream), taking_part = _distinct(held.users, held.codes)
        lots = np.empty(len(people), np.uint64)
        order = np.argsort(in_stream, kind="stable")
        if len(order):
            starts = np.flatnonzero(first_of_run(in_stream[order]))
            sources = [self._sources[held.streams[code]] for code in in_stream[order[starts]].tolist()]
            together = SideBySide(sources, [*starts.tolist(), len(order)])
            lots[order] = together.words(people[order])[:, 0, 0]
        admitted, charges = self._admit(people, lots, state)
        kept = admitted[taking_part]
        self.limited.add(step, len(kept), int(len(kept) - kept.sum()))
        if self.by_people:
            rest = held.take(np.flatnonzero(kept)).to_bytes()
            outputs = [(key, seal_encoded(StepKey("", step, 0), rest))]
        else:
            outputs = list(self._by_group(step, held, kept))
        after = Contributions(*(counters.add(new) for counters, new in zip(vars(state).values(), charges, strict=True)))
        return Handled(after, _segment(charges) if any(map(len, charges)) else None, outputs)

    def _by_group(self, step: int, held: InStreams[HolderBatch], kept: np.ndarray) -> Iterator[tuple[bytes, bytes]]:
        """Send what is kept on by group of streams and shard of items; streams without rows go on too."""
        groups = np.array([int(group_of(stream)) for stream in held.streams])
        empty = held.without_rows
        group = groups[held.codes]
        for number in np.unique(groups).tolist():
            to = StepKey(str(number), step, 0)
            if nobody := [stream for stream in empty if group_of(stream) == to.stream]:
                yield from split_by_item(to, InStreams.empty(HolderBatch, nobody), self.item_shards)
            if len(rows := np.flatnonzero(kept & (group == number))):
                yield from split_by_item(to, held.take(rows), self.item_shards)

    def _admit(self, people: np.ndarray, lots: np.ndarray, state: Contributions) -> tuple[np.ndarray, list[Charges]]:
        """Tell who of the distinct (person, stream) pairs may take part, and what that charges."""
        admitted = np.ones(len(people), bool)
        memberships, streams, participations = NOTHING, NOTHING, NOTHING
        if self.streams is not None:
            new = np.flatnonzero(state.memberships.charged(lots) == 0)
            left = self.streams - state.streams.charged(people[new]).astype(np.int64)
            over = place_in_run(people[new], np.lexsort((lots[new], people[new]))) >= left
            admitted[new[over]] = False
            joined = new[~over]
            memberships, streams = Charges.of(lots[joined]), Charges.of(people[joined])
        if self.participations is not None:
            rows = np.flatnonzero(admitted)
            left = self.participations - state.participations.charged(people[rows]).astype(np.int64)
            over = place_in_run(people[rows], np.lexsort((lots[rows], people[rows]))) >= left
            admitted[rows[over]] = False
            participations = Charges.of(people[admitted])
        return admitted, [participations, memberships, streams]

    def unpack(self, record: bytes) -> InStreams[HolderBatch]:
        """Return the holdings in a sealed record."""
        return InStreams.from_bytes(HolderBatch, sealed_batch(record))

    def describe_late(self, key: StepKey, batch: InStreams[HolderBatch]) -> Iterator[Any]:
        """Describe late holdings by item."""
        return late_in_streams(self.steps, key, batch, self.domain)

    def decode(self, key: bytes, segments: list[bytes]) -> Contributions:
        """Add up the log."""
        state = Contributions()
        for segment in segments:
            parts = [Charges.from_bytes(part) for part in unpack("contributions", 1, segment).values()]  # type: ignore[arg-type]
            state = Contributions(
                *(counters.add(part) for counters, part in zip(vars(state).values(), parts, strict=True))
            )
        return state

    def encode(self, state: Contributions) -> list[bytes]:
        """Write one entry per person and counter."""
        compacted = [counters.compact() for counters in vars(state).values()]
        chunks = range(0, max(map(len, compacted)), SEGMENT)
        return [_segment([part.slice(i, i + SEGMENT) for part in compacted]) for i in chunks]


def _distinct(users: np.ndarray, codes: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the distinct pairs, sorted, and for each row the number of its pair."""
    order = np.lexsort((codes, users))
    first = first_of_run(users[order], codes[order])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(first) - 1
    return (users[order][first], codes[order][first]), number


def _segment(charges: list[Charges]) -> bytes:
    """Encode one entry of the log."""
    names = ("participations", "memberships", "streams")
    return pack("contributions", 1, {name: part.to_bytes() for name, part in zip(names, charges, strict=True)})
