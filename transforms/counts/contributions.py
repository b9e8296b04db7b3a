"""Bound what a person contributes to counts over the run, count what is left, and release how much limits drop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.mechanism import NOBODY, SEGMENT, Charges, UserCounters, pack, unpack
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    Keyed,
    StepKey,
    encode,
    first_of_run,
    in_order,
    shard_key,
)
from privstream.transforms.counters import count_dropped, counter
from privstream.transforms.counts.keyed_counts import NUMBERS, PLACES, READINGS
from privstream.transforms.parameters import Bound
from privstream.transforms.people.bounding import (
    ITEM_ORDER,
    PARTS,
    BoundEvents,
    count_clipped,
    draws_of_pairs,
    place_in_run,
    sorted_in_groups,
)
from privstream.transforms.spill import size_of
from privstream.transforms.timing.step_fn import StepFn, Stepped, stepped, unchanged
from typing_extensions import override

AT_ONCE = 1 << 26
"""Bytes, about, of what is chosen from at a time."""
MOST_BITS = PARTS.bit_length() - 1

Held = dict[int, HolderBatch]
"""What people have in some steps, in order; the rows of these follow each other."""


class Rows(NamedTuple):
    """All rows of what people have, person by person, and of each the earlier steps first."""

    order: np.ndarray  # int64 (n,), where they are among the rows of all steps
    starts: np.ndarray  # the rows of the i-th step are starts[i] to starts[i + 1] of these
    people: np.ndarray  # uint64 (m,), increasing
    persons: np.ndarray  # their numbers, int32 (n,)
    steps: np.ndarray  # and those of steps


class Chosen(NamedTuple):
    """What counts of what people have."""

    counts: np.ndarray  # bool (n,), the rows that count
    new: np.ndarray | None  # bool (n,), those that put a person on the list of a key; None without lists
    sums: np.ndarray | None  # what limits drop of these rows, int64; None if nobody asks
    dropped: np.ndarray  # each person as often as limits have dropped something of it, as far as that is added up


Charged = dict[str, Charges]
"""What a step charges people: for each limit whom, and how much; a limit that is not in it is needed no more."""

Used = Mapping[str, UserCounters]
"""How much people have used of each limit of the whole run, by the name of the limit."""

LIMITS = ("times", "pairs", "listed", "dropped")
"""Contributions; pairs of a person and a key, by the keyed hash of both; keys for which a list counts people."""


class CountContributions(StepFn, state="count_contributions"):
    """Per shard of people, step after step: drop what is beyond a person's limits, and count the rest by shard of keys.

    Steps are handled in order, and what a person has in a step in an order that depends on nothing but that, the person
    and the noise key. So what is left depends on the person's own events alone, and so do the keys for which the person
    is on the list of different people: the first that count, those of one step in a random order. A random number is a
    function of the noise key, the person, the item and the step, or the period if an item counts once in a sample; in
    each step `BoundPerWindow` keeps those with the least, by the same numbers.
    """

    bound: Bound
    distinct = False  # whether a person counts only once for each key in the whole run
    key_shards: int
    max_value: int = 0  # the largest value of a contribution, to which it is clipped
    lists: FoundKeys | None = None  # says for how many keys a person is on a list, and until when
    dropped: DroppedShare | None = None  # how what limits drop is clipped, if it is added up

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._pair_hash, self._orders = self.noise.derive("contribution"), self.noise.derive(ITEM_ORDER)

    @override
    def initial(self, key: bytes) -> Used:
        return {limit: UserCounters() for limit in LIMITS}

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Used) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        held = HolderBatch.read(batches)
        chosen = self.choose({step: held}, state)
        rows = np.flatnonzero(chosen.counts)
        charged = dict.fromkeys(LIMITS, NOBODY) | {"times": Charges.of(held.users[rows])}
        if chosen.new is not None:
            listed = np.flatnonzero(chosen.new)
            charged["listed"] = Charges.of(held.users[listed])
            charged["pairs"] = Charges.of(self._pairs(held, listed))
        elif self.distinct:
            charged["pairs"] = Charges.of(self._pairs(held, rows))
        if self.lists is not None and self.steps.number(step) > self.lists.last_listed:
            del charged["pairs"], charged["listed"]
        sent = [*by_shard(step, self._count(step, held, rows, chosen.new), self.key_shards)]
        if chosen.sums is not None:
            charged["dropped"] = Charges.of(chosen.dropped)
            sent.append(sums_record(step, chosen.sums))
        after = {
            limit: used.add(charged[limit]) if limit in charged else UserCounters() for limit, used in state.items()
        }
        return Stepped(
            after, sent, lambda: _entry(charged) if any(len(each.keys) for each in charged.values()) else b""
        )

    @override
    def decode(self, segments: list[bytes]) -> Used:
        found: list[dict[str, Any]] = [unpack("contributed", 1, one) for one in segments]
        return {limit: UserCounters.of(Charges.from_bytes(one[limit]) for one in found) for limit in LIMITS}

    @override
    def encode(self, state: Used) -> list[bytes]:
        charges = {limit: counter.compact() for limit, counter in state.items()}
        starts = range(0, max(len(each.keys) for each in charges.values()), SEGMENT)
        return [_entry({limit: one.slice(at, at + SEGMENT) for limit, one in charges.items()}) for at in starts]

    def choose(self, held: Held, used: Used) -> Chosen:
        """Choose what counts of all that people have in one step, or several, given what they have used before.

        Each contribution has a random number of its own. Of a person those with the least numbers count: in a step, if
        there is a limit of it, and of these as many as the limit of the run has left.
        """
        starts = np.cumsum([0, *(len(each.users) for each in held.values())])
        users = np.concatenate([each.users for each in held.values()])
        order = in_order(users)
        users = users[order]
        first = first_of_run(users)
        people, persons = users[first], np.cumsum(first, dtype=np.int32) - 1
        steps = np.repeat(np.arange(len(held), dtype=np.int32), np.diff(starts))[order]
        del users, first
        rows = Rows(order, starts, people, persons, steps)
        came = np.ones(len(order), bool)
        if self.distinct:  # the first ones of a key stand for all
            pairs = np.concatenate([self._pairs(each, np.arange(len(each.users))) for each in held.values()])[order]
            came[:] = False
            came[np.unique(pairs, return_index=True)[1]] = True
            came &= _charged(used["pairs"], pairs) == 0
        counts, at_once = came.copy(), self.bound.per_window
        allowed = self.bound.in_run
        if self.bound.paced and not self.bound.sampled and (windows := self.steps.count):
            allowed = self.bound.allowed(self.steps.number(max(held)), windows)
        left = allowed - used["times"].charged(people)
        least = left if at_once is None else np.minimum(left, at_once)
        over = np.flatnonzero(counts & (np.bincount(persons) > least)[persons])  # few: no other row needs an order
        if len(over):
            draws = self._draws(held, rows, over)
            if at_once is not None:
                within = _place(persons[over] * np.int64(len(held)) + steps[over], draws) < at_once
                counts[over] = within
                over, draws = over[within], draws[within]
            counts[over] = _place(persons[over], draws) < left[persons[over]]
        count_dropped("contributions", int(came.sum()), int(came.sum() - counts.sum()))
        sums, dropped = None, np.empty(0, np.uint64)
        if self.dropped is not None:
            all_of, counted = (np.bincount(persons[some], minlength=len(people)) for some in (came, counts))
            sums, now = self.dropped.of_people(all_of, counted, used["dropped"].charged(people))
            dropped = np.repeat(people, now)
        chosen = np.empty(len(order), bool)
        chosen[order] = counts
        listed = None if self.lists is None else self._listed(self.lists, held, rows, np.flatnonzero(counts), used)
        return Chosen(chosen, listed, sums, dropped)

    def _draws(self, held: Held, rows: Rows, some: np.ndarray) -> np.ndarray:
        """Return the random numbers of some rows of all steps, uint64."""
        wanted = np.zeros(len(rows.order), bool)
        wanted[rows.order[some]] = True
        drawn = np.empty(len(wanted), np.uint64)
        for (step, each), start, end in zip(held.items(), rows.starts, rows.starts[1:], strict=False):
            of_step = np.flatnonzero(wanted[start:end])
            once = self.distinct and self.bound.sampled
            order = self._orders.derive(self.steps.first_of_period(step) if once else step)
            items = each.items[of_step] + (each.ranks[of_step].astype(np.uint64) << np.uint64(32))  # of equal values
            drawn[start + of_step] = draws_of_pairs(order, each.users[of_step], items)
        return np.asarray(drawn[rows.order[some]])

    def _pairs(self, held: HolderBatch, rows: np.ndarray) -> np.ndarray:
        """Return keyed hashes of person and key, uint64, for some rows."""
        return draws_of_pairs(self._pair_hash, held.users[rows], held.items[rows])

    def _listed(self, lists: FoundKeys, held: Held, rows: Rows, some: np.ndarray, used: Used) -> np.ndarray:
        """Return which rows of all steps put a person on the list of a key, bool; `some` are those that count."""
        marks = np.zeros(len(rows.order), bool)
        in_time = np.array([self.steps.number(step) <= lists.last_listed for step in held])
        some = some if in_time.all() else some[in_time[rows.steps[some]]]
        if not len(some):
            return marks
        keys = np.concatenate([each.items for each in held.values()])[rows.order[some]]
        order = sorted_in_groups(rows.persons[some], keys)  # of equal keys of a person the earliest comes first
        some = np.sort(some[order[first_of_run(rows.persons[some][order], keys[order])]])
        left = lists.listed - used["listed"].charged(rows.people)
        if not self.bound.sampled:  # keys of earlier steps are on the list
            some = some[left[rows.persons[some]] > 0]
            (each,) = held.values()
            some = some[_charged(used["pairs"], self._pairs(each, rows.order[some])) == 0]
        persons = rows.persons[some]
        over = np.flatnonzero((np.bincount(persons, minlength=len(left)) > left)[persons])
        draws = self._draws(held, rows, some[over])
        place = place_in_run(persons[over], np.lexsort((draws, rows.steps[some[over]], persons[over])))
        marks[rows.order[np.delete(some, over[place >= left[persons[over]]])]] = True
        return marks

    def _count(self, step: int, held: HolderBatch, rows: np.ndarray, new: np.ndarray | None) -> CountBatch:
        """Count some rows, increasing; `new` says of each row whether it puts a person on the list of its key."""
        late = self.lists is not None and self.steps.number(step) > self.lists.last_listed
        fresh = None if new is None or late else new[rows].astype(np.int64)
        sums = None
        if held.values is not None:
            values = held.values[rows]
            sums = np.minimum(values, self.max_value)
            count_clipped("contributions", values, sums, self.max_value)
        return add_up(CountBatch(held.items[rows], np.ones(len(rows), np.int64), held.names, fresh, sums))


class SampleContributions(CountContributions):
    """All steps of the run, or of a period, when the last one is due: random contributions of all of them count.

    They are handled one part of people after the other. Which ones count depends on no time, and nothing is remembered.
    """

    by_period = True

    @override
    def run(
        self, key: bytes, steps: range, batches: Mapping[int, list[bytes]], state: Used
    ) -> Iterator[tuple[int, Stepped]]:
        first = steps.start
        while first in steps:
            period = range(first, self.block_end(0, first - 1) + 1)
            counted, sums = self._counted({each: batches[each] for each in period if each in batches})
            for step in period:
                sent = [*by_shard(step, counted[step], self.key_shards)] if step in counted else []
                if self.dropped is not None and counted and step == max(counted):
                    sent.append(sums_record(step, sums))
                yield step, Stepped(self.initial(key), sent, unchanged)
            first = period.stop

    def _counted(self, records: Mapping[int, Sequence[bytes]]) -> tuple[dict[int, CountBatch], np.ndarray]:
        """Return what counts in each step of a period, and what limits drop of it, int64 (n,)."""
        bits = (sum(size_of(data[1:]) for each in records.values() for data in each) // AT_ONCE).bit_length()
        bits = min(bits, MOST_BITS)
        counted: dict[int, CountBatch] = {}
        sums = np.zeros(0 if self.dropped is None else len(self.dropped.laws), np.int64)
        for number in range(1 << bits):
            if not (held := _held(records, bits, number)):
                continue
            chosen, start = self.choose(held, self.initial(b"")), 0
            sums += 0 if chosen.sums is None else chosen.sums
            for step in [*held]:
                each = held.pop(step)
                of_step = slice(start, start := start + len(each.users))
                new = None if chosen.new is None else chosen.new[of_step]
                found = self._count(step, each, np.flatnonzero(chosen.counts[of_step]), new)
                counted[step] = add_up(CountBatch.join([counted[step], found])) if step in counted else found
        return counted, sums


def _entry(charged: Charged) -> bytes:
    """Encode one entry of the log."""
    return pack("contributed", 1, {limit: charged.get(limit, NOBODY).to_bytes() for limit in LIMITS})


def _held(records: Mapping[int, Sequence[bytes]], bits: int, number: int) -> Held:
    """Return what those people have in some steps whose hashes begin with some bits, this number."""
    held: Held = {}
    for step, each in records.items():
        found = []
        for record in each:
            if (part := record[0]) < PARTS and part >> (MOST_BITS - bits) != number:
                continue
            found.append(HolderBatch.read([record[1:]]))
            if part == PARTS and bits:
                found[-1] = found[-1].some(np.flatnonzero(found[-1].users >> np.uint64(64 - bits) == number))
        if any(len(one.users) for one in found):
            held[step] = HolderBatch.join(found)
    return held


def _place(groups: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return for each row how many rows of its group have a smaller random number."""
    return place_in_run(groups, sorted_in_groups(groups, draws))


