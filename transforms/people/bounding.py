"""The stages that bound what one person contributes: in a window, and over the whole run; and count what they drop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
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
    named,
    rows_of,
    seal_encoded,
)
from privstream.transforms.counters import counter
from privstream.transforms.people.bound import ITEM_ORDER, added_up, bound_people, draws_of_pairs
from privstream.transforms.people.split import people_key
from privstream.transforms.reading.dead_letters import late_events
from privstream.transforms.reading.domain import Domain
from privstream.transforms.spill import release
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

PART_ROWS = 1 << 17
"""Rows of a record, about, where people are parted."""


class LimitCounter:
    """Counts what comes to a limit, and what it drops: exact, and not for publication.

    Args:
        name: of the limit: the counters are `<name>_before_limit` and `<name>_over_limit`.
    """

    def __init__(self, name: str) -> None:
        self._came = counter(f"{name}_before_limit")
        self._dropped = counter(f"{name}_over_limit")

    def add(self, came: int, dropped: int) -> None:
        """Count what came, and how much of it was dropped."""
        self._came.inc(came)
        self._dropped.inc(dropped)


class PartOfPeople(NamedTuple):
    """The people whose hashes begin with some bits: as many as there are, and the number that they are."""

    bits: int
    number: int

    @property
    def code(self) -> int:
        """A number that stands for this part."""
        return (1 << self.bits) + self.number

    @classmethod
    def of_code(cls, code: int) -> PartOfPeople:
        """Return the part that a number stands for."""
        bits = max(1, code).bit_length() - 1
        return cls(bits, code & ((1 << bits) - 1))

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
        yield part, named(rows_of(held, part.rows(held.users))) if bits else held


class BoundEvents(OnTimeBatches):
    """Per step and shard of people, or of items: the events of a step that were in time, together.

    A batch without an on-time marker (see `WithOnTimeMarkers`) is late: it is counted and described in the dead-letter
    output, never used. When the step is due, all state of the key is freed.
    """

    def __init__(self, *, steps: Steps, timer_offset: int, domain: Domain | None = None) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain

    @abstractmethod
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        """Send on what counts of the events of one key."""

    @override
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        for batch in batches:
            release(batch)
        yield from self.bound(key, events)

    @override
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        events = decode(EventBatch, batch)
        self.late.inc(len(events.users))
        yield from late_events(self.steps, key, events, self.domain)


class BoundPerWindow(BoundEvents, state="bound_per_window"):
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
        timer_offset: int,
        items_per_step: int,
        item_shards: int,
        by_people: bool = False,
        in_parts: bool = False,
        ranked: bool = True,
        distinct: bool = False,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, domain=domain)
        self._orders = noise.derive(ITEM_ORDER)
        self.distinct = distinct
        self.ranked = ranked
        self.items_per_step = items_per_step
        self.item_shards = item_shards
        self.by_people = by_people
        self.in_parts = in_parts
        self.limited = LimitCounter("items")

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = self._orders.derive(self.steps.first_of_period(key.step) if self.distinct else key.step)
        rows, ranks, dropped = bound_people(
            events.users,
            events.items,
            limit=self.items_per_step,
            draws=lambda rows: draws_of_pairs(order, events.users[rows], events.items[rows]),
            ranked=self.ranked,
        )
        self.limited.add(len(rows) + dropped, dropped)
        values = None if events.values is None else added_up(events.users, events.items, events.values)[rows]
        held = HolderBatch(events.users[rows], events.items[rows], ranks, events.names, values)
        if not self.by_people:
            yield from split_by_item(key, held, self.item_shards)
        elif not self.in_parts:
            yield to_people(key, encode(held))
        else:
            for part, some in parts_of_people(held):
                yield people_key(key.shard), seal_encoded(key._replace(shard=part.code), encode(some))


def to_people(key: StepKey, data: bytes) -> Keyed:
    """Send what an encoded batch says of people on to the stage that bounds them over the whole run."""
    return people_key(key.shard), seal_encoded(key, data)


def split_by_item(key: StepKey, held: HolderBatch, shards: int) -> Iterator[Keyed]:
    """Part holdings by shard of items; those of an empty step go to a shard of their own."""
    shard = held.items % np.uint64(shards)
    for i in np.unique(shard).tolist():
        yield key._replace(shard=i).to_bytes(), encode(named(rows_of(held, np.flatnonzero(shard == i))))
    if not len(held.users):
        yield key._replace(shard=shards).to_bytes(), encode(held)


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


class ChargesInOrder(OrderedSteps):
    """Steps in order that charge people for one thing alone; the log has their charges."""

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> UserCounters:
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    @override
    def encode(self, state: UserCounters) -> list[bytes]:
        return state.compact().to_segments()


class HoldingsInOrder(OrderedSteps):
    """What people have, step after step."""

    domain: Domain | None

    @override
    def describe_late(self, key: StepKey, batch: HolderBatch) -> Iterator[Any]:
        return late_events(self.steps, key, batch, self.domain)


class BoundOverRun(HoldingsInOrder):
    """Per shard of people, step after step: drop what is beyond people's limits over the whole run.

    Steps are handled in order, and what a person has in a step in an order that depends on nothing but that, the person
    and the noise key. So what is left depends on the person's own events alone.

    A subclass names the kind of its log's entries, and its limits, in the order in which an entry has them.
    """

    kind: ClassVar[str]
    limit_names: tuple[str, ...]

    def __init__(self, *, steps: Steps, timer_offset: int, domain: Domain | None) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain

    @abstractmethod
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        """Return what a step charges, and what is sent on."""

    def remembered(self, step: int, used: Used) -> Used:
        """Return what is still needed after a step of what people have used."""
        return used

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Used) -> Handled:
        charged, outputs = self.admit(key, step, HolderBatch.join([batch for _, batch in batches]), state)
        segment = self._entry(charged) if any(map(len, charged.values())) else None
        return Handled(self.remembered(step, state).after(charged), segment, outputs)

    def _entry(self, charged: Charged) -> bytes:
        """Encode one entry of the log."""
        return pack(self.kind, 1, {limit: charges.to_bytes() for limit, charges in charged.items()})

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Used:
        found: list[dict[str, Any]] = [unpack(self.kind, 1, one) for one in segments]
        charges = {limit: [Charges.from_bytes(one[limit]) for one in found] for limit in self.limit_names}
        return Used({limit: UserCounters.of(each) for limit, each in charges.items()})

    @override
    def encode(self, state: Used) -> list[bytes]:
        charges = {limit: counter.compact() for limit, counter in state.counters.items()}
        starts = range(0, max(map(len, charges.values())), SEGMENT)
        return [self._entry({limit: one.slice(at, at + SEGMENT) for limit, one in charges.items()}) for at in starts]


class BoundAcrossWindows(BoundOverRun, state="bound_across_windows"):
    """Drop who has taken part in enough steps, `participations`; the rest goes on by shard of items."""

    kind = "contributions"
    limit_names = ("participations",)

    def __init__(
        self,
        *,
        steps: Steps,
        timer_offset: int,
        item_shards: int,
        participations: int,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, domain=domain)
        self.item_shards = item_shards
        self.participations = participations
        self.limited = LimitCounter("holdings")

    @override
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        people, person = np.unique(held.users, return_inverse=True)
        admitted = used["participations"].charged(people) < self.participations
        kept = admitted[person]
        self.limited.add(len(kept), int(len(kept) - kept.sum()))
        charged = {"participations": Charges.of(people[admitted])}
        if not kept.any():
            return charged, []
        return charged, list(split_by_item(StepKey(step, 0), rows_of(held, np.flatnonzero(kept)), self.item_shards))


def bound_items_of_people(
    batches: PCollection[Any],
    apply_dofn: ApplyDoFn,
    *,
    steps: Steps,
    noise: NoiseSource,
    items_per_step: int,
    item_shards: int,
    participations: int | None,
    domain: Domain | None,
) -> PCollection[Any]:
    """Add the stages from batches of events to who has what, by shard of items: two, or one without `participations`.

    Args:
        batches: of events, with on-time markers.
        apply_dofn: adds a stage.
        steps, noise, items_per_step, item_shards, domain: see `BoundPerWindow`.
        participations: see `BoundAcrossWindows`.
    """
    common: dict[str, Any] = {"steps": steps, "item_shards": item_shards, "domain": domain}
    limits = participations is not None
    bound = BoundPerWindow(**common, noise=noise, timer_offset=1, items_per_step=items_per_step, by_people=limits)
    held = apply_dofn(batches, bound, Keyed)
    if participations is None:
        return held
    limit = BoundAcrossWindows(**common, timer_offset=2, participations=participations)
    return apply_dofn(held, limit, Keyed)
