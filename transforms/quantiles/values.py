"""From numbers in events to bins, and to at most one value of each person in a window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import Bins
from privstream.transforms.batches import EventBatch, HolderBatch, Keyed, Names, StepKey, decode, seal
from privstream.transforms.events.bounding import first_of_run, place_in_run
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.events.shards import people_key
from privstream.transforms.events.streams import stream_numbers
from privstream.transforms.histograms.events import Categories
from privstream.transforms.histograms.people import late_counts
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps

LAST_PLACE = 65_535
"""Of the streams in which a person has a value: so many values of one person may count, at most."""


def bin_names(bins: Bins) -> Domain:
    """Return names of bins as a list of items, which is in the order of bins."""
    digits = len(str(bins.resolution))
    edges = pairwise(bins.edges.tolist())
    return Domain(f"bin {number:0{digits}}: {low:g} to {high:g}" for number, (low, high) in enumerate(edges))


class SortIntoBins(beam.DoFn):
    """Turn the column `value` of checked batches into an item: the name of its bin."""

    def __init__(self, bins: Bins, names: Domain, steps: Steps, streams: tuple[str, ...]) -> None:
        self.bins = bins
        self.names = names
        self.steps = steps
        self.streams = streams
        self.clipped = Metrics.counter("privstream", "values_clipped")

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Sort one batch."""
        values = batch["value"].to_numpy()
        beyond = np.flatnonzero((values < self.bins.low) | (values > self.bins.high))
        if len(beyond):
            of_stream = beyond[stream_numbers(batch["stream"].take(pa.array(beyond)), self.streams) >= 0]
            in_run, _ = self.steps.assign(batch["time"].to_numpy()[of_stream])
            self.clipped.inc(len(in_run))
        named = self.names.texts.take(pa.array(self.bins.places(values)))
        yield batch.append_column("item", named)


class BoundValues(OnTimeBatches, state="bound_values"):
    """Per step and shard of people: of each person one value in each stream, chosen at random; on by shard of people.

    Which one, and which stream comes first, depends on nothing but the person's own events, with their times, and the
    noise key. An item is stream * number of bins + bin.
    """

    def __init__(self, *, steps: Steps, categories: Categories, timer_offset: int, noise: NoiseSource) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.categories = categories
        self.noise = noise
        self.limited = LimitCounter("values", steps)

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late values."""
        events = decode(EventBatch, batch)
        self.late.inc(len(events.users))
        bins, counts = np.unique(events.items.astype(np.int64), return_counts=True)
        yield from late_counts(self.steps, self.categories, key.step, bins, counts)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Bound one step of one shard of people."""
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        noise = self.noise.derive("value order", key.step)
        values = _hashes(noise.derive("value"), events.times.astype(np.uint64), events.items)
        lots = _hashes(noise.derive("person"), events.users, values)
        streams = events.items // np.uint64(len(self.categories.domain))
        order = np.lexsort((events.items, events.times, lots, streams, events.users))  # rows that are left are equal
        rows = order[first_of_run(events.users[order], streams[order])]
        users, lots = events.users[rows], lots[rows]
        places = np.minimum(place_in_run(users, np.lexsort((streams[rows], lots, users))), LAST_PLACE).astype(np.uint16)
        self.limited.add(key.step, len(events.users), len(events.users) - len(rows))
        yield people_key(key.shard), seal(key, HolderBatch(users, events.items[rows], places, Names.none()))


def _hashes(noise: NoiseSource, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return keyed hashes of pairs, uint64 (n,)."""
    found: np.ndarray = noise.words(np.stack([one, other], axis=1))[:, 0, 0]
    return found
