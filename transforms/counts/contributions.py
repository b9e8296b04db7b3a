"""Bound what one person contributes to counts over the whole run, and count what is left, per shard of keys; or count
events, whoever sent them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.routed import SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    InStreams,
    Keyed,
    Names,
    StepKey,
    first_of_run,
    group_of,
    seal_encoded,
    sealed_batch,
)
from privstream.transforms.counts.dropped import sums_record
from privstream.transforms.events.bound import Bound
from privstream.transforms.events.bounding import (
    BoundEvents,
    BoundOverRun,
    Charged,
    Used,
    by_person,
    draw_in_streams,
    within_limit,
)
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.split import ClippedCounter
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

StreamCounts = InStreams[CountBatch]


class PeopleLists(NamedTuple):
    """What a list of different people needs: for how many keys each counts, the first ones, and until which step."""

    keys: int
    last: int


def lists_of(mechanism: KeyedCounts) -> PeopleLists | None:
    """Return what the list of different people of a mechanism needs, if it has one."""
    if not isinstance(mechanism, FoundKeys) or not mechanism.listed:
        return None
    return PeopleLists(mechanism.listed, mechanism.last_listed)


class CountContributions(BoundOverRun, state="count_contributions"):
    """Drop what is beyond a person's limits, and count the rest by group of streams and shard of keys.

    Args:
        bound: of a person, in all streams together, paced.
        distinct: whether a person counts only once for each key of a stream in the whole run.
        newcomers: whether it matters who counts for a key for the first time.
        groups: of streams.
        key_shards: shards of keys.
        limits: least and largest value of a contribution, to which it is clipped.
        lists: for how many keys a person counts on a list of different people, until when; None without one. Which they
            are depends on that person's events alone: the first that count, those of one step in the order above.
        dropped: how what limits drop is clipped; None if it is not added up.
    """

    kind = "contributed"

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        bound: Bound,
        distinct: bool = False,
        newcomers: bool = False,
        groups: int,
        key_shards: int,
        limits: tuple[int, int] = (0, 0),
        domain: Domain | None = None,
        lists: PeopleLists | None = None,
        dropped: DroppedShare | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, domain=domain)
        # pairs of a person and a key, by the keyed hash of both and the stream; and keys for which a list counts people
        self.limit_names = ("times", "pairs", "listed", "dropped")
        self.lists = lists
        self.noise = noise
        self.bound = bound
        self.distinct = distinct
        self.newcomers = newcomers
        self.remembers_keys = distinct or newcomers
        self.limits = limits
        self.groups = groups
        self.key_shards = key_shards
        self.dropped = dropped
        self._sources = SourcesByName(partial(noise.derive, "contribution"))
        self.clipped = ClippedCounter("contributions", again=True)

    @override
    def admit(self, key: bytes, step: int, held: InStreams[HolderBatch], used: Used) -> tuple[Charged, list[Keyed]]:
        users, rows = held.users, np.arange(len(held.users))
        new, pairs = np.ones(len(rows), bool), np.empty(0, np.uint64)
        if self.remembers_keys:
            pairs = self._pairs(held, rows)
            new = _charged(used["pairs"], pairs) == 0
        if self.distinct:
            rows = np.flatnonzero(new)
        within = within_limit(
            users[rows],
            self.bound.allowed(self.steps.number(step), self.steps.count),
            used["times"],
            lambda over: self._pairs(held, rows[over]),
            at_once=self.bound.per_window,
        )
        admitted = rows[within]
        charged = dict.fromkeys(self.limit_names, Charges.none()) | {"times": Charges.of(users[admitted])}
        if self.lists is not None:
            some, charges = self._listed(step, held, admitted, used)
            charged |= charges
            counted = None if some is None else _mask(len(users), some)
        else:
            if self.remembers_keys:
                charged["pairs"] = Charges.of(pairs[admitted[new[admitted]]])
            counted = new if self.newcomers else None
        sent = [*by_group(step, self._count(held, admitted, counted), self.groups, self.key_shards)]
        if self.dropped is not None and len(rows):
            people, person, came = by_person(users[rows])
            sums, now = self.dropped.of_people(
                came, np.bincount(person[within], minlength=len(people)), used["dropped"].charged(people)
            )
            charged["dropped"] = Charges.of(np.repeat(people, now))
            sent.append(sums_record(step, sums))
        return charged, sent

    @override
    def remembered(self, step: int, used: Used) -> Used:
        if self.lists is None or self.steps.number(step) <= self.lists.last:
            return used
        return Used(dict(used.counters) | {"pairs": UserCounters(), "listed": UserCounters()})

    def _listed(
        self, step: int, held: InStreams[HolderBatch], admitted: np.ndarray, used: Used
    ) -> tuple[np.ndarray | None, Charged]:
        """Return the rows in which a list counts a person for a key from now on, and what that charges.

        After its last step there are none, and nothing is charged.
        """
        assert self.lists is not None
        if self.steps.number(step) > self.lists.last:
            return None, {}
        keys, listed = self.lists.keys, used["listed"]
        open_ = admitted[listed.charged(held.users[admitted]) < keys]
        own = self._pairs(held, open_)
        fresh = _charged(used["pairs"], own) == 0
        some, own = open_[fresh], own[fresh]
        chosen = within_limit(held.users[some], keys, listed, own.__getitem__)
        some, own = some[chosen], own[chosen]
        return some, {"pairs": Charges.of(own), "listed": Charges.of(held.users[some])}

    def _pairs(self, held: InStreams[HolderBatch], rows: np.ndarray) -> np.ndarray:
        """Return keyed hashes of person, stream and key, uint64, for some rows."""
        labels = np.stack([held.users[rows], held.batch.items[rows]], axis=1)
        return draw_in_streams(self._sources.__getitem__, held.streams, held.codes[rows], labels)

    def _count(self, held: InStreams[HolderBatch], rows: np.ndarray, new: np.ndarray | None) -> StreamCounts:
        """Count some rows, increasing; `new` says of each row whether the person is new to the key, or on its list."""
        batch = held.batch
        if len(held.streams) == 1 and batch.values is None:
            return InStreams.of(
                held.streams[0], _counted_items(batch.items[rows], batch.names, new if new is None else new[rows])
            )
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
        self.clipped.add(values, within, self.limits)
        return within


def _mask(size: int, rows: np.ndarray) -> np.ndarray:
    """Return which of so many rows these are, bool."""
    mask = np.zeros(size, bool)
    mask[rows] = True
    return mask


def _charged(counters: UserCounters, keys: np.ndarray) -> np.ndarray:
    """Return what each key has been charged; in order they are found several times as fast."""
    order = np.argsort(keys)
    charged = np.empty(len(keys), np.int64)
    charged[order] = counters.charged(keys[order])
    return charged


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


def _counted_items(items: np.ndarray, names: Names, new: np.ndarray | None) -> CountBatch:
    """Count rows by item, as `add_up` does, where nothing but their number is added up: sorts without an order."""
    distinct, counts = np.unique(items, return_counts=True)
    fresh = None
    if new is not None:
        of_new, number = np.unique(items[new], return_counts=True)
        fresh = np.zeros(len(distinct), np.int64)
        fresh[np.searchsorted(distinct, of_new)] = number
    return CountBatch(distinct, counts, names, fresh)


def joined(parts: Sequence[StreamCounts]) -> StreamCounts:
    """Add counts up, stream by stream and item by item."""
    return add_up(InStreams.join(CountBatch, parts))


def by_group(step: int, counted: StreamCounts, groups: int, shards: int) -> Iterator[Keyed]:
    """Send counts of a step on by group of streams and shard of items; streams without any are left out."""
    group = np.array([int(group_of(stream, groups)) for stream in counted.streams], np.int64)[counted.codes]
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


class CountEvents(BoundEvents, state="count_events"):
    """Per group of streams, step and shard of items: events in, counts of those in time out, with sums of values."""

    @override
    def bound(self, key: StepKey, events: InStreams[EventBatch]) -> Iterator[Keyed]:
        found = events.batch
        sums = None if found.values is None else found.values.astype(np.int64)
        ones = CountBatch(found.items, np.ones(len(found.items), np.int64), found.names, None, sums)
        yield sealed_counts(key, add_up(InStreams(events.streams, events.starts, ones)))
