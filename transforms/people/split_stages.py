"""The stages that split events: see `split`, which does it without Beam."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.transforms.batches import EventBatch, KeyedBatch, Names
from privstream.transforms.people.split import EventReader, EventSplitter, by_step_and_shard, encoded
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
        rows, codes, steps = self.code(batch)
        if not len(rows):
            return
        users, times = self.users(batch["user"])[rows], batch["time"].to_numpy()[rows]
        order, parts = by_step_and_shard(steps, users, self.shards)
        users, codes, times = users[order], codes[order], times[order]
        for to, part in parts:
            yield encoded(to, EventBatch(users[part], codes[part], times[part], Names.none()))
