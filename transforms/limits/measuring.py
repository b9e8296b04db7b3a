"""Per shard of people: what each person contributes, one number for each grid, and how many people are in each cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from privstream.mechanisms.limits.person_histograms import Grid
from privstream.mechanisms.limits.sample import Sample
from privstream.mechanisms.noise.sources import NoiseSource, SeededNoise
from privstream.transforms.batches import EventBatch, Keyed, Names, StepKey, decode, encode
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ROWS
from privstream.transforms.events.split import SplitEvents, people_key
from privstream.transforms.queries.answering import ONE_KEY, encode_counts
from privstream.transforms.timing.on_time import KeyedBatch
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

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
    """Put a batch under the key of its shard of people, with its stream and step, without the names of items."""
    key, (_, data) = element
    events = replace(decode(EventBatch, data), names=Names.none())
    return people_key(StepKey.from_bytes(key).shard), len(key).to_bytes(4, "big") + key + encode(events)


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


class DistinctContributions(beam.DoFn):
    """Put the events of a shard of people together: one for each item in a window of a stream.

    Memory holds these, and as many events again or `AT_ONCE`.

    Args:
        noise: chooses one value of each person.
        added_up: whether a value is the sum of a person's values for an item in a window, and not that of one event.
    """

    def __init__(self, noise: NoiseSource, *, added_up: bool) -> None:
        self.noise = noise
        self.added_up = added_up

    def distinct(self, records: Iterable[bytes]) -> Contributions:
        """Return the distinct contributions that records of `by_people` have, by person."""
        waiting: list[Contributions] = []
        names: dict[str, int] = {}
        kept = came = 0
        for record in records:
            start = 4 + int.from_bytes(record[:4], "big")
            key, events = StepKey.from_bytes(record[4:start]), decode(EventBatch, record[start:])
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

    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Keyed]:
        """Count one shard."""
        numbers = self._numbers(self.distinct(element[1]))
        yield ONE_KEY, encode_counts(np.concatenate([grid.tally(numbers[grid.name]) for grid in self.grids]))

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


class SampleContributions(beam.PTransform[Any, Any]):
    """Turn public events into one `Sample`, or none if no event can be used. It is exact, and protects nobody.

    Args:
        steps: the windows, with an end.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        self.noise = SeededNoise(0)  # hashes people and items, and orders what a person has in a window: no secret

    @override
    def expand(self, events: PCollection[Any]) -> PCollection[Sample]:
        def apply_dofn(source: PCollection[Any], fn: beam.DoFn, output: Any) -> PCollection[Any]:
            typed = beam.ParDo(fn).with_output_types(output, **{DEAD_LETTERS: DeadLetter})
            outputs = source | type(fn).__name__ >> typed.with_outputs(DEAD_LETTERS, main=ROWS)
            return cast(PCollection[Any], outputs[ROWS])

        split = SplitEvents(steps=self.steps, noise=self.noise, shards=1)
        gathered = gather(events, apply_dofn, EventFields())
        together = (
            apply_dofn(gathered, split, KeyedBatch)
            | "ByPeople" >> beam.Map(by_people).with_output_types(Keyed)
            | "PeopleTogether" >> beam.GroupByKey()
        )
        sample: PCollection[Sample] = together | "TakeSample" >> beam.ParDo(TakeSample(self.steps, self.noise))
        return sample


class TakeSample(DistinctContributions):
    """Put contributions in the order in which they count, with small numbers for people and items."""

    def __init__(self, steps: Steps, noise: NoiseSource) -> None:
        super().__init__(noise, added_up=False)
        self.steps = steps

    @override
    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Sample]:
        found = self.distinct(element[1])
        drawn = self.noise.words(np.stack([found.events.users, found.events.items], axis=1))[:, 0, 0]
        order = np.lexsort((drawn, found.steps))
        columns = found.events.users[order], found.events.items[order]
        users, items = (np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns)
        numbers = np.array([self.steps.number(step) for step in np.unique(found.steps).tolist()], np.int64)
        windows = numbers[np.unique(found.steps[order], return_inverse=True)[1]] - 1
        yield Sample(users, items, windows, self.steps.count or int(windows.max()) + 1)
