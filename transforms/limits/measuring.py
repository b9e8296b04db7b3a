"""Per shard of people: how many contributions each person has, items in windows, and how many people have so many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.limits.contributions import ContributionHistogram
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, StepKey, decode, first_of_run
from privstream.transforms.people.split import EventSplitter
from privstream.transforms.reading.fields import DeadLetter, EventFields, broken_letter
from privstream.transforms.reading.frames import Unusable, usable_batches

Waiting = tuple[bytes, bytes]
"""Encoded events of a shard of people, with their `StepKey`."""

AT_ONCE = 1 << 21
"""When so many events have come, they are reduced to distinct contributions."""


def by_people(
    read: Iterable[pa.RecordBatch | DeadLetter],
    fields: EventFields,
    split: EventSplitter,
    aside: Callable[[DeadLetter], None],
) -> Iterator[list[Waiting]]:
    """Yield the events that can be used, shard by shard of people; until all are read they wait (see `spill`).

    Args:
        read: batches of columns, and what could not be read.
        fields: what is read of an event.
        split: splits events, without names.
        aside: gets what cannot be used.
    """
    split.setup()
    shards: defaultdict[int, list[Waiting]] = defaultdict(list)
    for batch in read:
        for found in [batch] if isinstance(batch, DeadLetter) else usable_batches(batch, fields):
            if isinstance(found, DeadLetter):
                aside(found)
            elif isinstance(found, Unusable):
                aside(broken_letter(found.rule, found.record, "event", number=found.number))
            else:
                for key, (_, data) in split.process(found):
                    shards[StepKey.from_bytes(key).shard].append((key, data))
    while shards:
        yield shards.popitem()[1]


def people_by_contributions(records: Iterable[Waiting], histogram: ContributionHistogram) -> Integers:
    """Return how many people of a shard are in each cell: a function of each person's own events alone.

    Memory holds the distinct contributions, and as many events again or `AT_ONCE`.
    """
    waiting: list[np.ndarray] = []
    kept = came = 0
    for place, data in records:
        key, events = StepKey.from_bytes(place), decode(EventBatch, data)
        steps = np.full(len(events.users), key.step).astype(np.uint64)
        waiting.append(np.stack([events.users, events.items, steps]))
        came += len(events.users)
        if came >= max(AT_ONCE, kept):
            waiting = [_distinct(waiting)]
            kept, came = waiting[0].shape[1], 0
    users = _distinct(waiting)[0]
    return histogram.tally(np.diff(np.append(np.flatnonzero(first_of_run(users)), len(users))))


def _distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the distinct columns, of person, item and step, in the order of people."""
    found = np.concatenate(parts, axis=1)
    found = found[:, np.lexsort(found[::-1])]
    return found[:, first_of_run(*found)]


def pair_hashes(noise: NoiseSource, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return keyed hashes of pairs, uint64 (n,)."""
    found: np.ndarray = noise.words(np.stack([one, other], axis=1))[:, 0, 0]
    return found
