"""NumericQuantiles: medians and percentiles of numbers in events, such as latencies, prices or ages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.transforms.batches import EventBatch, first_of_run
from privstream.transforms.counters import counter
from privstream.transforms.questions.quantiles import QuantilesParameters
from privstream.transforms.questions.running_stages import BoundCodes, ListedTransform, RunningAnswers
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


@dataclass(frozen=True)
class Binned:
    """Values by their bins."""

    bins: Bins
    steps: Steps

    def __len__(self) -> int:
        return int(self.bins.resolution)

    def codes(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the bin of each event; count the values that are clipped."""
        values = batch["value"].to_numpy()
        beyond = np.flatnonzero((values < self.bins.low) | (values > self.bins.high))
        if len(beyond):
            in_run, _ = self.steps.assign(batch["time"].to_numpy()[beyond])
            counter("values_clipped").inc(len(in_run))
        return np.asarray(self.bins.places(values))


class BoundValues(BoundCodes):
    """Of each person a random sample of the values of a window counts.

    Equal rows of a person are told apart by how many of them come before: each is as likely to count as any other.
    """

    counted = "values"
    noise: NoiseSource

    @override
    def order(self, step: int, events: EventBatch) -> np.ndarray:
        columns = events.users, events.items, events.times.astype(np.uint64)
        order = np.lexsort(columns[::-1])
        first = first_of_run(*(column[order] for column in columns))
        number = np.empty(len(order), np.uint64)
        number[order] = np.arange(len(order)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        rows = np.stack([*columns, number], axis=1)
        offsets = np.arange(len(rows) + 1) * rows.itemsize * rows.shape[1]
        draws = self.noise.derive("value order", step).hash_bytes(rows.astype("<u8").view(np.uint8).ravel(), offsets)
        return np.lexsort((number, events.items, events.times, draws, events.users))


class PublishQuantiles(RunningAnswers, state="publish_quantiles"):
    """On a public clock: publish the quantiles of every window."""

    row_type = QuantileEstimate
    counter = "quantiles_published"

    @override
    def given(self, step: int, batches: list[bytes]) -> BinnedStep:
        return BinnedStep(step=self.steps.number(step), counts=super().given(step, batches))

    @override
    def rows(self, state: int, found: QuantileRows) -> Iterator[tuple[Any, ...]]:
        columns = (found.quantiles, found.estimates, found.lower, found.upper, found.estimates)
        return zip(*(column.tolist() for column in columns), strict=True)


class NumericQuantiles(QuantilesParameters, ListedTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = PublishQuantiles

    @property
    def domain(self) -> Binned:
        """The bins."""
        return Binned(self.mechanism.bins, self.steps)

    @override
    def _limits(self) -> Sequence[beam.DoFn]:
        in_window = BoundValues(steps=self.steps, noise=self.noise, limit=self.mechanism.per_step)
        return self._bounded(in_window, self.mechanism.contributions)
