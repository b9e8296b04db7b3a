"""The stages that split events: see `split`, which does it without Beam."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.transforms.batches import EventBatch, KeyedBatch, Names, StepKey, encode
from privstream.transforms.events.split import EventReader, EventSplitter
from typing_extensions import override


class ReadEvents(EventReader, beam.DoFn):
    """What stages share that read events."""


class SplitEvents(EventSplitter, beam.DoFn):
    """Splits events by step and shard of people."""


class CodedEvents(NamedTuple):
    """Events that count in a batch: row of the batch, a public code of the item (uint64), and step."""

    rows: np.ndarray
    codes: np.ndarray
    steps: np.ndarray


class SplitCodes(ReadEvents):
    """Turn Arrow batches into `EventBatch`es per step and shard of people, without names.

    People become keyed 64-bit hashes, and items public codes.
    """

    @abstractmethod
    def code(self, batch: pa.RecordBatch) -> CodedEvents:
        """Return the events that count in a batch, with their codes; count the others."""

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        self.events.inc(batch.num_rows)
        found = self.code(batch)
        if not len(found.rows):
            return
        users, times = self.users(batch["user"])[found.rows], batch["time"].to_numpy()[found.rows]
        first = int(found.steps.min())
        group = (found.steps - first) * self.shards + (users % np.uint64(self.shards)).astype(np.int64)
        order = np.argsort(group, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            step, shard = divmod(int(group[rows[0]]), self.shards)
            data = encode(EventBatch(users[rows], found.codes[rows], times[rows], Names.none()))
            yield StepKey(first + step, shard).to_bytes(), (len(rows), data)
