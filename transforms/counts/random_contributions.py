"""Choose random contributions of each person in the whole run, or in a period, and count them, per shard of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.noise.routed import SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    HolderBatch,
    InStreams,
    StepKey,
    first_of_run,
    in_order,
    sealed_batch,
    sealed_key,
)
from privstream.transforms.counts.contributions import (
    CountContributions,
    PeopleLists,
    StreamCounts,
    by_group,
    joined,
)
from privstream.transforms.events.bounding import (
    ITEM_ORDER,
    PartOfPeople,
    Used,
    by_person,
    draw_in_streams,
    first_drawn,
    place_in_run,
    sorted_in_groups,
)
from privstream.transforms.timing.clocked import set_timer
from privstream.transforms.timing.keyed_state import NEVER, Decoded
from privstream.transforms.timing.ordered import Handled
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps
from typing_extensions import override

AT_ONCE = 1 << 26
"""Bytes, about, of what is chosen from at a time."""

Held = dict[int, InStreams[HolderBatch]]
"""What people have in each step of a period."""


class Chosen(NamedTuple):
    """What people have in a step, and what counts of it.

    Attributes:
        held: what they have.
        came: how many rows there were to choose from.
        rows: those that count, int64, increasing.
        new: bool, of each row of `held` whether the person is new to the key, or on its list; None if nobody asks.
    """

    held: InStreams[HolderBatch]
    came: int
    rows: np.ndarray
    new: np.ndarray | None


class Listed(NamedTuple):
    """What lists of different people have of a step.

    Attributes:
        plainly: bool, of each row whether it certainly puts its person on the list.
        unsure: rows, increasing, of those people of whom it is not known yet, int64.
        people: numbers of these people, from 0 on, int64.
    """

    plainly: np.ndarray
    unsure: np.ndarray
    people: np.ndarray


class Counted(NamedTuple):
    """What counts of a step.

    Attributes:
        came: how many rows there were to choose from.
        kept: how many of them count.
        counts: of these rows, by stream and key.
    """

    came: int
    kept: int
    counts: StreamCounts

    def with_more(self, other: Counted) -> Counted:
        """Return what counts of the people in both, who are different ones."""
        counts = joined([self.counts, other.counts])
        return Counted(self.came + other.came, self.kept + other.kept, counts)


class CountRandomContributions(CountContributions, state="count_random"):
    """Leave out what is beyond a person's limit, random ones of the whole run, or of a period, and count the rest.

    All steps are handled when the last one is due, one part of people after the other. Each contribution has a random
    number of its own, by the noise key, its person, item, stream and step, or period if it counts once (`distinct`). Of
    a person those with the least numbers count: in a step, if there is a limit of it, and of these in the run. In each
    step `BoundPerWindow` keeps those with the least, by the same numbers. So which ones count depends on the person's
    own events and the key, and on no time. Nothing is remembered: what comes after a period has been handled is late.
    Arguments: see `CountContributions`.
    """

    def __init__(self, *, steps: Steps, noise: NoiseSource, timer_offset: int, **options: Any) -> None:
        super().__init__(steps=steps, noise=noise, timer_offset=timer_offset, **options)
        self._orders = SourcesByName(partial(noise.derive, ITEM_ORDER))

    @override
    def set_due(self, timer: Any, step: int) -> None:
        fire = self.steps.decision_time(self._last_of_period(step), self.timer_offset)
        set_timer(timer, fire, hold=self.steps.decision_time(step, self.timer_offset), tag=str(step))

    @override
    def due(self, decoded: Decoded, last: int) -> Iterator[tuple[int, list[tuple[StepKey, Any]]]]:
        while (until := self._last_of_period(decoded.first)) <= last:
            records = dict(decoded.take_until(until))
            size = sum(InStreams.bytes_of(sealed_batch(record)) for each in records.values() for record in each)
            bits = (size // AT_ONCE).bit_length()
            counted: dict[int, Counted] = {}
            for number in range(1 << bits):
                for step, chosen in self.choose(self._held(records, PartOfPeople(bits, number))):
                    found = self._counted(chosen)
                    counted[step] = found if step not in counted else counted[step].with_more(found)
            for step in sorted(counted):
                yield step, [(StepKey("", step, 0), counted[step])]
            for record in chain.from_iterable(records.values()):
                InStreams.release(sealed_batch(record))

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, Any]], state: Used) -> Handled:
        ((_, counted),) = batches
        self.limited.add(step, counted.came, counted.came - counted.kept)
        return Handled(state, None, [*by_group(step, counted.counts, self.groups, self.key_shards)])

    def _counted(self, chosen: Chosen) -> Counted:
        """Count what was chosen of a step."""
        counts = self._count(chosen.held, chosen.rows, chosen.new)
        return Counted(chosen.came, len(chosen.rows), counts)

    def _held(self, records: Mapping[int, Sequence[bytes]], part: PartOfPeople) -> Held:
        """Return what a part of people has in each step in which it has something."""
        held: Held = {}
        for step, each in records.items():
            some = [record for record in each if part.meets(PartOfPeople.of_code(sealed_key(record).shard))]
            whole = [self.unpack(record) for record in some]
            rows = [part.rows(one.users) for one in whole]
            found = [
                one if len(these) == len(one.users) else one.take(these, named=False)
                for one, these in zip(whole, rows, strict=True)
                if len(these)
            ]
            if found:
                held[step] = InStreams.join(HolderBatch, found)
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
        sizes = [len(each.users) for each in held.values()]
        starts = np.cumsum([0, *sizes])
        users = np.concatenate([each.users for each in held.values()])
        order = in_order(users, runs=True)  # person by person, and of each the earlier steps first
        persons = np.cumsum(first_of_run(users[order]), dtype=np.int32) - 1
        del users
        steps = np.repeat(np.arange(len(held), dtype=np.int32), sizes)[order]
        first, pairs = None, np.empty(0, np.uint64)
        if self.distinct:  # a person's first contribution to a key stands for all of them
            pairs = np.concatenate([self._pairs(each, np.arange(len(each.users))) for each in held.values()])[order]
            first = np.unique(pairs, return_index=True)[1]
        counts = self._counts(held, starts, order, persons, steps, first)
        came = slice(None) if first is None else _not_counted_before(pairs, first, counts)
        number = np.bincount(steps[came], minlength=len(held)).tolist() if self.distinct else sizes
        listed = []
        if self.lists is not None:
            listed = self._listed_of(self.lists, held, starts, order, persons, steps, counts)
        del persons, steps, came, pairs
        chosen = np.empty(len(order), bool)
        chosen[order] = counts
        rows = [np.flatnonzero(some) for some in np.split(chosen, starts[1:-1])]
        new = self._new(held, rows, listed)
        del order, counts, chosen
        for place, (step, some, marks) in enumerate(zip(list(held), rows, new, strict=True)):
            yield step, Chosen(held.pop(step), number[place], some, marks)

    def _counts(
        self,
        held: Held,
        starts: np.ndarray,
        order: np.ndarray,
        persons: np.ndarray,
        steps: np.ndarray,
        first: np.ndarray | None,
    ) -> np.ndarray:
        """Return which rows count, bool (n,), person by person.

        Args:
            held: what people have.
            starts: the rows of the i-th step are starts[i] to starts[i + 1] of all.
            order: int64 (n,), the rows, person by person.
            persons, steps: numbers of person and step, in this order.
            first: places, in this order, of the rows that alone can count; None if all can.
        """
        assert self.contributions is not None
        at_once = self.contributions if self.per_window is None else self.per_window
        counts = np.ones(len(order), bool)
        if first is not None:
            counts[:] = False
            counts[first] = True
        over = np.flatnonzero(counts & (np.bincount(persons) > min(at_once, self.contributions))[persons])
        draws = self._draws(held, starts, order[over])
        if self.per_window is not None:
            in_step = persons[over] * np.int64(len(held)) + steps[over]
            counts[over[_beyond(in_step, draws, self.per_window)]] = False
            kept = counts[over]
            over, draws = over[kept], draws[kept]
        counts[over[_beyond(persons[over], draws, self.contributions)]] = False
        return counts

    def _draws(self, held: Held, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the random numbers of some rows of all steps, uint64."""
        wanted = np.zeros(starts[-1], bool)
        wanted[rows] = True
        drawn = np.empty(len(wanted), np.uint64)
        for (step, each), start, end in zip(held.items(), starts, starts[1:], strict=False):
            some = np.flatnonzero(wanted[start:end])
            drawn[start + some] = self._drawn(step, each, some)
        return np.asarray(drawn[rows])

    def _drawn(self, step: int, held: InStreams[HolderBatch], rows: np.ndarray) -> np.ndarray:
        """Return the random numbers of some rows of a step, uint64."""
        labels = np.stack([held.users[rows], held.batch.items[rows]], axis=1)
        order = self.steps.first_of_period(step) if self.distinct else step  # as in `BoundPerWindow`
        return draw_in_streams(
            lambda stream: self._orders[stream].derive(order), held.streams, held.codes[rows], labels
        )

    def _new(self, held: Held, rows: Sequence[np.ndarray], listed: Sequence[Listed]) -> Iterator[np.ndarray | None]:
        """Yield for each step which rows make a person new to a key, or put it on its list, bool; None if nobody asks.

        Args:
            held: what people have.
            rows: those that count, for each step.
            listed: what lists have of each step, if there are any.
        """
        if self.lists is not None:
            yield from self._on_lists(self.lists, held, listed)
        elif self.newcomers:
            pairs = [self._pairs(each, some) for each, some in zip(held.values(), rows, strict=True)]
            new = np.zeros(sum(map(len, pairs)), bool)
            new[np.unique(np.concatenate(pairs), return_index=True)[1]] = True
            ends = np.cumsum([len(some) for some in pairs])[:-1]
            for each, some, marks in zip(list(held.values()), rows, np.split(new, ends), strict=True):
                found = np.zeros(len(each.users), bool)
                found[some] = marks
                yield found
        else:
            yield from (None for _ in rows)

    def _listed_of(
        self,
        lists: PeopleLists,
        held: Held,
        starts: np.ndarray,
        order: np.ndarray,
        persons: np.ndarray,
        steps: np.ndarray,
        counts: np.ndarray,
    ) -> list[Listed]:
        """Return what lists have of each step: of most people the first rows that count, which have different items.

        Where they have not, or others of the same step count as well, it depends on keyed hashes, which cost more.

        Args:
            starts, order, persons, steps: as in `_counts`.
            counts: which rows count, bool (n,), in this order.
        """
        in_time = np.array([self.steps.number(step) <= lists.last for step in held])
        rows = np.flatnonzero(counts if in_time.all() else counts & in_time[steps])
        whose, when = persons[rows], steps[rows]
        firsts = np.ones(len(rows), bool)
        firsts[lists.keys :] = whose[lists.keys :] != whose[: -lists.keys]
        unsure = np.zeros(int(persons.max(initial=-1)) + 1, bool)
        unsure[whose[1:][firsts[:-1] & ~firsts[1:] & (when[1:] == when[:-1])]] = True
        first, of_first = rows[firsts], whose[firsts]
        items = np.concatenate([each.batch.items for each in held.values()])[order[first]]
        for back in range(1, lists.keys):
            again = (items[back:] == items[:-back]) & (of_first[back:] == of_first[:-back])
            unsure[of_first[back:][again]] = True
        plainly = np.zeros(len(order), bool)
        plainly[order[first[~unsure[of_first]]]] = True
        open_ = np.flatnonzero(unsure[whose])
        places, people = order[rows[open_]], (np.cumsum(unsure) - 1)[whose[open_]]
        by_row = np.argsort(places)
        places, people = places[by_row], people[by_row]
        ends = np.searchsorted(places, starts)
        return [
            Listed(plainly[start:end], places[one:other] - start, people[one:other])
            for (start, end), (one, other) in zip(pairwise(starts.tolist()), pairwise(ends.tolist()), strict=True)
        ]

    def _on_lists(self, lists: PeopleLists, held: Held, listed: Sequence[Listed]) -> Iterator[np.ndarray | None]:
        """Yield for each step up to the last one of lists which rows put a person on a list; None after it."""
        keys, number = lists.keys, 1 + max((int(each.people.max()) for each in listed if len(each.people)), default=-1)
        used, known = np.zeros(number, np.int32), np.zeros((number, keys), np.uint64)
        for (step, each), (found, rows, people) in zip(list(held.items()), listed, strict=True):
            if self.steps.number(step) > lists.last:
                yield None
                continue
            room = used[people] < keys
            open_, whose = rows[room], people[room]
            own = self._pairs(each, open_)
            fresh = np.flatnonzero((known[whose] != own[:, None]).all(axis=1))
            open_, whose, own = open_[fresh], whose[fresh], own[fresh]
            grouped = distinct, _, wanted = by_person(whose)
            left = keys - used[distinct]
            within = first_drawn(grouped, left, own.__getitem__)
            open_, whose, own = open_[within], whose[within], own[within]
            known[whose, used[whose] + place_in_run(whose, np.argsort(whose, kind="stable"))] = own
            used[distinct] += np.minimum(wanted, left).astype(np.int32)
            found[open_] = True
            yield found


def _not_counted_before(pairs: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the rows, increasing, before which none with the same number in `pairs` counts.

    Args:
        pairs: uint64 (n,).
        first: the first row with each number, in the order of numbers.
        counts: bool (n,), of these rows alone.
    """
    before = counts[first][np.searchsorted(pairs[first], pairs)]
    before[first] = False
    return np.flatnonzero(~before)


def _beyond(groups: np.ndarray, draws: np.ndarray, limit: int) -> np.ndarray:
    """Return the rows that are not among so many of their group with the least random numbers; groups are in order."""
    firsts = np.flatnonzero(first_of_run(groups))
    lengths = np.diff(np.append(firsts, len(groups)))
    place = np.arange(len(groups)) - np.repeat(firsts, lengths)
    return sorted_in_groups(groups, draws)[place >= limit]
