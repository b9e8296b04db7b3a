"""Sample the contributions of each person in the whole run, or in a period, and count them, per shard of people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    CountBatch,
    HolderBatch,
    Keyed,
    StepKey,
    first_of_run,
    in_order,
    rows_of,
    sealed_batch,
    sealed_key,
)
from privstream.transforms.counts.contributions import CountContributions, by_shard, joined
from privstream.transforms.counts.dropped import sums_record
from privstream.transforms.events.bounding import (
    ITEM_ORDER,
    PartOfPeople,
    Used,
    draws_of_pairs,
    place_in_run,
    sorted_in_groups,
)
from privstream.transforms.spill import release, size_of
from privstream.transforms.timing.clocked import set_timer
from privstream.transforms.timing.keyed_state import NEVER, Decoded
from privstream.transforms.timing.ordered import Handled
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps
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

    def __init__(self, *, steps: Steps, noise: NoiseSource, timer_offset: int, **options: Any) -> None:
        super().__init__(steps=steps, noise=noise, timer_offset=timer_offset, **options)
        self._orders = noise.derive(ITEM_ORDER)

    @override
    def set_due(self, timer: Any, step: int) -> None:
        fire = self.steps.decision_time(self._last_of_period(step), self.timer_offset)
        set_timer(timer, fire, hold=self.steps.decision_time(step, self.timer_offset), tag=str(step))

    @override
    def due(self, decoded: Decoded, last: int) -> Iterator[tuple[int, list[tuple[StepKey, Any]]]]:
        while (until := self._last_of_period(decoded.first)) <= last:
            records = dict(decoded.take_until(until))
            size = sum(size_of(sealed_batch(record)) for each in records.values() for record in each)
            bits = (size // AT_ONCE).bit_length()
            counted: dict[int, CountBatch] = {}
            sums = np.zeros(0 if self.dropped is None else len(self.dropped.laws), np.int64)
            for number in range(1 << bits):
                for step, chosen in self.choose(self._held(records, PartOfPeople(bits, number))):
                    found = self._count(chosen.held, chosen.rows, chosen.new)
                    counted[step] = joined([counted[step], found]) if step in counted else found
                    sums += 0 if chosen.sums is None else chosen.sums
            for step in sorted(counted):
                sent = [*by_shard(step, counted[step], self.key_shards)]
                if self.dropped is not None and step == max(counted):
                    sent.append(sums_record(step, sums))
                yield step, [(StepKey(step, 0), sent)]
            for record in chain.from_iterable(records.values()):
                release(sealed_batch(record))

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, Any]], state: Used) -> Handled:
        ((_, sent),) = batches
        outputs: list[Keyed] = sent
        return Handled(state, None, outputs)

    def _held(self, records: Mapping[int, Sequence[bytes]], part: PartOfPeople) -> Held:
        """Return what a part of people has in each step in which it has something."""
        held: Held = {}
        for step, each in records.items():
            some = [record for record in each if part.meets(PartOfPeople.of_code(sealed_key(record).shard))]
            whole = [self.unpack(record) for record in some]
            rows = [part.rows(one.users) for one in whole]
            found = [
                one if len(these) == len(one.users) else rows_of(one, these)
                for one, these in zip(whole, rows, strict=True)
                if len(these)
            ]
            if found:
                held[step] = HolderBatch.join(found)
        return held

    def _last_of_period(self, step: int) -> int:
        """Return the last step that is handled together with one; NEVER if there is none."""
        if step == NEVER:
            return NEVER
        end = self.steps.latest(END_OF_TIME, STAGES) + 1 if self.steps.end is None else self.steps.end
        return min(self.steps.last_of_period(step), end - 1)

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
        """Return which rows of all steps make a person new to a key, or put it on its list, bool; None if nobody asks.

        A person is on the lists of the first keys that count, those of one step in the order of their random numbers.
        """
        if self.lists is None and not self.newcomers:
            return None
        rows = np.flatnonzero(counts)
        if self.lists is not None:
            in_time = np.array([self.steps.number(step) <= self.lists.last for step in held])
            rows = rows if in_time.all() else rows[in_time[given.steps[rows]]]
        keys = np.concatenate([each.items for each in held.values()])[given.order[rows]]
        order = sorted_in_groups(given.persons[rows], keys)  # of equal keys of a person the earliest comes first
        rows = np.sort(rows[order[first_of_run(given.persons[rows][order], keys[order])]])
        if self.lists is not None:
            persons = given.persons[rows]
            over = np.flatnonzero((np.bincount(persons) > self.lists.keys)[persons])
            draws = self._draws(held, given, rows[over])
            by_step = np.lexsort((draws, given.steps[rows[over]], persons[over]))
            late = over[place_in_run(persons[over], by_step) >= self.lists.keys]
            rows = np.delete(rows, late)
        marks = np.zeros(len(given.order), bool)
        marks[given.order[rows]] = True
        return marks


def _beyond(groups: np.ndarray, draws: np.ndarray, limit: int) -> np.ndarray:
    """Return the rows that are not among so many of their group with the least random numbers; groups are in order."""
    firsts = np.flatnonzero(first_of_run(groups))
    lengths = np.diff(np.append(firsts, len(groups)))
    place = np.arange(len(groups)) - np.repeat(firsts, lengths)
    return sorted_in_groups(groups, draws)[place >= limit]
