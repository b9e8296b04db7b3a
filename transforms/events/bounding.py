"""Bound what one person contributes: to a step, and over the whole run; and count what limits leave out."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from apache_beam.pvalue import PCollection
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    StepKey,
    decode,
    encode,
    first_of_run,
    in_order,
    named,
    rows_of,
    shard_key,
    totals,
)
from privstream.transforms.counters import counter
from privstream.transforms.events.parameters import PARTS
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split import people_key
from privstream.transforms.spill import release
from privstream.transforms.timing.clock import WithClock, stepped
from privstream.transforms.timing.closing import ClosedWindow
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

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
        self._came = [counter(f"{name}_before_limit{part}") for part in PARTS]
        self._left_out = [counter(f"{name}_over_limit{part}") for part in PARTS]
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


ITEM_ORDER = "item order"
"""The noise that draws the random order of a person's items in a window."""


class Kept(NamedTuple):
    """What is kept of events.

    Attributes:
        rows: one for each item of a person that is kept, person by person, in the order of their numbers.
        ranks: uint16, for each of these the place of its item in a random order of the person's kept items; zeros where
            nobody asks for it.
        left_out: how many items of people are not kept, however often and in whichever batches they came.
    """

    rows: np.ndarray
    ranks: np.ndarray
    left_out: int


def distinct_pairs(users: np.ndarray, items: np.ndarray) -> int:
    """Return how many different pairs of a person and an item there are."""
    order = np.lexsort((items, users))
    return int(first_of_run(users[order], items[order]).sum())


