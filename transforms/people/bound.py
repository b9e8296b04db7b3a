"""Events by window and shard of people, and which of a person's keep within its limits: pure functions, no Beam."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    EventBatch,
    KeyedBatch,
    Names,
    StepKey,
    distinct_in_order,
    encode,
    first_of_run,
    in_order,
    string_buffers,
    take_arguments,
    totals,
)
from privstream.transforms.counters import counter
from privstream.transforms.timing.steps import Steps

THOUSANDTHS, LARGEST_AMOUNT = 1_000, 10**9
"""Parts of a limit in which amounts are counted, and the largest amount of one value: sums stay within 64 bits."""


def count_clipped(name: str, values: np.ndarray, within: np.ndarray, limits: tuple[float, float]) -> None:
    """Count the values that limits change, and how much of the sum of all "values" this takes away: both are exact.

    Amounts are in thousandths of the largest limit, which is not 0, each rounded on its own: how values lie in batches
    changes nothing. "contributions" are sums of values that have been counted as they were read.
    """
    counter(f"{name}_clipped").inc(int((within != values).sum()))
    unit = max(map(abs, limits)) / THOUSANDTHS
    amounts = (np.rint(np.minimum(np.abs(each) / unit, LARGEST_AMOUNT)) for each in (values, values - within))
    came, lost = (int(amount.sum()) for amount in amounts)
    counter(f"{name}_summed").inc(len(values))
    counter("sums_before_limit").inc(came if name == "values" else 0)
    counter("sums_over_limit").inc(lost)


class EventSplitter:
    """Turn checked Arrow batches (see `EventFields.schema`) into encoded `EventBatch`es, by step and shard of people.

    What lies outside of the public steps, or has no code, is counted and dropped. People and items become keyed 64-bit
    hashes, or, with `positions`, items become their codes in `domain`; texts of items go along if they are `named`.
    Users that are numbers stay these. Values are clipped to `limits`, without which they are not read, and those that
    were outside are counted. Where no user is read, the item stands for it: shards are those of items.

    Args:
        domain: has the `codes` of events, -1 for those that do not count: see `Domain`.
    """

    noise: NoiseSource
    shards = 1
    domain: Any = None
    positions = False
    limits: tuple[float, float] | None = None
    named = True
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

    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        """Split a batch of checked events."""
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
            texts = coded.dictionary.take(pa.array(ordered)) if self.named else None
        users, values = items, None
        if "user" in batch.schema.names:
            column = batch["user"]
            if pa.types.is_integer(column.type):
                users = column.to_numpy().astype(np.uint64)
            else:
                users = self.noise.derive("user hash").hash_bytes(*reversed(string_buffers(column)))
        if self.limits is not None and "value" in batch.schema.names:
            given = batch["value"].to_numpy()
            values = np.clip(given, *self.limits)
            count_clipped("values", given, values, self.limits)
        order, parts = by_step_and_shard(steps, users, self.shards)
        users, items, codes, times = users[order], items[order], codes[order], batch["time"].to_numpy()[order]
        values = None if values is None else values[order]
        for to, part in parts:
            names = Names.none()
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
    if int(codes.max()) > 4 * len(codes) + 1024:
        codes = np.unique(steps, return_inverse=True)[1]
    key = codes * shards + shard
    few = int(key.max()) <= np.iinfo(np.uint16).max
    order = np.argsort(key.astype(np.uint16) if few else key, kind="stable")  # few are sorted by their digits
    starts = np.flatnonzero(first_of_run(key[order]))
    keys = map(StepKey, steps[order[starts]].tolist(), shard[order[starts]].tolist())
    return order, [*zip(keys, itertools.starmap(slice, itertools.pairwise([*starts.tolist(), len(key)])), strict=True)]


ITEM_ORDER = "item order"
"""The noise that draws the random order of a person's items in a window."""

Draws = Callable[[np.ndarray], np.ndarray]
"""Random words, uint64, for some rows: they depend on nothing but what the row says of its person, and on the key."""


@dataclass(frozen=True)
class Bound:
    """How many contributions (distinct items in windows) count per person; which ones, the person's own events decide.

    Attributes:
        in_run: at most in the run, or in each budget period.
        per_window: at most in one window, random ones; None for no limit beside `in_run`.
        sampled: whether random ones of the whole run count, which is known when the input has ended; else they are
            paced: those that come first, but few enough by each window, so that something is left for the last one.
        paced: False where a person cannot have more than `in_run`: nothing is dropped then.
    """

    in_run: int
    per_window: int | None = None
    sampled: bool = False
    paced: bool = True

    def allowed(self, number: int, windows: int | None) -> int:
        """Return how many may be used by the end of window `number`, from 1; what is not used is carried over.

        Whatever `in_run` is, a quarter of it may be used at once, and the last window may use up the rest. Without a
        last window all of it may be used at any time.
        """
        if self.sampled or windows is None or not self.paced:
            return self.in_run
        return min(self.in_run, -(-self.in_run * (windows + 3 * number) // (4 * windows)))


class Kept(NamedTuple):
    """What is kept of events.

    Attributes:
        rows: one for each item of a person that is kept, person by person, in the order of their numbers.
        ranks: uint16, for each of these the place of its item in a random order of the person's kept items; zeros where
            nobody asks for it.
        dropped: how many items of people are not kept, however often and in whichever batches they came.
    """

    rows: np.ndarray
    ranks: np.ndarray
    dropped: int


def draws_of_pairs(noise: NoiseSource, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return a random word for each pair of a person and an item, uint64: a function of the pair and the noise key."""
    return np.asarray(noise.words(np.stack([users, items], axis=1))[:, 0, 0])


def bound_people(users: np.ndarray, items: np.ndarray, *, limit: int, draws: Draws, ranked: bool = True) -> Kept:
    """Choose rows such that each person keeps at most `limit` distinct items, random ones.

    What is kept is a function of each person's own events, the limit and the draws (of each pair of person and item)
    alone, whatever their order in the input. Unless they are `ranked`, few draws are needed: those of people with more
    items than the limit.
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
