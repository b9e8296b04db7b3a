"""The stages that split events by window and person, bound what one person contributes, and count what they drop."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
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
    people_key,
    rows_of,
    take_arguments,
)
from privstream.transforms.counters import CLOSED
from privstream.transforms.people.bound import (
    ITEM_ORDER,
    EventReader,
    EventSplitter,
    added_up,
    bound_people,
    draws_of_pairs,
)
from privstream.transforms.timing.clock import STEP, Closed, on_clock, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class ReadEvents(EventReader, beam.DoFn):
    """What stages share that read events."""


class SplitEvents(EventSplitter, beam.DoFn):
    """Splits events by step and shard of people."""


_PART = struct.Struct(">I")
PART_ROWS = 1 << 17
"""Rows of a record, about, where people are parted."""


class LimitCounter:
    """Counts what comes to a limit, and what it drops: exact, and not for publication.

    Args:
        name: of the limit: the counters are `<name>_before_limit` and `<name>_over_limit`.
    """

    def __init__(self, name: str) -> None:
        self._came = Metrics.counter("privstream", f"{name}_before_limit")
        self._dropped = Metrics.counter("privstream", f"{name}_over_limit")

    def add(self, came: int, dropped: int) -> None:
        """Count what came, and how much of it was dropped."""
        self._came.inc(came)
        self._dropped.inc(dropped)


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
        yield part, named(rows_of(held, part.rows(held.users))) if bits else held


class BoundEvents(beam.DoFn):
    """Per step and shard of people, or of items: the events of a step that were in time, together, once.

    It keeps no state; what it is made with are its attributes.
    """

    steps: Steps
    closed = Metrics.counter("privstream", CLOSED)

    def __init__(self, **given: Any) -> None:
        take_arguments(self, given)

    @abstractmethod
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        """Send on what counts of the events of one key, which are in an order that depends on their bytes alone."""

    @override
    def process(self, element: Closed) -> Iterator[Keyed]:
        key, found = element
        batches = sorted(found, key=lambda batch: batch[1])
        self.closed.inc(sum(events for events, _ in batches))
        together = EventBatch.read(batch for _, batch in batches)
        yield from self.bound(StepKey.from_bytes(key), together)


class BoundPerWindow(BoundEvents):
    """Events in, bounded holdings out, with sums of values if any.

    They go to one clock, or `by_people`, for what bounds the whole run, by shard of people; `in_parts`,
    large ones as several records (see `PartOfPeople`). Of a person random items are kept. Unless they are `ranked`, all
    ranks are 0. A person's random order of items is the same in all steps of a period if they are `distinct`, and count
    once in it; otherwise each step has its own.
    """

    noise: NoiseSource
    items_per_step: int
    by_people = False
    in_parts = False
    ranked = True
    distinct = False
    limited = LimitCounter("items")

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = self.noise.derive(ITEM_ORDER).derive(
            self.steps.first_of_period(key.step) if self.distinct else key.step
        )
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
            yield on_clock(key.step, encode(named(held)))
        elif not self.in_parts:
            yield people_key(key.shard), stepped(key.step, encode(held))
        else:
            for part, some in parts_of_people(held):
                yield people_key(key.shard), stepped(key.step, part.to_bytes() + encode(some))


Charged = dict[str, Charges]
"""What a step charges people: for each limit whom, and how much; a limit that is not in it is needed no more."""


Used = Mapping[str, UserCounters]
"""How much people have used of each limit of the whole run, by the name of the limit."""


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
    """Per shard of people, step after step: drop what is beyond people's limits over the whole run.

    Steps are handled in order, and what a person has in a step in an order that depends on nothing but that, the person
    and the noise key. So what is left depends on the person's own events alone.

    A subclass names the kind of its log's entries, and its limits, in the order in which an entry has them.
    """

    kind: ClassVar[str]
    limit_names: tuple[str, ...]

    @abstractmethod
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        """Return what a step charges, and what is sent on."""

    @override
    def initial(self, key: bytes) -> Used:
        return {limit: UserCounters() for limit in self.limit_names}

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Used) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        held = HolderBatch.read(batches)
        charged, outputs = self.admit(key, step, held, state)
        after = {
            limit: used.add(charged[limit]) if limit in charged else UserCounters() for limit, used in state.items()
        }
        return Stepped(after, outputs, lambda: self._entry(charged) if any(map(len, charged.values())) else b"")

    def _entry(self, charged: Charged) -> bytes:
        nobody = Charges.none()
        return pack(self.kind, 1, {limit: charged.get(limit, nobody).to_bytes() for limit in self.limit_names})

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Used:
        found: list[dict[str, Any]] = [unpack(self.kind, 1, one) for one in segments]
        charges = {limit: [Charges.from_bytes(one[limit]) for one in found] for limit in self.limit_names}
        return {limit: UserCounters.of(each) for limit, each in charges.items()}

    @override
    def encode(self, state: Used) -> list[bytes]:
        charges = {limit: counter.compact() for limit, counter in state.items()}
        starts = range(0, max(map(len, charges.values())), SEGMENT)
        return [self._entry({limit: one.slice(at, at + SEGMENT) for limit, one in charges.items()}) for at in starts]


class BoundAcrossWindows(BoundOverRun, state="bound_across_windows"):
    """Drop who has taken part in enough steps, `participations`; the rest goes on to one clock."""

    kind = "contributions"
    limit_names = ("participations",)

    participations: int
    limited = LimitCounter("holdings")

    @override
    def admit(self, key: bytes, step: int, held: HolderBatch, used: Used) -> tuple[Charged, list[Keyed]]:
        people, person = np.unique(held.users, return_inverse=True)
        admitted = used["participations"].charged(people) < self.participations
        kept = admitted[person]
        self.limited.add(len(kept), int(len(kept) - kept.sum()))
        charged = {"participations": Charges.of(people[admitted])}
        if not kept.any():
            return charged, []
        return charged, [on_clock(step, encode(named(rows_of(held, np.flatnonzero(kept)))))]


def encode_counts(positions: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode how often distinct positions of a list were counted."""
    return pack("counts", 1, {"positions": positions.astype(np.uint32), "counts": counts.astype(np.int64)})


def add_counts(batches: Iterable[bytes], size: int) -> np.ndarray:
    """Return the sums of counts for all positions of a list, int64 (size,)."""
    found = np.zeros(size, np.int64)
    for batch in batches:
        one = unpack("counts", 1, batch)
        found[np.asarray(one["positions"])] += np.asarray(one["counts"])
    return found


class CountHolders(beam.DoFn):
    """Count the people with each item in a batch: each person is in one batch of a step, with an item at most once."""

    def __init__(self) -> None:
        self.counted = Metrics.counter("privstream", "holdings_counted")

    @override
    def process(self, element: Keyed) -> Iterator[Keyed]:
        (step,), held = STEP.unpack_from(element[1]), decode(HolderBatch, element[1][STEP.size :])
        self.counted.inc(len(held.items))
        yield on_clock(step, encode_counts(*np.unique(held.items, return_counts=True)))
