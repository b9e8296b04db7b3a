"""Sample the contributions of each person in the whole run, or in a period, and count them, per shard of people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from privstream.transforms.batches import (
    CountBatch,
    HolderBatch,
    decode,
    first_of_run,
    in_order,
    rows_of,
)
from privstream.transforms.counts.contributions import CountContributions, add_up, by_shard, sums_record
from privstream.transforms.people.bound import ITEM_ORDER, draws_of_pairs, place_in_run, sorted_in_groups
from privstream.transforms.people.bounding import PartOfPeople, Used
from privstream.transforms.spill import release, size_of
from privstream.transforms.timing.step_fn import Stepped, unchanged
from typing_extensions import override

AT_ONCE = 1 << 26
"""Bytes, about, of what is chosen from at a time."""

Held = dict[int, HolderBatch]
"""What people have in each step of a period."""


class Chosen(NamedTuple):
    """What people have in a step, and what counts of it.

    Attributes:
        held: what they have.
        rows: those that count, int64, increasing.
        new: bool, of each row of `held` whether the person is new to the key, or on its list; None if nobody asks.
        sums: what limits drop of the period, int64 (n,), at its last step; None elsewhere, or if nobody asks.
    """

    held: HolderBatch
    rows: np.ndarray
    new: np.ndarray | None
    sums: np.ndarray | None


class Rows(NamedTuple):
    """All rows of a period, person by person, and of each the earlier steps first.

    Attributes:
        order: int64 (n,), where they are among the rows of all steps, one after the other.
        starts: the rows of the i-th step are starts[i] to starts[i + 1] of these.
        persons, steps: numbers of person and step, int32 (n,).
    """

    order: np.ndarray
    starts: np.ndarray
    persons: np.ndarray
    steps: np.ndarray


class CountRandomContributions(CountContributions, state="count_random"):
    """Drop what is beyond a person's limits, all but random ones of the whole run, or of a period, and count the rest.

    All steps are handled when the last one is due, one part of people after the other. Each contribution has a random
    number of its own, by the noise key, its person, item and step, or period if it counts once (`distinct`). Of
    a person those with the least numbers count: in a step, if there is a limit of it, and of these in the run. In each
    step `BoundPerWindow` keeps those with the least, by the same numbers. So which ones count depends on the person's
    own events and the key, and on no time. Nothing is remembered: what comes after a period has been handled is late.
    Arguments: see `CountContributions`.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._blocks = (1,)
        self._orders = self.noise.derive(ITEM_ORDER)

    @override
    def block_end(self, level: int, handled: int) -> int:
        return min(self.steps.last_of_period(handled + 1), self._last)

    @override
    def run(
        self, key: bytes, steps: Iterable[int], batches: Mapping[int, list[bytes]], state: Used
    ) -> Iterator[tuple[int, Stepped]]:
        step, until = min(steps), max(steps)
        while step <= until:
            last = self.block_end(0, step - 1)
            some = {each: found for each, found in batches.items() if step <= each <= last}
            counted, sums = self._counted(some)
            for each in range(step, last + 1):
                sent = [*by_shard(each, counted[each], self.key_shards)] if each in counted else []
                if self.dropped is not None and counted and each == max(counted):
                    sent.append(sums_record(each, sums))
                yield each, Stepped(state, sent, unchanged)
            step = last + 1
            for batch in chain.from_iterable(some.values()):
                release(PartOfPeople.split_off(batch)[1])

    def _counted(self, records: Mapping[int, Sequence[bytes]]) -> tuple[dict[int, CountBatch], np.ndarray]:
        """Return what counts in each step of a period, and what limits drop of it, int64 (n,)."""
        parted = {step: [PartOfPeople.split_off(record) for record in each] for step, each in records.items()}
        size = sum(size_of(data) for each in parted.values() for _, data in each)
        bits = (size // AT_ONCE).bit_length()
        counted: dict[int, CountBatch] = {}
        sums = np.zeros(0 if self.dropped is None else len(self.dropped.laws), np.int64)
        for number in range(1 << bits):
            for step, chosen in self.choose(_held(parted, PartOfPeople(bits, number))):
                found = self._count(chosen.held, chosen.rows, chosen.new)
                counted[step] = add_up(CountBatch.join([counted[step], found])) if step in counted else found
                sums += 0 if chosen.sums is None else chosen.sums
        return counted, sums

    def choose(self, held: Held) -> Iterator[tuple[int, Chosen]]:
        """Choose what counts of all that people have in a period, and yield it step by step."""
        if not held:
            return
        starts = np.cumsum([0, *(len(each.users) for each in held.values())])
        users = np.concatenate([each.users for each in held.values()])
        order = in_order(users, runs=True)
        persons = np.cumsum(first_of_run(users[order]), dtype=np.int32) - 1
        steps = np.repeat(np.arange(len(held), dtype=np.int32), np.diff(starts))[order]
        del users
        given = Rows(order, starts, persons, steps)
        came = self._firsts(held, given)
        counts = self._counts(held, given, came)
        sums = None
        if self.dropped is not None:
            size = int(persons[-1]) + 1
            all_of, counted = (np.bincount(persons[some], minlength=size) for some in (came, counts))
            sums, _ = self.dropped.of_people(all_of, counted, np.zeros(size, np.int64))
        marks = self._marks(held, given, counts)
        chosen = np.empty(len(order), bool)
        chosen[order] = counts
        del given, order, persons, steps, came, counts
        for place, (step, start, end) in enumerate(zip(list(held), starts[:-1], starts[1:], strict=True)):
            last = place == len(starts) - 2
            timely = marks is not None and (self.lists is None or self.steps.number(step) <= self.lists.last)
            new = marks[start:end] if marks is not None and timely else None
            yield step, Chosen(held.pop(step), np.flatnonzero(chosen[start:end]), new, sums if last else None)

    def _firsts(self, held: Held, given: Rows) -> np.ndarray:
        """Return which rows can count, bool (n,): where a key counts once, the first ones stand for all."""
        came = np.ones(len(given.order), bool)
        if self.distinct:
            pairs = np.concatenate([self._pairs(each, np.arange(len(each.users))) for each in held.values()])
            came[:] = False
            came[np.unique(pairs[given.order], return_index=True)[1]] = True
        return came

    def _counts(self, held: Held, given: Rows, came: np.ndarray) -> np.ndarray:
        """Return which rows count, of those that can, bool (n,)."""
        counts, limit, at_once = came.copy(), self.bound.in_run, self.bound.per_window
        least = limit if at_once is None else min(limit, at_once)
        over = np.flatnonzero(counts & (np.bincount(given.persons) > least)[given.persons])
        draws = self._draws(held, given, over)
        if at_once is not None:
            in_step = given.persons[over] * np.int64(len(held)) + given.steps[over]
            counts[over[_beyond(in_step, draws, at_once)]] = False
            kept = counts[over]
            over, draws = over[kept], draws[kept]
        counts[over[_beyond(given.persons[over], draws, limit)]] = False
        return counts

    def _draws(self, held: Held, given: Rows, rows: np.ndarray) -> np.ndarray:
        """Return the random numbers of some rows of all steps, uint64."""
        wanted = np.zeros(len(given.order), bool)
        wanted[given.order[rows]] = True
        drawn = np.empty(len(wanted), np.uint64)
        for (step, each), start, end in zip(held.items(), given.starts, given.starts[1:], strict=False):
            some = np.flatnonzero(wanted[start:end])
            drawn[start + some] = self._drawn(step, each, some)
        return np.asarray(drawn[given.order[rows]])

    def _drawn(self, step: int, held: HolderBatch, rows: np.ndarray) -> np.ndarray:
        """Return the random numbers of some rows of a step, uint64."""
        order = self._orders.derive(self.steps.first_of_period(step) if self.distinct else step)  # as `BoundPerWindow`
        return draws_of_pairs(order, held.users[rows], held.items[rows])

    def _marks(self, held: Held, given: Rows, counts: np.ndarray) -> np.ndarray | None:
        """Return which rows of all steps put a person on the list of a key, bool; None without lists.

        A person is on the lists of the first keys that count, those of one step in the order of their random numbers.
        """
        if self.lists is None:
            return None
        rows = np.flatnonzero(counts)
        in_time = np.array([self.steps.number(step) <= self.lists.last for step in held])
        rows = rows if in_time.all() else rows[in_time[given.steps[rows]]]
        keys = np.concatenate([each.items for each in held.values()])[given.order[rows]]
        order = sorted_in_groups(given.persons[rows], keys)  # of equal keys of a person the earliest comes first
        rows = np.sort(rows[order[first_of_run(given.persons[rows][order], keys[order])]])
        persons = given.persons[rows]
        over = np.flatnonzero((np.bincount(persons) > self.lists.keys)[persons])
        draws = self._draws(held, given, rows[over])
        by_step = np.lexsort((draws, given.steps[rows[over]], persons[over]))
        rows = np.delete(rows, over[place_in_run(persons[over], by_step) >= self.lists.keys])
        marks = np.zeros(len(given.order), bool)
        marks[given.order[rows]] = True
        return marks


def _held(records: Mapping[int, Sequence[tuple[PartOfPeople, bytes]]], part: PartOfPeople) -> Held:
    """Return what a part of people has in each step in which it has something."""
    held: Held = {}
    for step, each in records.items():
        whole = [decode(HolderBatch, data) for of, data in each if part.meets(of)]
        rows = [part.rows(one.users) for one in whole]
        found = [
            one if len(these) == len(one.users) else rows_of(one, these)
            for one, these in zip(whole, rows, strict=True)
            if len(these)
        ]
        if found:
            held[step] = HolderBatch.join(found)
    return held


def _beyond(groups: np.ndarray, draws: np.ndarray, limit: int) -> np.ndarray:
    """Return the rows that are not among so many of their group with the least random numbers; groups are in order."""
    firsts = np.flatnonzero(first_of_run(groups))
    lengths = np.diff(np.append(firsts, len(groups)))
    place = np.arange(len(groups)) - np.repeat(firsts, lengths)
    return sorted_in_groups(groups, draws)[place >= limit]
