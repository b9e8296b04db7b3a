"""Per shard of people: what each person contributes, one number for each grid, and how many people are in each cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.limits.person_histograms import Grid
from privstream.mechanisms.limits.sample import Sample
from privstream.mechanisms.noise.sources import NoiseSource, SeededNoise
from privstream.transforms.batches import EventBatch, Names, StepKey, decode, first_of_run
from privstream.transforms.events.event_columns import Unusable, usable_batches
from privstream.transforms.events.event_fields import DeadLetter, EventFields, broken_letter
from privstream.transforms.events.split import EventSplitter
from privstream.transforms.timing.steps import Steps

CONTRIBUTIONS = "contributions"
PER_WINDOW = "items_per_window"
WINDOWS = "windows"
PER_ITEM = "windows_per_item"
STREAMS = "streams"
VALUES = "values"


def with_item(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give events that have no item all the same one."""
    return batch.append_column("item", pa.repeat(pa.scalar("value"), batch.num_rows))


Waiting = tuple[bytes, bytes]
"""Encoded events of a shard of people, with their `StepKey`."""


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
                for key, (_, data) in split.process(found if fields.item else with_item(found)):
                    shards[StepKey.from_bytes(key).shard].append((key, data))
    while shards:
        yield shards.popitem()[1]


AT_ONCE = 1 << 21
"""When so many events have come, they are reduced to distinct contributions."""


class Contributions(NamedTuple):
    """Events of people, with the number of their stream, and their step, int64 (n,)."""

    events: EventBatch
    streams: np.ndarray
    steps: np.ndarray

    @classmethod
    def join(cls, parts: Sequence[Contributions]) -> Contributions:
        """Put events together."""
        events = EventBatch.join([part.events for part in parts])
        return cls(events, *(np.concatenate([part[place] for part in parts]) for place in (1, 2)))

    def take(self, rows: np.ndarray, values: np.ndarray | None) -> Contributions:
        """Return some of the events; `values` are those of all."""
        users, items, times = self.events.users[rows], self.events.items[rows], self.events.times[rows]
        events = EventBatch(users, items, times, Names.none(), None if values is None else values[rows])
        return Contributions(events, self.streams[rows], self.steps[rows])


class DistinctContributions:
    """Put the events of a shard of people together: one for each item in a window of a stream.

    Memory holds these, and as many events again or `AT_ONCE`.

    Args:
        noise: chooses one value of each person.
        added_up: whether a value is the sum of a person's values for an item in a window, and not that of one event.
    """

    def __init__(self, noise: NoiseSource, *, added_up: bool) -> None:
        self.noise = noise
        self.added_up = added_up

    def distinct(self, records: Iterable[Waiting]) -> Contributions:
        """Return the distinct contributions in what `by_people` gives of a shard, by person."""
        waiting: list[Contributions] = []
        names: dict[str, int] = {}
        kept = came = 0
        for place, data in records:
            key, events = StepKey.from_bytes(place), decode(EventBatch, data)
            stream = np.full(len(events.users), names.setdefault(key.stream, len(names)))
            waiting.append(Contributions(events, stream, np.full(len(stream), key.step)))
            came += len(stream)
            if came >= max(AT_ONCE, kept):
                waiting = [self._distinct(Contributions.join(waiting))]
                kept, came = len(waiting[0].steps), 0
        return self._distinct(Contributions.join(waiting))

    def _distinct(self, found: Contributions) -> Contributions:
        """Return one event of each person, item and window of a stream, in this order, with what counts of values."""
        events, values = found.events, found.events.values
        columns = events.users, found.streams, found.steps, events.items
        ties = () if values is None or self.added_up else (values, self._lots(found))
        order = np.lexsort((*ties, *columns[::-1]))
        starts = np.flatnonzero(first_of_run(*(column[order] for column in columns)))
        rows = order[starts]
        if values is not None and self.added_up and len(rows):
            sums = np.zeros(len(values))
            sums[rows] = np.add.reduceat(values[order], starts)
            values = sums
        return found.take(rows, values)

    def _lots(self, found: Contributions) -> np.ndarray:
        """Return a random number for each value, or sum of values: of a person that with the least one is measured."""
        drawn, events, values = self.noise.derive("value"), found.events, found.events.values
        if self.added_up or values is None:
            return pair_hashes(drawn, pair_hashes(drawn, events.users, events.items), found.steps.astype(np.uint64))
        bits = np.ascontiguousarray(values).view(np.uint64)
        return pair_hashes(drawn, pair_hashes(drawn, events.users, events.times.astype(np.uint64)), bits)


