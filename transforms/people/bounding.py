"""Events by window and shard of people, and what counts of them: of what one person sends, as much as limits allow."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.mechanisms.mechanism import SEGMENT, Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    NO_NAMES,
    CountBatch,
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    Names,
    StepKey,
    distinct_in_order,
    encode,
    first_of_run,
    in_order,
    shard_key,
    string_buffers,
    take_arguments,
    totals,
)
from privstream.transforms.counters import CLOSED, SENT, count_dropped, counter
from privstream.transforms.timing.step_fn import NO_TIME, StepFn, Stepped, on_clock, stepped, unchanged
from privstream.transforms.timing.steps import MILLISECOND, Steps
from typing_extensions import override

THOUSANDTHS, LARGEST_AMOUNT = 1_000, 10**9
"""Parts of a limit in which amounts are counted, and the largest amount of one value: sums stay within 64 bits."""


def count_clipped(name: str, values: np.ndarray, within: np.ndarray, limit: int) -> None:
    """Count the values that a limit changes, and how much of the sum of all "values" this takes away: both are exact.

    Amounts are in thousandths of the limit, each rounded on its own: how values lie in batches changes nothing.
    "contributions" are sums of values that have been counted as they were read.
    """
    counter(f"{name}_clipped").inc(int((within != values).sum()))
    unit = limit / THOUSANDTHS
    amounts = (np.rint(np.minimum(np.abs(each) / unit, LARGEST_AMOUNT)) for each in (values, values - within))
    came, lost = (int(amount.sum()) for amount in amounts)
    counter(f"{name}_summed").inc(len(values))
    counter("sums_before_limit").inc(came if name == "values" else 0)
    counter("sums_over_limit").inc(lost)


class SplitEvents(beam.DoFn):
    """Turn checked Arrow batches (see `EventFields.schema`) into encoded `EventBatch`es, by step and shard of people.

    What lies outside of the public steps, or has no code, is counted and dropped. People and items become keyed
    64-bit hashes, or, with `positions`, items become their codes in `domain`; texts of items go along.
    Users that are numbers are kept as they are. Values are clipped to 0 and `max_value`, without which they are not
    read, and those that were outside are counted. Where no user is read, the item stands for it, and shards are of
    items.

    Args:
        domain: has the `codes` of events, -1 for those that do not count: see `Domain`; None if all do.
    """

    noise: NoiseSource
    shards = 1
    domain: Any = None
    positions = False
    max_value: int | None = None
    other = "events_outside_domain"
    """The counter of events without a code."""

    def __init__(self, *, steps: Steps, **given: Any) -> None:
        self.steps = steps
        take_arguments(self, given)
        self.events = counter("events")
        self.events_usable = counter("events_usable")
        self.outside = counter("events_outside_run")
        self.others = counter(self.other)

    def usable(
        self, batch: pa.RecordBatch, codes: np.ndarray | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        """Return the events that count, of which codes are at least 0, their steps and codes: those of the domain."""
        if codes is None:
            codes = np.zeros(batch.num_rows, np.int64) if self.domain is None else self.domain.codes(batch)
        public = np.flatnonzero(codes >= 0)
        places, steps = self.steps.assign(batch["time"].to_numpy()[public])
        rows = public[places]
        self.events.inc(len(codes))
        self.others.inc(len(codes) - len(public))
        self.outside.inc(len(public) - len(rows))
        self.events_usable.inc(len(rows))
        return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)), steps, codes[rows]

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        batch, steps, codes = self.usable(batch)
        if not len(steps):
            return
        hashes, texts = None, None
        if self.positions:
            items = codes.astype(np.uint64)
        else:  # a code per row, and per code the item, increasing, and perhaps its text
            coded = batch["item"].dictionary_encode()
            hashes = self.noise.derive("item hash").hash_bytes(*reversed(string_buffers(coded.dictionary)))
            ordered = np.argsort(hashes)
            code_of = np.empty(len(ordered), np.int64)
            code_of[ordered] = np.arange(len(ordered))
            codes, hashes = code_of[coded.indices.to_numpy()], hashes[ordered]
            items = hashes[codes]
            texts = coded.dictionary.take(pa.array(ordered))
        users, values = items, None
        if "user" in batch.schema.names:
            given = batch["user"]
            if pa.types.is_integer(given.type):
                users = given.to_numpy().astype(np.uint64)
            else:
                users = self.noise.derive("user hash").hash_bytes(*reversed(string_buffers(given)))
        if self.max_value is not None:
            given = batch["value"].to_numpy()
            values = np.clip(given, 0, self.max_value)
            count_clipped("values", given, values, self.max_value)
        order, parts = by_step_and_shard(steps, users, self.shards)
        users, items, codes, times = users[order], items[order], codes[order], batch["time"].to_numpy()[order]
        values = None if values is None else values[order]
        for to, part in parts:
            names = NO_NAMES
            if hashes is not None and texts is not None:
                held = distinct_in_order(codes[part])
                names = Names.of(hashes[held], texts.take(pa.array(held)))
            some = None if values is None else values[part]
            found = EventBatch(users[part], items[part], times[part], names, some)
            yield to.to_bytes(), (len(found.users), encode(found))


def by_step_and_shard(
    steps: np.ndarray, users: np.ndarray, shards: int
) -> tuple[np.ndarray, list[tuple[StepKey, slice]]]:
    """Return an order of events, at least one, by step and shard of people, and which ordered ones are in each."""
    shard = (users % np.uint64(shards)).astype(np.int64)
    codes = steps - steps.min()
    if int(codes.max()) < (1 << 16) // shards:  # few are sorted by their digits
        order = np.argsort((codes * shards + shard).astype(np.uint16), kind="stable")
    else:
        order = np.lexsort((shard, steps))
    starts = np.flatnonzero(first_of_run(steps[order], shard[order]))
    keys = map(StepKey, steps[order[starts]].tolist(), shard[order[starts]].tolist())
    parts = itertools.starmap(slice, itertools.pairwise([*starts.tolist(), len(order)]))
    return order, [*zip(keys, parts, strict=True)]


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


class CloseWindows(beam.PTransform[Any, Any]):
    """Put together, under each step key, the batches that came before its step is decided.

    Whether a batch is in time must depend on the watermark alone, which is public. State cannot decide this: a key
    without events has the same state before and after, so that one person's event would decide whether those of others
    count. So each batch passes a GroupByKey in a window that ends at the decision time.

    A batch whose own timestamp is that late is dropped too. Where timestamps say when data arrived, a run that goes
    back to a checkpoint, with a watermark that has fallen behind, decides the same way again.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    @override
    def expand(self, batches: PCollection[Any]) -> Any:
        ends = self.steps.decision_time(0) % self.steps.grid
        windows = FixedWindows(Duration(micros=self.steps.grid), Timestamp(micros=ends))
        return (
            batches
            | "Stamp" >> beam.ParDo(StampBatches(self.steps)).with_output_types(KeyedBatch)
            | "UntilDecision"
            >> beam.WindowInto(windows, trigger=DefaultTrigger(), accumulation_mode=AccumulationMode.DISCARDING)
            | "DropLate" >> beam.GroupByKey()
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        )


