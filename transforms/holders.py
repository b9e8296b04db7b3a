"""Counts of the items of public lists, by their positions: of people who hold them, in windows that are closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, Keyed, decode
from privstream.transforms.timing.clock import STEP, on_clock
from typing_extensions import override


def encode_counts(positions: np.ndarray, counts: np.ndarray) -> bytes:
    """Encode how often distinct positions of a list were counted."""
    return pack("counts", 1, {"positions": positions.astype(np.uint32), "counts": counts.astype(np.int64)})


def add_counts(batches: Iterable[bytes], size: int) -> np.ndarray:
    """Return the sums of counts for all positions of a list, int64 (size,)."""
    found = np.zeros(size, np.int64)
    for batch in batches:
        one = unpack("counts", 1, batch)
        found[np.asarray(one["positions"])] += np.asarray(one["counts"])
    return found


class CountHolders(beam.DoFn):
    """Count the people with each item in a batch: each person is in one batch of a step, with an item at most once."""

    def __init__(self) -> None:
        self.counted = Metrics.counter("privstream", "holdings_counted")

    @override
    def process(self, element: Keyed) -> Iterator[Keyed]:
        (step,), held = STEP.unpack_from(element[1]), decode(HolderBatch, element[1][STEP.size :])
        self.counted.inc(len(held.items))
        yield on_clock(step, encode_counts(*np.unique(held.items, return_counts=True)))
