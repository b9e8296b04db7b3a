"""Per shard of people: what each person contributes, one number for each grid, and how many people are in each cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.mechanisms.limits.person_histograms import Grid
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import EventBatch, Keyed, Names, StepKey, decode
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.events.split import people_key
from privstream.transforms.queries.answering import ONE_KEY, encode_counts
from privstream.transforms.timing.on_time import KeyedBatch

CONTRIBUTIONS = "contributions"
PER_WINDOW = "items_per_window"
WINDOWS = "windows"
PER_ITEM = "windows_per_item"
STREAMS = "streams"
VALUES = "values"


def with_item(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give events that have no item all the same one."""
    return batch.append_column("item", pa.repeat(pa.scalar("value"), batch.num_rows))


def by_people(element: KeyedBatch) -> Keyed:
    """Put a batch under the key of its shard of people, with its stream and step."""
    key, (_, data) = element
    return people_key(StepKey.from_bytes(key).shard), len(key).to_bytes(4, "big") + key + data


class MeasurePeople(beam.DoFn):
    """Count the people of a shard by cell of each grid; every person is in one cell of each, whatever he or she does.

    What a person's numbers are depends on that person's events, the grids and the noise key alone: on no other person,
    and not on the order of events.

    Args:
        grids: among those that this module names.
        noise: chooses one value of each person.
        added_up: whether a value is the sum of a person's values for an item in a window, and not that of one event.
    """

    def __init__(self, grids: Sequence[Grid], noise: NoiseSource, *, added_up: bool) -> None:
        self.grids = grids
        self.noise = noise
        self.added_up = added_up

    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Keyed]:
        """Count one shard."""
        keys, parts = [], []
        for record in element[1]:
            start = 4 + int.from_bytes(record[:4], "big")
            keys.append(StepKey.from_bytes(record[4:start]))
            parts.append(replace(decode(EventBatch, record[start:]), names=Names.none()))
        names = sorted({key.stream for key in keys})
        sizes = [len(part.users) for part in parts]
        streams = np.repeat([names.index(key.stream) for key in keys], sizes)
        steps = np.repeat([key.step for key in keys], sizes)
        events = EventBatch.join(parts)
        numbers = self._numbers(events, streams, steps)
        yield ONE_KEY, encode_counts(np.concatenate([grid.tally(numbers[grid.name]) for grid in self.grids]))

    def _numbers(self, events: EventBatch, streams: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return one number of each person, in the order of people, for each grid."""
        order = np.lexsort((events.items, steps, streams, events.users))
        users, items = events.users[order], events.items[order]
        streams, steps = streams[order], steps[order]
        first = first_of_run(users, streams, steps, items)
        held = np.flatnonzero(first)
        held_users, held_streams, held_steps, held_items = users[held], streams[held], steps[held], items[held]
        found = {
            CONTRIBUTIONS: _sizes(held_users)[1],
            PER_WINDOW: _largest(held_users, _sizes(held_users, held_streams, held_steps)),
        }
        windows = np.flatnonzero(first_of_run(held_users, held_streams, held_steps))
        found[WINDOWS] = _sizes(held_users[windows])[1]
        by_item = np.lexsort((held_items, held_streams, held_users))
        repeats = _sizes(held_users[by_item], held_streams[by_item], held_items[by_item])
        found[PER_ITEM] = _largest(held_users[by_item], repeats)
        in_streams = np.flatnonzero(first_of_run(held_users, held_streams))
        found[STREAMS] = _sizes(held_users[in_streams])[1]
        if events.values is not None:
            found[VALUES] = self._one_value(users, items, steps, events.times[order], events.values[order], first)
        return found

    def _one_value(
        self,
        users: np.ndarray,
        items: np.ndarray,
        steps: np.ndarray,
        times: np.ndarray,
        values: np.ndarray,
        first: np.ndarray,
    ) -> np.ndarray:
        """Return one value of each person, or one sum of those for an item in a window, chosen at random."""
        drawn = self.noise.derive("value")
        if self.added_up:
            starts = np.flatnonzero(first)
            users, items, steps = users[starts], items[starts], steps[starts]
            values = np.add.reduceat(values, starts) if len(starts) else values
            lots = _hashes(drawn, _hashes(drawn, users, items), steps.astype(np.uint64))
        else:
            bits = np.ascontiguousarray(values).view(np.uint64)
            lots = _hashes(drawn, _hashes(drawn, users, times.astype(np.uint64)), bits)
        order = np.lexsort((values, lots, users))
        chosen: np.ndarray = values[order][first_of_run(users[order])]
        return chosen


def _sizes(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of equal rows start, and how long each is."""
    starts = np.flatnonzero(first_of_run(*columns))
    return starts, np.diff(np.append(starts, len(columns[0])))


def _largest(users: np.ndarray, runs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return of each person, in the order of people, the longest run; runs are in the order of people."""
    starts, sizes = runs
    people = np.flatnonzero(first_of_run(users[starts]))
    return np.maximum.reduceat(sizes, people) if len(people) else sizes


def _hashes(noise: NoiseSource, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return keyed hashes of pairs, uint64 (n,)."""
    found: np.ndarray = noise.words(np.stack([one, other], axis=1))[:, 0, 0]
    return found