class MeasurePeople(DistinctContributions):
    """Count the people of a shard by cell of each grid; every person is in one cell of each, whatever he or she does.

    What a person's numbers are depends on that person's events, the grids and the noise key alone: on no other person,
    and not on the order of events.

    Args:
        grids: among those that this module names.
        noise, added_up: see `DistinctContributions`.
    """

    def __init__(self, grids: Sequence[Grid], noise: NoiseSource, *, added_up: bool) -> None:
        super().__init__(noise, added_up=added_up)
        self.grids = grids

    def count(self, records: Iterable[Waiting]) -> Integers:
        """Return the people of a shard in all cells, one grid after the other."""
        numbers = self._numbers(self.distinct(records))
        return np.concatenate([grid.tally(numbers[grid.name]) for grid in self.grids])

    def _numbers(self, held: Contributions) -> dict[str, np.ndarray]:
        """Return one number of each person, in the order of people, for each grid; rows are distinct, and sorted."""
        users, items, streams, steps = held.events.users, held.events.items, held.streams, held.steps
        found = {CONTRIBUTIONS: _sizes(users)[1], PER_WINDOW: _largest(users, _sizes(users, streams, steps))}
        windows = np.flatnonzero(first_of_run(users, streams, steps))
        found[WINDOWS] = _sizes(users[windows])[1]
        by_item = np.lexsort((items, streams, users))
        found[PER_ITEM] = _largest(users[by_item], _sizes(users[by_item], streams[by_item], items[by_item]))
        in_streams = np.flatnonzero(first_of_run(users, streams))
        found[STREAMS] = _sizes(users[in_streams])[1]
        if held.events.values is not None:
            order = np.lexsort((held.events.values, self._lots(held), users))
            found[VALUES] = held.events.values[order][first_of_run(users[order])]
        return found


def _sizes(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of equal rows start, and how long each is."""
    starts = np.flatnonzero(first_of_run(*columns))
    return starts, np.diff(np.append(starts, len(columns[0])))


def _largest(users: np.ndarray, runs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return of each person, in the order of people, the longest run; runs are in the order of people."""
    starts, sizes = runs
    people = np.flatnonzero(first_of_run(users[starts]))
    return np.maximum.reduceat(sizes, people) if len(people) else sizes


def pair_hashes(noise: NoiseSource, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return keyed hashes of pairs, uint64 (n,)."""
    found: np.ndarray = noise.words(np.stack([one, other], axis=1))[:, 0, 0]
    return found


def sample_of(read: Iterable[pa.RecordBatch | DeadLetter], steps: Steps) -> Sample | None:
    """Return public events as a sample; None if none can be used. It is exact, and protects nobody.

    Contributions are in the order in which they count, with small numbers for people and items.

    Args:
        read: see `by_people`.
        steps: the windows, with an end.
    """
    noise = SeededNoise(0)  # hashes people and items, and orders what a person has in a window: no secret
    split = EventSplitter(steps=steps, noise=noise, shards=1, named=False)
    shards = list(by_people(read, EventFields(), split, lambda letter: None))
    if not shards:
        return None
    found = DistinctContributions(noise, added_up=False).distinct(shards[0])
    drawn = noise.words(np.stack([found.events.users, found.events.items], axis=1))[:, 0, 0]
    order = np.lexsort((drawn, found.steps))
    columns = found.events.users[order], found.events.items[order]
    users, items = (np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns)
    numbers = np.array([steps.number(step) for step in np.unique(found.steps).tolist()], np.int64)
    windows = numbers[np.unique(found.steps[order], return_inverse=True)[1]] - 1
    return Sample(users, items, windows, steps.count or int(windows.max()) + 1)
