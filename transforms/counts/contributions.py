"""Bound what one person contributes to counts over the whole run, and count what is left, per shard of keys; or count
events, whoever sent them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    CountBatch,
    EventBatch,
    HolderBatch,
    InStreams,
    Keyed,
    StepKey,
    group_of,
    seal_encoded,
    sealed_batch,
)
from privstream.transforms.events.bounding import LimitCounter, first_of_run, place_in_run
from privstream.transforms.events.dead_letters import late_in_streams
from privstream.transforms.events.domain import Domain
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps

NOBODY = UserCounters()
StreamCounts = InStreams[CountBatch]


@dataclass(frozen=True)
class Contributed:
    """How often each person has contributed, which keys each has counted for (keyed hash of all three), or counts for
    on a list of different people, and for how many keys each counts there."""

    times: UserCounters = NOBODY
    pairs: UserCounters = NOBODY
    listed: UserCounters = NOBODY


class PeopleLists(NamedTuple):
    """What a list of different people needs: for how many keys each counts, the first ones, and until which step."""

    keys: int
    last: int


class CountContributions(OrderedSteps, state="count_contributions"):
    """Per shard of people: leave out what is beyond a person's limit, and count the rest by group of streams
    and shard of keys.

    Steps are handled in order, and of a person's keys in a step those count that come first in an order that depends
    on nothing but the person, the keys, their streams and the noise key. So what is left of a person's events depends
    on that person's events alone.

    Args:
        contributions: of one person in the whole run, at most; None where others have limited them.
        spread: whether a person has used at most a part of them by each step, as large as the part of the run until its
            end, rounded up; what is not used is carried over. Steps must have an end.
        distinct: whether a person counts only once for each key of a stream in the whole run.
        newcomers: whether it matters who counts for a key for the first time.
        key_shards: shards of keys.
        limits: least and largest value of a contribution, to which it is clipped.
        lists: for how many keys a person counts on a list of different people, until when; None without one. Which they
            are depends on that person's events alone: the first that count, those of one step in the order above.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        contributions: int | None,
        spread: bool = False,
        distinct: bool = False,
        newcomers: bool = False,
        key_shards: int,
        limits: tuple[int, int] = (0, 0),
        domain: Domain | None = None,
        lists: PeopleLists | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain
        self.lists = lists
        self.noise = noise
        self.contributions = contributions
        self.spread = spread
        self.distinct = distinct
        self.newcomers = newcomers
        self.remembers_keys = distinct or newcomers
        self.limits = limits
        self.key_shards = key_shards
        self._sources = SourcesByName(partial(noise.derive, "contribution"))
        self.limited = LimitCounter("contributions", steps)
        self.clipped = Metrics.counter("privstream", "contributions_clipped")

    def handle(
        self, key: bytes, step: int, batches: list[tuple[StepKey, InStreams[HolderBatch]]], state: Contributed
    ) -> Handled:
        """Admit people's keys while the limit allows it, and count what is admitted."""
        held = InStreams.join(HolderBatch, [batch for _, batch in batches])
        rows = np.arange(len(held.users))
        new, pairs = np.ones(len(rows), bool), np.empty(0, np.uint64)
        if self.remembers_keys:
            pairs = self._pairs(held, rows)
            new = _charged(state.pairs, pairs) == 0
        if self.distinct:
            rows = np.flatnonzero(new)
        admitted = rows[self._within_limit(step, held, rows, state.times)]
        times = nobody = Charges.none()
        if self.contributions is not None:
            self.limited.add(step, len(rows), len(rows) - len(admitted))
            times = Charges.of(held.users[admitted])
        if self.lists is not None:
            return self._listed(step, held, admitted, times, state)
        counted = Charges.of(pairs[admitted[new[admitted]]]) if self.remembers_keys else nobody
        after = Contributed(state.times.add(times), state.pairs.add(counted))
        outputs = list(by_group(step, self._count(held, admitted, new if self.newcomers else None), self.key_shards))
        return Handled(after, _segment(times, counted) if len(times) else None, outputs)

    def _listed(
        self, step: int, held: InStreams[HolderBatch], admitted: np.ndarray, times: Charges, state: Contributed
    ) -> Handled:
        """Count what is admitted, and beside it for whom a list counts each key from now on."""
        assert self.lists is not None
        pairs = listed = Charges.none()
        new, before = None, Contributed(state.times)  # after its last step nothing is remembered of a list
        if self.steps.number(step) <= self.lists.last:
            left = self.lists.keys - state.listed.charged(held.users[admitted])
            open_ = admitted[left > 0]
            own = self._pairs(held, open_)
            fresh = _charged(state.pairs, own) == 0
            some, own, left = open_[fresh], own[fresh], left[left > 0][fresh]
            users = held.users[some]
            chosen = place_in_run(users, np.lexsort((own, users))) < left
            pairs, listed = Charges.of(own[chosen]), Charges.of(users[chosen])
            new, before = np.zeros(len(held.users), bool), state
            new[some[chosen]] = True
        after = Contributed(state.times.add(times), before.pairs.add(pairs), before.listed.add(listed))
        outputs = list(by_group(step, self._count(held, admitted, new), self.key_shards))
        return Handled(after, _segment(times, pairs, listed) if len(times) or len(pairs) else None, outputs)

    def allowed(self, step: int) -> int:
        """Return how many contributions of a person may count up to a step, since everything started afresh."""
        assert self.contributions is not None
        if not self.spread:
            return self.contributions
        assert self.steps.count is not None
        return -(-self.contributions * self.steps.number(step) // self.steps.count)

    def _within_limit(
        self, step: int, held: InStreams[HolderBatch], rows: np.ndarray, times: UserCounters
    ) -> np.ndarray:
        """Return which of some rows, increasing, people still have contributions left for."""
        users = held.users[rows]
        if self.contributions is None:
            return np.arange(len(users))
        people, person, wanted = np.unique(users, return_inverse=True, return_counts=True)
        left = self.allowed(step) - times.charged(people)
        kept = np.ones(len(users), bool)
        over = np.flatnonzero((wanted > left)[person])  # few: nobody else's keys need an order
        place = place_in_run(users[over], np.lexsort((self._pairs(held, rows[over]), users[over])))
        kept[over] = place < left[person[over]]
        return np.flatnonzero(kept)

    def _pairs(self, held: InStreams[HolderBatch], rows: np.ndarray) -> np.ndarray:
        """Return keyed hashes of person, stream and key, uint64, for some rows, increasing."""
        codes = held.codes[rows]
        starts = [*np.flatnonzero(first_of_run(codes)).tolist(), len(rows)]
        labels = np.stack([held.users[rows], held.batch.items[rows]], axis=1)
        if not len(rows):
            return labels[:, 0]
        sources = [self._sources[held.streams[code]] for code in codes[starts[:-1]].tolist()]
        return SideBySide(sources, starts).words(labels)[:, 0, 0]

    def _count(self, held: InStreams[HolderBatch], rows: np.ndarray, new: np.ndarray | None) -> StreamCounts:
        """Count some rows, increasing; `new` says of each row whether the person is new to the key, or on its list."""
        batch = held.batch
        each = CountBatch(
            batch.items[rows],
            np.ones(len(rows), np.int64),
            batch.names,
            None if new is None else new[rows].astype(np.int64),
            None if batch.values is None else self._clip(batch.values[rows]),
        )
        return add_up(InStreams(held.streams, np.searchsorted(rows, held.starts), each))

    def _clip(self, values: np.ndarray) -> np.ndarray:
        """Return values within the limits, and count those that were outside."""
        within: np.ndarray = np.clip(values, *self.limits)
        self.clipped.inc(int((within != values).sum()))
        return within

    def unpack(self, record: bytes) -> InStreams[HolderBatch]:
        """Return the contributions in a sealed record."""
        return InStreams.from_bytes(HolderBatch, sealed_batch(record))

    def describe_late(self, key: StepKey, batch: InStreams[HolderBatch]) -> Iterator[Any]:
        """Describe late contributions by key."""
        return late_in_streams(self.steps, key, batch, self.domain)

    def decode(self, key: bytes, segments: list[bytes]) -> Contributed:
        """Add up the log."""
        found: list[dict[str, Any]] = [unpack("contributed", 1, segment) for segment in segments]
        names = ("times", "pairs") if self.lists is None else ("times", "pairs", "listed")
        return Contributed(*(UserCounters.of(Charges.from_bytes(one[name]) for one in found) for name in names))

    def encode(self, state: Contributed) -> list[bytes]:
        """Write one entry per person, and per key of a person."""
        parts = [state.times.compact(), state.pairs.compact()]
        if self.lists is not None:
            parts.append(state.listed.compact())
        chunks = range(0, max(map(len, parts)), SEGMENT)
        return [_segment(*(part.slice(i, i + SEGMENT) for part in parts)) for i in chunks]


def _charged(counters: UserCounters, keys: np.ndarray) -> np.ndarray:
    """Return what each key has been charged; in order they are found several times as fast."""
    order = np.argsort(keys)
    charged = np.empty(len(keys), np.int64)
    charged[order] = counters.charged(keys[order])
    return charged


def _segment(times: Charges, pairs: Charges, listed: Charges | None = None) -> bytes:
    """Encode one entry of the log."""
    entry = {"times": times.to_bytes(), "pairs": pairs.to_bytes()}
    return pack("contributed", 1, entry if listed is None else entry | {"listed": listed.to_bytes()})


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