Closed = tuple[bytes, Iterable[tuple[int, bytes]]]
"""A step key, and all batches that came in time, each with the number of its events."""


class StampBatches(beam.DoFn):
    """Send a batch into the window that ends at the decision of its step, and count its events."""

    sent = Metrics.counter("privstream", SENT)

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    @override
    def process(self, element: KeyedBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        key, (events, _) = element
        self.sent.inc(events)
        end = Timestamp(micros=self.steps.decision_time(StepKey.from_bytes(key).step))
        if not end <= timestamp < NO_TIME:
            yield TimestampedValue(element, end - Duration(micros=MILLISECOND))


class ToClock(beam.DoFn):
    """Hand all batches to the one clock that there is."""

    def __init__(self) -> None:
        self.closed = Metrics.counter("privstream", CLOSED)

    @override
    def process(self, element: Closed) -> Iterator[Keyed]:
        key, batches = element
        for events, batch in batches:
            self.closed.inc(events)
            yield on_clock(StepKey.from_bytes(key).step, batch)


ITEM_ORDER = "item order"
"""The noise that draws the random order of a person's items in a window."""


class Kept(NamedTuple):
    """What is kept of events."""

    rows: np.ndarray  # one for each item of a person that is kept, person by person, in the order of their numbers
    ranks: np.ndarray  # uint16, the places of these in a random order of the person's; zeros where nobody asks for it
    dropped: int  # how many items of people are not kept, however often and in whichever batches they came


def draws_of_pairs(noise: NoiseSource, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return a random word for each pair of a person and an item, uint64: a function of the pair and the noise key."""
    return np.asarray(noise.words(np.stack([users, items], axis=1))[:, 0, 0])


def bound_people(
    users: np.ndarray,
    items: np.ndarray,
    *,
    limit: int,
    draws: Callable[[np.ndarray], np.ndarray],
    ranked: bool = True,
) -> Kept:
    """Choose rows such that each person keeps at most `limit` distinct items, random ones.

    What is kept is a function of each person's own events, the limit and the draws (of each pair of person and item)
    alone, whatever their order in the input. Unless they are `ranked`, only people above the limit need draws.
    """
    order = in_order(users)
    kept = first_of_run(users[order])
    kept[:-1] &= kept[1:]
    others = np.flatnonzero(~kept)  # most have one event in a window: nothing to choose, nothing to draw
    if not len(others):
        return Kept(order, np.zeros(len(order), np.uint16), 0)
    many = order[others]
    person, held = np.cumsum(first_of_run(users[many])) - 1, items[many]
    pairs = sorted_in_groups(person, held)
    pairs = pairs[first_of_run(person[pairs], held[pairs])]  # one row for each item of a person
    chosen, ranks = np.ones(len(pairs), bool), np.zeros(len(order), np.uint16)
    drawn = np.arange(len(pairs)) if ranked else np.flatnonzero((np.bincount(person[pairs]) > limit)[person[pairs]])
    some = pairs[drawn]
    place = place_in_run(person[some], np.lexsort((held[some], draws(many[some]), person[some])))
    chosen[drawn] = place < limit
    kept[others[pairs[chosen]]] = True
    if ranked:
        ranks[others[some]] = place
    return Kept(order[kept], ranks[kept], int(len(pairs) - chosen.sum()))


def sorted_in_groups(groups: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the order by group, at least 0, and in each by numbers, uint64: what `lexsort` gives, in less time."""
    free = 64 - int(groups.max(initial=0)).bit_length()
    cut = max(0, int(numbers.max(initial=0)).bit_length() - free)
    words = (groups.astype(np.uint64) << np.uint64(min(free, 63))) | (numbers >> np.uint64(cut))
    order = in_order(words)
    words, ordered = words[order], numbers[order]
    sorted_ = np.all((ordered[1:] >= ordered[:-1]) | (words[1:] != words[:-1]))
    return order if sorted_ else np.lexsort((numbers, groups))


def place_in_run(users: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return for each row how many rows of the same person come before it in `order`, which sorts by person."""
    first = np.flatnonzero(first_of_run(users[order]))
    lengths = np.diff(np.append(first, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return place


def added_up(users: np.ndarray, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row the sum, int64, of the whole numbers in all rows with its person and item."""
    order = np.lexsort((items, users))
    first = first_of_run(users[order], items[order])
    pairs = np.empty(len(order), np.int64)
    pairs[order] = np.cumsum(first) - 1
    return totals(pairs, values.astype(np.int64), int(first.sum()))[pairs]


def last_of_each(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the row of the last event of each person; of several at one time, that of the least item."""
    order = np.lexsort((items, -times, users))
    rows: np.ndarray = order[first_of_run(users[order])]
    return rows


PARTS = 64
"""Parts of people, by the first bits of their hashes; also stands for all of them."""

PART_ROWS = 1 << 17
"""Rows of what people have in a window, from which on they are parted."""


def parts_of_people(held: HolderBatch) -> Iterator[bytes]:
    """Yield what people, in order, have in a window: behind the number of their part, or as one, behind `PARTS`."""
    if len(held.users) <= PART_ROWS:
        yield bytes([PARTS]) + encode(held)
        return
    edges = np.searchsorted(held.users >> np.uint64(58), np.arange(PARTS + 1, dtype=np.uint64)).tolist()
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        if start < end:
            yield bytes([number]) + encode(held.some(slice(start, end)))


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
    shard of people; `in_parts`, large ones as several records. Of a person random items are kept. Unless they are
    `ranked`, all ranks are 0. A person's random order of items is the same in all steps of a period if they are
    `distinct`, and count once in it; otherwise each step has its own.
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
            yield on_clock(key.step, encode(held.some(slice(None))))
        else:
            for part in parts_of_people(held) if self.in_parts else [encode(held)]:
                yield shard_key(key.shard), stepped(key.step, part)


def encode_counts(positions: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode how often distinct positions of a list were counted."""
    return encode(CountBatch(positions.astype(np.uint64), counts.astype(np.int64), NO_NAMES))


def add_counts(batches: Iterable[bytes], size: int) -> np.ndarray:
    """Return the sums of counts for all positions of a list, int64 (size,)."""
    counted = CountBatch.read(batches)
    return totals(counted.items.astype(np.int64), counted.counts, size)


class LimitWindows(StepFn, state="limit_windows"):
    """Per shard of people: only the first `limit` windows of each person count; what counts is added up.

    So what is left depends on the person's own events alone. The log has whom a step charges.
    """

    limit: int

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        rows = HolderBatch.read(batches)
        admitted = state.charged(rows.users) < self.limit
        count_dropped("contributions", len(admitted), int(len(admitted) - admitted.sum()))
        charges = Charges.of(np.unique(rows.users[admitted]))
        if not len(charges.keys):
            return Stepped(state, (), unchanged)
        counts = encode_counts(*np.unique(rows.items[admitted], return_counts=True))
        return Stepped(state.add(charges), [on_clock(step, counts)], charges.to_bytes)

    @override
    def initial(self, key: bytes) -> UserCounters:
        return UserCounters()

    @override
    def decode(self, segments: list[bytes]) -> UserCounters:
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    @override
    def encode(self, state: UserCounters) -> list[bytes]:
        charges = state.compact()
        return [charges.slice(at, at + SEGMENT).to_bytes() for at in range(0, len(charges.keys), SEGMENT)]
