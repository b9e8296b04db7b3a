"""Bound what a person contributes to counts over the run, count what is left, and release how much limits drop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    Keyed,
    StepKey,
    encode,
    first_of_run,
    named,
    rows_of,
    shard_key,
)
from privstream.transforms.counters import counter
from privstream.transforms.counts.keyed_counts import NUMBERS, READINGS
from privstream.transforms.people.bound import Bound, ClippedCounter, by_person, draws_of_pairs, within_limit
from privstream.transforms.people.bounding import BoundEvents, BoundOverRun, Charged, Used
from privstream.transforms.timing.clock import stepped
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override


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
    """Drop what is beyond a person's limits, and count the rest by shard of keys.

    Args:
        bound: of a person, paced.
        distinct: whether a person counts only once for each key in the whole run.
        key_shards: shards of keys.
        limits: least and largest value of a contribution, to which it is clipped.
        lists: for how many keys a person counts on a list of different people, until when; None without one. Which they
            are depends on that person's events alone: the first that count, those of one step in the order above.
        dropped: how what limits drop is clipped; None if it is not added up.
    """

    kind = "contributed"
    # pairs of a person and a key, by the keyed hash of both; and keys for which a list counts people
    limit_names = ("times", "pairs", "listed", "dropped")
    bound: Bound
    distinct = False
    key_shards: int
    limits: tuple[int, int] = (0, 0)
    lists: PeopleLists | None = None
    dropped: DroppedShare | None = None
    clipped = ClippedCounter("contributions", again=True)

    @cached_property
    def _order(self) -> NoiseSource:
        return self.noise.derive("contribution")

    @override
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        users, rows = held.users, np.arange(len(held.users))
        new, pairs = np.ones(len(rows), bool), np.empty(0, np.uint64)
        if self.distinct:
            pairs = self._pairs(held, rows)
            new = _charged(used["pairs"], pairs) == 0
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
            counted = None if some is None else np.bincount(some, minlength=len(users)) > 0
        else:
            counted = None
            if self.distinct:
                charged["pairs"] = Charges.of(pairs[admitted[new[admitted]]])
        sent = [*by_shard(step, self._count(held, admitted, counted), self.key_shards)]
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
        return {**used, "pairs": UserCounters(), "listed": UserCounters()}

    def _listed(
        self, step: int, held: HolderBatch, admitted: np.ndarray, used: Used
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

    def _pairs(self, held: HolderBatch, rows: np.ndarray) -> np.ndarray:
        """Return keyed hashes of person and key, uint64, for some rows."""
        return draws_of_pairs(self._order, held.users[rows], held.items[rows])

    def _count(self, held: HolderBatch, rows: np.ndarray, new: np.ndarray | None) -> CountBatch:
        """Count some rows, increasing; `new` says of each row whether the person is new to the key, or on its list."""
        if held.values is None:  # as `add_up` does, where nothing is added up: sorts without an order
            distinct, counts = np.unique(held.items[rows], return_counts=True)
            if new is None:
                return CountBatch(distinct, counts, held.names)
            of_new, number = np.unique(held.items[rows][new[rows]], return_counts=True)
            first = np.zeros(len(distinct), np.int64)
            first[np.searchsorted(distinct, of_new)] = number
            return CountBatch(distinct, counts, held.names, first)
        values = held.values[rows]
        within: np.ndarray = np.clip(values, *self.limits)
        self.clipped.add(values, within, self.limits)
        fresh = None if new is None else new[rows].astype(np.int64)
        return add_up(CountBatch(held.items[rows], np.ones(len(rows), np.int64), held.names, fresh, within))


def _charged(counters: UserCounters, keys: np.ndarray) -> np.ndarray:
    """Return what each key has been charged; in order they are found several times as fast."""
    order = np.argsort(keys)
    charged = np.empty(len(keys), np.int64)
    charged[order] = counters.charged(keys[order])
    return charged


def add_up(rows: CountBatch) -> CountBatch:
    """Add up the rows of each item; items are distinct and increasing then."""
    order = np.argsort(rows.items)
    starts = np.flatnonzero(first_of_run(rows.items[order]))

    def total(column: Any) -> Any:
        return column if column is None or not len(starts) else np.add.reduceat(column[order], starts)

    items = rows.items[order[starts]]
    return CountBatch(items, total(rows.counts), rows.names, total(rows.new), total(rows.sums))


def by_shard(step: int, counted: CountBatch, shards: int) -> Iterator[Keyed]:
    """Send counts of a step on by shard of items."""
    shard = (counted.items % np.uint64(shards)).astype(np.int64)
    for number in np.unique(shard).tolist():
        some = named(rows_of(counted, np.flatnonzero(shard == number)))
        yield shard_key(number), stepped(step, encode(some))


class CountEvents(BoundEvents):
    """Per step and shard of items: events in, counts of those in time out, with sums of values."""

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        sums = None if events.values is None else events.values.astype(np.int64)
        counted = CountBatch(events.items, np.ones(len(events.items), np.int64), events.names, None, sums)
        yield shard_key(key.shard), stepped(key.step, encode(add_up(counted)))


CLOCK = shard_key(0) + b"dropped"  # of shard 0: of processes that share out shards, one has all of it


def sums_record(step: int, sums: np.ndarray) -> Keyed:
    """Return what a shard of people sends of a step: exact numbers, int64 (n,)."""
    return CLOCK, stepped(step, sums.astype("<i8").tobytes())


class Waiting(NamedTuple):
    """Exact numbers of the period so far, what the last reading released of them, and how many readings there were."""

    sums: np.ndarray
    released: np.ndarray
    readings: int


class ReleaseDropped(StepFn, state="release_dropped"):
    """On a public clock: release what came until then at some steps of the run, or of each period.

    What is released is in counters, and in no row.

    Args:
        mechanism: adds the noise, in as many readings.
        noise: of the run.
        readings: numbers of the steps, from 1 on, after which it is read.
    """

    mechanism: DroppedShare
    readings: frozenset[int]

    @override
    def initial(self, key: bytes) -> Waiting:
        nothing = np.zeros(len(self.mechanism.laws), np.int64)
        return Waiting(nothing, nothing, 0)

    @override
    def snapshot(self, state: Waiting) -> bytes:
        return pack("dropped contributions", 1, state._asdict())

    @override
    def restore(self, data: bytes) -> Waiting:
        found: dict[str, Any] = unpack("dropped contributions", 1, data)
        return Waiting(**found)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Waiting) -> tuple[Waiting, Iterable[Any]]:
        sums = sum((np.frombuffer(batch, "<i8") for batch in batches), state.sums)
        if self.steps.number(step) not in self.readings:
            return state._replace(sums=sums), ()
        reading = state.readings + 1
        noisy = self.mechanism.release(reading, sums, self.noise_of(step))
        for name, number in zip((READINGS, *NUMBERS), [1, *(noisy - state.released).tolist()], strict=False):
            counter(name).inc(number)
        return Waiting(sums, noisy, reading), ()
