"""Checked events to batches by step and shard of people: what stages may share out, and how; no Beam."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

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
    string_buffers,
)
from privstream.transforms.counters import counter
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.clock import take_arguments
from privstream.transforms.timing.steps import Steps

THOUSANDTHS, LARGEST_AMOUNT = 1_000, 10**9
"""Parts of a limit in which amounts are counted, and the largest amount of one value: sums stay within 64 bits."""


class EventReader:
    """What stages share that read checked batches of events: their counters, and the hash of people.

    See `EventFields.schema` for the columns of a batch.
    """

    noise: NoiseSource | None = None
    shards = 1

    def __init__(self, *, steps: Steps, **given: Any) -> None:
        self.steps = steps
        take_arguments(self, given)
        self.events = counter("events")
        self.usable = counter("events_usable")
        self.outside = counter("events_outside_run")

    def setup(self) -> None:
        """Prepare to hash, where events are read."""
        if self.noise is not None:  # depends on nothing but the key
            self._user_hash, self._item_hash = map(self.noise.derive, ("user hash", "item hash"))


class ClippedCounter:
    """Counts the values that limits change, and how much of the sum of all values this takes away.

    Amounts are in thousandths of the largest limit, each rounded by itself: how values lie in batches changes nothing.
    The counters are exact, and not for publication.

    Args:
        name: of the values: the first counter is `<name>_clipped`, the others are `sums_before_limit`, of values as
            they were read, and `sums_over_limit`.
        again: whether other limits have counted what was read.
    """

    def __init__(self, name: str, *, again: bool = False) -> None:
        self._name, self._again = name, again

    def add(self, values: np.ndarray, within: np.ndarray, limits: tuple[float, float]) -> None:
        """Count values, and what they are within limits, of which one is not 0."""
        counter(f"{self._name}_clipped").inc(int((within != values).sum()))
        unit = max(map(abs, limits)) / THOUSANDTHS
        amounts = (np.rint(np.minimum(np.abs(each) / unit, LARGEST_AMOUNT)) for each in (values, values - within))
        came, lost = (int(amount.sum()) for amount in amounts)
        counter("sums_before_limit").inc(0 if self._again else came)
        counter("sums_over_limit").inc(lost)


class EventSplitter(EventReader):
    """Turn Arrow batches into encoded `EventBatch`es, one per step and shard of people.

    People and items become keyed 64-bit hashes, or, with `positions`, items become positions in the domain; texts of
    items go along if they are `named`. Whatever lies outside of the public steps or domain is counted and dropped.
    Values are clipped to `limits`, and those that were outside are counted. Where no user is read, the item stands for
    it: shards are those of items.
    """

    domain: Domain | None = None
    positions = False
    limits: tuple[float, float] | None = None
    named = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.other_items = counter("events_outside_domain")
        self.clipped = ClippedCounter("values")

    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        """Split a batch of checked events."""
        self.events.inc(batch.num_rows)
        places = None if self.domain is None else self.domain.positions(batch["item"])
        if places is not None:
            public = places >= 0
            self.other_items.inc(len(places) - int(public.sum()))
            batch, places = batch.filter(pa.array(public)), places[public]
        times = batch["time"].to_numpy()
        rows, steps = self.steps.assign(times)
        self.usable.inc(len(rows))
        self.outside.inc(len(times) - len(rows))
        if not len(rows):
            return
        texts = None
        if places is not None and self.domain is not None and self.positions:
            codes, items = places, np.arange(len(self.domain.texts), dtype=np.uint64)
        else:  # a code per row, and per code the item, increasing, and perhaps its text
            coded = batch["item"].dictionary_encode()
            items = self._item_hash.hash_bytes(*reversed(string_buffers(coded.dictionary)))
            ordered = np.argsort(items)
            code_of = np.empty(len(ordered), np.int64)
            code_of[ordered] = np.arange(len(ordered))
            codes, items = code_of[coded.indices.to_numpy()], items[ordered]
            texts = coded.dictionary.take(pa.array(ordered)) if self.named else None
        users = (
            self._user_hash.hash_bytes(*reversed(string_buffers(batch["user"])))
            if "user" in batch.schema.names
            else items[codes]
        )[rows]
        values = batch["value"].to_numpy()[rows] if "value" in batch.schema.names else None
        if values is not None and self.limits is not None:
            within: np.ndarray = np.clip(values, *self.limits)
            self.clipped.add(values, within, self.limits)
            values = within
        order, parts = by_step_and_shard(steps, users, self.shards)
        rows, users = rows[order], users[order]
        codes, times = codes[rows], times[rows]
        values = None if values is None else values[order]
        for to, part in parts:
            held = distinct_in_order(codes[part])
            names = Names.none() if texts is None else Names.of(items[held], texts.take(pa.array(held)))
            some = None if values is None else values[part]
            found = EventBatch(users[part], items[codes[part]], times[part], names, some)
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