def _charged(counters: UserCounters, keys: np.ndarray) -> np.ndarray:
    """Return what each key has been charged; in order they are found several times as fast."""
    order = np.argsort(keys)
    charged = np.empty(len(keys), np.int64)
    charged[order] = counters.charged(keys[order])
    return charged


def add_up(rows: CountBatch) -> CountBatch:
    """Add up the rows of each item; items are distinct and increasing then."""
    if not len(rows.items):
        return rows
    order = in_order(rows.items)
    starts = np.flatnonzero(first_of_run(rows.items[order]))
    sums: dict[str, Any] = {}
    for name in ("counts", "new", "sums"):
        if (column := getattr(rows, name)) is not None:
            sums[name] = np.add.reduceat(column[order], starts)
    return replace(rows, items=rows.items[order[starts]], **sums)


def by_shard(step: int, counted: CountBatch, shards: int) -> Iterator[Keyed]:
    """Send counts of a step on by shard of items."""
    shard = (counted.items % np.uint64(shards)).astype(np.int64)
    for number in np.unique(shard).tolist():
        some = counted.some(np.flatnonzero(shard == number))
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


class ReleaseDropped(StepFn, state="release_dropped"):
    """On a public clock: release what came until then at some steps of the run, or of each period, in counters."""

    mechanism: DroppedShare
    readings: tuple[int, ...]  # numbers of the steps, from 1 on, after which it is read

    @override
    def initial(self, key: bytes) -> np.ndarray:
        return np.zeros((2, len(self.mechanism.laws)), np.int64)  # of the period so far, and as the last reading said

    @override
    def snapshot(self, state: np.ndarray) -> bytes:
        return pack("dropped contributions", 2, {"sums": state})

    @override
    def restore(self, data: bytes) -> np.ndarray:
        return np.asarray(unpack("dropped contributions", 2, data)["sums"])

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: np.ndarray) -> tuple[np.ndarray, Iterable[Any]]:
        before, released = state
        sums = sum((np.frombuffer(batch, "<i8") for batch in batches), before)
        if (number := self.steps.number(step)) not in self.readings:
            return np.stack([sums, released]), ()
        place = self.readings.index(number) + 1
        noisy = self.mechanism.release(place, sums, self.steps.renewed(self.noise, step))
        for name, more in zip((READINGS, PLACES, *NUMBERS), [1, place, *(noisy - released).tolist()], strict=False):
            counter(name).inc(more)
        return np.stack([sums, noisy]), ()