def last_of_each(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the row of the last event of each person; of several at one time, that of the least item."""
    order = np.lexsort((items, -times, users))
    rows: np.ndarray = order[first_of_run(users[order])]
    return rows


def bound_people(
    users: np.ndarray,
    items: np.ndarray,
    times: np.ndarray,
    *,
    limit: int,
    draws: Callable[[np.ndarray], np.ndarray],
    ranked: bool = True,
) -> Kept:
    """Choose rows such that each person keeps at most `limit` distinct items, random ones.

    Args:
        users: uint64, shape (n,).
        items: uint64, shape (n,).
        times: int64 microseconds, shape (n,).
        limit: items kept per person, >= 1.
        draws: returns random numbers, uint64, for rows in the order of `users`: of each pair of person and item.
        ranked: whether ranks are needed; else draws are asked for people with more items than the limit alone.

    Returns:
        What is kept: a function of each person's own events, the limit and the draws alone, whatever their order in
        the input.
    """
    order = in_order(users)
    kept = first_of_run(users[order])
    kept[:-1] &= kept[1:]
    others = np.flatnonzero(~kept)  # most have one event in a window: nothing to choose, nothing to draw
    many = order[others]
    rows, of_many, left_out = _choose(
        users[many],
        items[many],
        times[many],
        limit,
        ranked=ranked,
        draws=lambda rows: draws(many[rows]),
    )
    kept[others[rows]] = True
    ranks = np.zeros(len(order), np.uint16)
    ranks[others[rows]] = of_many
    return Kept(order[kept], ranks[kept], left_out)


def _choose(
    users: np.ndarray,
    items: np.ndarray,
    times: np.ndarray,
    limit: int,
    *,
    ranked: bool,
    draws: Callable[[np.ndarray], np.ndarray],
) -> Kept:
    """Choose rows at random, and rank them; `users` are nondecreasing, and so are those chosen."""
    if not ranked:  # what is asked is whether, not when
        order = sorted_in_groups(np.cumsum(first_of_run(users)) - 1, items)
    else:
        order = np.lexsort((times, items, users))
    held = order[first_of_run(users[order], items[order])]  # by person, then by item
    some = np.arange(len(held)) if ranked else np.flatnonzero(_run_lengths(users[held]) > limit)
    rows = held[some]
    place = place_in_run(users[rows], np.lexsort((items[rows], draws(rows), users[rows])))
    kept, ranks = np.ones(len(held), bool), np.zeros(len(held), np.uint16)
    kept[some] = within = place < limit
    if ranked:
        ranks[kept] = place[within]
    return Kept(held[kept], ranks[kept], int(len(held) - kept.sum()))


def sorted_in_groups(groups: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the order by group, and in each by numbers: what `lexsort` gives, in a part of its time.

    Args:
        groups: integers, at least 0.
        numbers: uint64.
    """
    free = 64 - int(groups.max(initial=0)).bit_length()
    left_out = max(0, int(numbers.max(initial=0)).bit_length() - free)
    words = (groups.astype(np.uint64) << np.uint64(min(free, 63))) | (numbers >> np.uint64(left_out))
    order = in_order(words)
    words, ordered = words[order], numbers[order]
    sorted_ = np.all((ordered[1:] >= ordered[:-1]) | (words[1:] != words[:-1]))
    return order if sorted_ else np.lexsort((numbers, groups))


def added_up(users: np.ndarray, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row the sum, int64, of the whole numbers in all rows with its person and item."""
    order = np.lexsort((items, users))
    first = first_of_run(users[order], items[order])
    pairs = np.empty(len(order), np.int64)
    pairs[order] = np.cumsum(first) - 1
    return totals(pairs, values.astype(np.int64), int(first.sum()))[pairs]


def _run_lengths(users: np.ndarray) -> np.ndarray:
    """Return for each of sorted rows how many there are of its person."""
    first = np.flatnonzero(first_of_run(users))
    lengths = np.diff(np.append(first, len(users)))
    return np.repeat(lengths, lengths)


def place_in_run(users: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return for each row how many rows of the same person come before it in `order`, which sorts by person."""
    first = np.flatnonzero(first_of_run(users[order]))
    lengths = np.diff(np.append(first, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return place


def draws_of_pairs(noise: NoiseSource, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return a random word for each pair of a person and an item, uint64: a function of the pair and the noise key."""
    return np.asarray(noise.words(np.stack([users, items], axis=1))[:, 0, 0])


def within_limit(
    people: np.ndarray,
    limit: int,
    used: UserCounters,
    draws: Callable[[np.ndarray], np.ndarray],
    *,
    at_once: int | None = None,
) -> np.ndarray:
    """Mark the rows that people have something left for: of each person those that come first in a random order.

    Args:
        people: uint64 hashes, one for each row.
        limit: how much one person may use until now.
        used: what people have used before.
        draws: random words for some rows, uint64, that depend on nothing but what the row says of its person.
        at_once: how much one person may use of these rows; None for all that is left.
    """
    grouped = distinct, _, _ = by_person(people)
    left = limit - used.charged(distinct)
    if at_once is not None:
        left = np.minimum(left, at_once)
    return first_drawn(grouped, left, draws)


def first_drawn(
    grouped: tuple[np.ndarray, np.ndarray, np.ndarray], left: np.ndarray, draws: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Mark so many rows of each person, those that come first in a random order.

    Args:
        grouped: see `by_person`.
        left: how many rows of each person.
        draws: random words for some rows, uint64.
    """
    _, person, wanted = grouped
    kept = np.ones(len(person), bool)
    over = np.flatnonzero((wanted > left)[person])  # few: nobody else's rows need an order
    place = place_in_run(person[over], sorted_in_groups(person[over], draws(over)))
    kept[over] = place < left[person[over]]
    return kept


def by_person(people: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distinct people, increasing, for each row the place of its person, and how many rows each person has."""
    if np.any(people[1:] < people[:-1]):
        return np.unique(people, return_inverse=True, return_counts=True)
    first = first_of_run(people)  # people of one batch are in order: nothing to sort
    starts = np.flatnonzero(first)
    return people[starts], np.cumsum(first) - 1, np.diff(np.append(starts, len(people)))


class BoundEvents(ClosedWindow):
    """Per step and shard of people, or of items: the events of a step that were in time, together."""

    def __init__(self, *, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    @abstractmethod
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        """Send on what counts of the events of one key."""

    @override
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        for batch in batches:
            release(batch)
        yield from self.bound(key, events)


class BoundPerWindow(BoundEvents):
    """Events in, bounded holdings out, with sums of values if any.

    They go on keyed by shard of items, or `by_people`, for what bounds the whole run, by shard of people; `in_parts`,
    large ones as several records (see `PartOfPeople`). Of a person random items are kept. Unless they are `ranked`, all
    ranks are 0. A person's random order of items is the same in all steps of a period if they are `distinct`, and count
    once in it; otherwise each step has its own.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        items_per_step: int,
        item_shards: int,
        by_people: bool = False,
        in_parts: bool = False,
        ranked: bool = True,
        distinct: bool = False,
    ) -> None:
        super().__init__(steps=steps)
        self._orders = noise.derive(ITEM_ORDER)
        self.distinct = distinct
        self.ranked = ranked
        self.items_per_step = items_per_step
        self.item_shards = item_shards
        self.by_people = by_people
        self.in_parts = in_parts
        self.limited = LimitCounter("items", steps)

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = self._orders.derive(self.steps.first_of_period(key.step) if self.distinct else key.step)
        kept = bound_people(
            events.users,
            events.items,
            events.times,
            limit=self.items_per_step,
            draws=lambda rows: draws_of_pairs(order, events.users[rows], events.items[rows]),
            ranked=self.ranked,
        )
        self.limited.add(key.step, len(kept.rows) + kept.left_out, kept.left_out)
        values = None if events.values is None else added_up(events.users, events.items, events.values)[kept.rows]
        held = HolderBatch(events.users[kept.rows], events.items[kept.rows], kept.ranks, events.names, values)
        if self.by_people and self.in_parts:
            for part, some in parts_of_people(held):
                yield people_key(key.shard), stepped(key.step, part.to_bytes() + encode(some))
        elif self.by_people:
            yield people_key(key.shard), stepped(key.step, encode(held))
        else:
            yield from split_by_item(key.step, held, self.item_shards)


_PART = struct.Struct(">I")
PART_ROWS = 1 << 17
"""Rows of a record, about, where people are parted."""


class PartOfPeople(NamedTuple):
    """The people whose hashes begin with some bits: as many as there are, and the number that they are."""

    bits: int
    number: int

    def to_bytes(self) -> bytes:
        """Encode."""
        return _PART.pack((1 << self.bits) + self.number)

    @classmethod
    def split_off(cls, record: bytes) -> tuple[PartOfPeople, bytes]:
        """Return the part at the beginning of a record, and what follows it."""
        (code,) = _PART.unpack_from(record)
        bits = code.bit_length() - 1
        return cls(bits, code & ((1 << bits) - 1)), record[_PART.size :]

    def meets(self, other: PartOfPeople) -> bool:
        """Tell whether somebody can be in both parts: the bits of one begin with those of the other."""
        bits = min(self.bits, other.bits)
        return self.number >> (self.bits - bits) == other.number >> (other.bits - bits)

    def rows(self, users: np.ndarray) -> np.ndarray:
        """Return the rows of its people, increasing; `users`: uint64 hashes."""
        if not self.bits:
            return np.arange(len(users))
        return np.flatnonzero(users >> np.uint64(64 - self.bits) == np.uint64(self.number))


def parts_of_people(held: HolderBatch) -> Iterator[tuple[PartOfPeople, HolderBatch]]:
    """Yield what people have in parts of people, each of `PART_ROWS` rows about; as it is if it has no more."""
    bits = (max(0, len(held.users) - 1) // PART_ROWS).bit_length()
    for number in range(1 << bits):
        part = PartOfPeople(bits, number)
        yield part, named(rows_of(held, part.rows(held.users))) if part.bits else held


def split_by_item(step: int, held: HolderBatch, shards: int) -> Iterator[Keyed]:
    """Part holdings by shard of items."""
    shard = held.items % np.uint64(shards)
    for i in np.unique(shard).tolist():
        yield shard_key(i), stepped(step, encode(named(rows_of(held, np.flatnonzero(shard == i)))))


Charged = dict[str, Charges]
"""What a step charges people: for each limit whom, and how much."""


@dataclass(frozen=True)
class Used:
    """How much people have used of each limit of the whole run, by the name of the limit."""

    counters: Mapping[str, UserCounters]

    def __getitem__(self, limit: str) -> UserCounters:
        return self.counters[limit]

    def after(self, charged: Charged) -> Used:
        """Return what follows a step."""
        return Used({limit: counter.add(charged[limit]) for limit, counter in self.counters.items()})

    def compact(self) -> Charged:
        """Return all that was charged so far."""
        return {limit: counter.compact() for limit, counter in self.counters.items()}

    def entries(self, kind: str) -> list[bytes]:
        """Write one entry per person and limit, for a log (see `entry`)."""
        charges = self.compact()
        starts = range(0, max(map(len, charges.values())), SEGMENT)
        return [
            entry(kind, {limit: one.slice(start, start + SEGMENT) for limit, one in charges.items()})
            for start in starts
        ]

    @classmethod
    def of_entries(cls, kind: str, limits: Sequence[str], entries: Sequence[bytes]) -> Used:
        """Add up a log."""
        found: list[dict[str, Any]] = [unpack(kind, 1, one) for one in entries]
        return cls({limit: UserCounters.of(Charges.from_bytes(one[limit]) for one in found) for limit in limits})


def entry(kind: str, charged: Charged, **more: int | bytes) -> bytes:
    """Encode one entry of a log of charges."""
    return pack(kind, 1, more | {limit: charges.to_bytes() for limit, charges in charged.items()})


class ChargesInOrder(StepFn):
    """Steps in order that charge people for one thing alone; the log has their charges."""

    @override
    def initial(self, key: bytes) -> UserCounters:
        return UserCounters()

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> UserCounters:
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    @override
    def encode(self, state: UserCounters) -> list[bytes]:
        return state.compact().to_segments()


class BoundOverRun(StepFn):
    """Per shard of people, step after step: leave out what is beyond people's limits over the whole run.

    Steps are handled in order, and what a person has in a step in an order that depends on nothing but that, the person
    and the noise key. So what is left depends on the person's own events alone.

    A subclass names the kind of its log's entries, and its limits, in the order in which an entry has them.
    """

    kind: ClassVar[str]
    limit_names: tuple[str, ...]

    @abstractmethod
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        """Return what a step charges, and what is sent on."""

    def remembered(self, step: int, used: Used) -> Used:
        """Return what is still needed after a step of what people have used."""
        return used

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Used) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        held = HolderBatch.join([decode(HolderBatch, batch) for batch in batches])
        charged, outputs = self.admit(key, step, held, state)
        after = self.remembered(step, state).after(charged)
        return Stepped(after, outputs, lambda: entry(self.kind, charged) if any(map(len, charged.values())) else b"")

    @override
    def initial(self, key: bytes) -> Used:
        return Used.of_entries(self.kind, self.limit_names, ())

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Used:
        return Used.of_entries(self.kind, self.limit_names, segments)

    @override
    def encode(self, state: Used) -> list[bytes]:
        return state.entries(self.kind)


class BoundAcrossWindows(BoundOverRun, state="bound_across_windows"):
    """Leave out who has taken part in enough steps, `participations`; the rest goes on by shard of items."""

    kind = "contributions"
    limit_names = ("participations",)

    def __init__(
        self,
        *,
        steps: Steps,
        timer_offset: int,
        item_shards: int,
        participations: int,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.item_shards = item_shards
        self.participations = participations
        self.limited = LimitCounter("holdings", steps)

    @override
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        people, person = np.unique(held.users, return_inverse=True)
        admitted = used["participations"].charged(people) < self.participations
        kept = admitted[person]
        self.limited.add(step, len(kept), int(len(kept) - kept.sum()))
        charged = {"participations": Charges.of(people[admitted])}
        if not kept.any():
            return charged, []
        return charged, list(split_by_item(step, rows_of(held, np.flatnonzero(kept)), self.item_shards))


def bound_items_of_people(
    closed: PCollection[Any],
    apply_dofn: ApplyDoFn,
    *,
    steps: Steps,
    noise: NoiseSource,
    items_per_step: int,
    item_shards: int,
    participations: int | None,
    people: Iterable[bytes],
) -> PCollection[Any]:
    """Add the stages from windows that are closed to who has what, by shard of items: two, or one without a limit.

    Args:
        closed: batches of events; see `CloseWindows`.
        apply_dofn: adds a stage.
        steps, noise, items_per_step, item_shards: see `BoundPerWindow`.
        participations: see `BoundAcrossWindows`; None for no limit.
        people: the keys of shards of people.
    """
    common: dict[str, Any] = {"steps": steps, "item_shards": item_shards}
    limits = participations is not None
    bound = BoundPerWindow(**common, noise=noise, items_per_step=items_per_step, by_people=limits)
    held = apply_dofn(closed, bound, Keyed)
    if participations is None:
        return held
    limit = BoundAcrossWindows(**common, timer_offset=1, participations=participations)
    return apply_dofn(held | "PeopleClocks" >> WithClock(steps, people), limit, Keyed)
