"""The data set of private queries: how many people have each item of the domain, one item per person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import EventBatch, Keyed, decode
from privstream.transforms.events.bounding import bound_items
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.timing.on_time_markers import KeyedBatch
from privstream.transforms.timing.steps import Steps

ALL_TIME = Steps(size=2**59, period=2**59, first=0, end=1)
"""One step that contains every time of an event."""

ONE_KEY = b""


def without_digest(keyed_batch: KeyedBatch) -> Keyed:
    """Leave the digest out."""
    key, (_, data) = keyed_batch
    return key, data


class CountRecords(beam.DoFn):
    """Per shard of people: choose one record of each person, and count them by item."""

    def __init__(self, domain_size: int, selection: str, noise: NoiseSource) -> None:
        self.domain_size = domain_size
        self.selection = selection
        self.noise = noise
        self.limited = LimitCounter("items")

    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Keyed]:
        """Count one shard."""
        events = EventBatch.join([decode(EventBatch, data) for data in element[1]])
        kept = bound_items(
            events.users, events.items, events.times, limit=1, selection=self.selection, noise=self.noise
        )
        self.limited.add(0, len(kept.rows) + kept.left_out, kept.left_out)
        yield ONE_KEY, encode_counts(np.bincount(events.items[kept.rows].astype(np.int64), minlength=self.domain_size))


class NoRecords(beam.DoFn):
    """The counts of nobody."""

    def __init__(self, domain_size: int) -> None:
        self.domain_size = domain_size

    def process(self, _: bytes) -> Iterator[Keyed]:
        """Count nothing."""
        yield ONE_KEY, encode_counts(np.zeros(self.domain_size, np.int64))


def sum_records(element: tuple[bytes, Iterable[bytes]]) -> Keyed:
    """Add up the counts of all shards."""
    key, parts = element
    total: np.ndarray = sum(map(decode_counts, parts), start=np.zeros((), np.int64))
    return key, encode_counts(total)


def encode_counts(counts: np.ndarray) -> bytes:
    """Encode counts."""
    return pack("record counts", 1, {"counts": counts.astype(np.int64)})


def decode_counts(data: bytes) -> np.ndarray:
    """Decode counts."""
    return np.asarray(unpack("record counts", 1, data)["counts"])
