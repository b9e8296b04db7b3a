"""The stages that split events by window and person, bound what one person contributes, and count what they drop."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import Charges, UserCounters
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    StepKey,
    encode,
    named,
    people_key,
    rows_of,
    take_arguments,
)
from privstream.transforms.counters import CLOSED, count_dropped
from privstream.transforms.people.bound import (
    ITEM_ORDER,
    EventSplitter,
    added_up,
    bound_people,
    draws_of_pairs,
)
from privstream.transforms.timing.clock import Closed, on_clock, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class SplitEvents(EventSplitter, beam.DoFn):
    """Splits events by step and shard of people."""


class SplitByRules(SplitEvents):
    """An event counts for each rule that it meets, whose number takes the place of the item."""

    rules: Sequence[Any]  # with `items`, or None for all of them
    positions = True

    @override
    def usable(
        self, batch: pa.RecordBatch, codes: np.ndarray | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        batch, steps, _ = super().usable(batch, np.where(self._met(batch).any(axis=1), 0, -1))
        places, rules = np.nonzero(self._met(batch))
        return batch.take(pa.array(places)), steps[places], rules

    def _met(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return which rules each event meets, bool (events, rules)."""
        met = np.ones((batch.num_rows, len(self.rules)), bool)
        for number, rule in enumerate(self.rules):
            if rule.items is not None:
                items = pa.array(rule.items, batch["item"].type)
                met[:, number] = pc.is_in(batch["item"], items).to_numpy(zero_copy_only=False)
        return met


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

    They go to one clock, `counted` where nobody asks whose they are; or `by_people`, for what bounds the whole run, by
    shard of people; `in_parts`, large ones as several records (see `PartOfPeople`). Of a person random items are kept.
    Unless they are `ranked`, all ranks are 0. A person's random order of items is the same in all steps of a period if
    they are `distinct`, and count once in it; otherwise each step has its own.
    """

    noise: NoiseSource
    items_per_step: int
    counted = False
    by_people = False
    in_parts = False
    ranked = True
    distinct = False

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
        count_dropped("items", len(rows) + dropped, dropped)
        values = None if events.values is None else added_up(events.users, events.items, events.values)[rows]
        held = HolderBatch(events.users[rows], events.items[rows], ranks, events.names, values)
        if self.counted:
            yield on_clock(key.step, encode_counts(*np.unique(held.items, return_counts=True)))
        elif not self.by_people:
            yield on_clock(key.step, encode(named(held)))
        elif not self.in_parts:
            yield people_key(key.shard), stepped(key.step, encode(held))
        else:
            for part, some in parts_of_people(held):
                yield people_key(key.shard), stepped(key.step, part.to_bytes() + encode(some))


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


class LimitRows(StepFn, state="limit_rows"):
    """Per shard of people: drop what is beyond a person's limit over the whole run, and count the rest.

    Steps are handled in order, and what a person has in a step in the order of its ranks. So what is left depends on
    the person's own events alone. The log has whom a step charges.
    """

    limit: int
    whole_steps = False  # whether all that a person has in a step is charged once

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        rows = HolderBatch.read(batches)
        places = 0 if self.whole_steps else rows.ranks.astype(np.int64)
        admitted = places < self.limit - state.charged(rows.users)
        count_dropped("contributions", len(admitted), int(len(admitted) - admitted.sum()))
        people = rows.users[admitted]
        charges = Charges.of(np.unique(people) if self.whole_steps else people)
        if not len(charges):
            return Stepped(state, (), unchanged)
        counts = encode_counts(*np.unique(rows.items[admitted], return_counts=True))
        return Stepped(state.add(charges), [on_clock(step, counts)], charges.to_bytes)

    @override
    def initial(self, key: bytes) -> UserCounters:
        return UserCounters()

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> UserCounters:
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    @override
    def encode(self, state: UserCounters) -> list[bytes]:
        return state.compact().to_segments()
