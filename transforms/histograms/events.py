"""From Arrow batches of events to counts of categories per stream and window, with no person in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.events.streams import stream_numbers
from privstream.transforms.timing.public_clock import on_clocks
from privstream.transforms.timing.steps import Steps

LISTED = "\x1f"  # between the categories of one text, such as a list becomes, unless another separator is named
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Categories:
    """How categories are read from events: all of it is public.

    Attributes:
        domain: the categories.
        streams: names of the streams; "" alone if events carry none.
        limit: categories of one event that count at most: the first ones, each once.
        separator: what stands between the categories of an event, if it may have more than one.
    """

    domain: Domain
    streams: tuple[str, ...]
    limit: int
    separator: str

    def of_lists(self, items: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for lists of texts, row and position in the domain of each category that counts.

        Return also the rows of those that are beyond the limit.
        """
        rows, texts = pc.list_parent_indices(items).to_numpy(), pc.list_flatten(items)
        found = pc.index_in(texts, self.domain.texts)
        known = pc.is_valid(found).to_numpy(zero_copy_only=False)
        rows, positions = rows[known].astype(np.int64), found.drop_null().to_numpy().astype(np.int64)
        _, first = np.unique(rows * len(self.domain) + positions, return_index=True)
        first.sort()
        rows, positions = rows[first], positions[first]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        within = place < self.limit
        return rows[within], positions[within], rows[~within]

    def of_texts(self, items: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for texts, what `of_lists` returns for lists."""
        if self.limit > 1:
            return self.of_lists(pc.split_pattern(items, self.separator))
        found = pc.index_in(items, self.domain.texts)
        rows = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
        return rows, found.drop_null().to_numpy().astype(np.int64), rows[:0]


class ReadCategories(beam.DoFn):
    """What stages that read events share: which categories, streams and steps the rows of an Arrow batch count in."""

    def __init__(self, *, steps: Steps, categories: Categories) -> None:
        self.steps = steps
        self.categories = categories
        self.events = Metrics.counter("privstream", "events")
        self.usable = Metrics.counter("privstream", "events_usable")
        self.outside = Metrics.counter("privstream", "events_outside_run")
        self.other_streams = Metrics.counter("privstream", "events_of_other_streams")
        self.other_items = Metrics.counter("privstream", "events_outside_domain")
        self.limited = LimitCounter("categories")

    def read(self, batch: pa.RecordBatch) -> Contributions:
        """Return what counts in a batch."""
        self.events.inc(batch.num_rows)
        items = batch["item"]
        of_items = self.categories.of_lists if pa.types.is_list(items.type) else self.categories.of_texts
        rows, positions, beyond = of_items(items)
        streams = stream_numbers(batch["stream"], self.categories.streams)
        times = batch["time"].to_numpy()
        in_run, in_step = self.steps.assign(times)
        step = np.full(len(times), -1)
        step[in_run] = in_step
        listed = np.zeros(len(times), bool)
        listed[rows] = True
        of_stream = streams >= 0
        self.other_streams.inc(int(len(times) - of_stream.sum()))
        self.other_items.inc(int((of_stream & ~listed).sum()))
        self.outside.inc(int((of_stream & listed & (step < 0)).sum()))
        keep = (step[rows] >= 0) & of_stream[rows]
        left_out = int(((step[beyond] >= 0) & of_stream[beyond]).sum())
        self.limited.add(0, int(keep.sum()) + left_out, left_out)
        rows, positions = rows[keep], positions[keep]
        self.usable.inc(len(np.unique(rows)))
        return Contributions(rows, positions, streams[rows], step[rows])


@dataclass(frozen=True, eq=False)
class Contributions:
    """Categories that count, in row order: row of the batch, position in the domain, number of the stream, and step."""

    rows: np.ndarray
    positions: np.ndarray
    streams: np.ndarray
    steps: np.ndarray


class CountEvents(ReadCategories):
    """Count the categories of each Arrow batch, per stream and step: whose events they are is not even read."""

    def process(self, batch: pa.RecordBatch) -> Iterator[Keyed]:
        """Count one batch."""
        found = self.read(batch)
        yield from on_clocks(count(self.categories, found.streams, found.steps, found.positions))


def count(
    categories: Categories, streams: np.ndarray, steps: np.ndarray, positions: np.ndarray
) -> Iterator[tuple[str, int, bytes]]:
    """Count positions: yield streams, steps and what was counted there."""
    if not len(positions):
        return
    first, size = int(steps.min()), len(categories.domain)
    span = int(steps.max()) - first + 1
    cells = (streams * span + steps - first) * size + positions
    if span * len(categories.streams) * size <= max(_MOST_CELLS, 2 * len(cells)):
        totals = np.bincount(cells)
        cells = np.flatnonzero(totals)
        totals = totals[cells]
    else:
        cells, totals = np.unique(cells, return_counts=True)
    groups, columns = np.divmod(cells, size)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
        stream, step = divmod(int(groups[start]), span)
        yield categories.streams[stream], first + step, encode_counts(columns[start:end], totals[start:end])


def encode_counts(columns: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode how often some columns were counted."""
    return pack("counts", 1, {"columns": columns.astype(np.uint32), "counts": counts.astype(np.int64)})


def decode_counts(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct columns and their counts."""
    found = unpack("counts", 1, data)
    return np.asarray(found["columns"]), np.asarray(found["counts"])
