"""NumericQuantiles: medians and percentiles of numbers in events, such as latencies, prices or ages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.transforms.batches import EventBatch
from privstream.transforms.people.bound import draws_of_pairs, place_in_run
from privstream.transforms.people.bounding import LimitCounter
from privstream.transforms.questions.histograms_stages import BoundCodes, CountedCategories, CountedSteps
from privstream.transforms.questions.quantiles import QuantilesParameters
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


@dataclass(frozen=True)
class Binned:
    """Values by their bins."""

    bins: Bins
    steps: Steps
    clipped: ClassVar[Any] = Metrics.counter("privstream", "values_clipped")

    @property
    def size(self) -> int:
        """How many bins there are."""
        return int(self.bins.resolution)

    def found_in(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return each row and its bin; count the values that are clipped."""
        values = batch["value"].to_numpy()
        beyond = np.flatnonzero((values < self.bins.low) | (values > self.bins.high))
        if len(beyond):
            in_run, _ = self.steps.assign(batch["time"].to_numpy()[beyond])
            self.clipped.inc(len(in_run))
        return np.arange(len(values)), self.bins.places(values)


class BoundValues(BoundCodes):
    """Of each person a random sample of the values of a window counts.

    Equal rows of a person are told apart by how many of them come before. So each is as likely to count as any other,
    and which ones count depends on nothing but the person's own events and the noise key.
    """

    limited = LimitCounter("values")
    noise: NoiseSource

    @override
    def choose(self, step: int, events: EventBatch) -> tuple[np.ndarray, np.ndarray]:
        noise = self.noise.derive("value order", step)
        equal = np.lexsort((events.times, events.items, events.users))
        same = (events.users[equal], events.items[equal], events.times[equal])
        first = np.append(True, np.logical_or.reduce([column[1:] != column[:-1] for column in same]))[: len(equal)]
        starts = np.flatnonzero(first)
        number = np.empty(len(equal), np.uint64)
        number[equal] = np.arange(len(equal)) - starts[np.cumsum(first) - 1]
        values = draws_of_pairs(noise.derive("value"), events.times.astype(np.uint64), events.items)
        draws = draws_of_pairs(
            noise.derive("person"), events.users, draws_of_pairs(noise.derive("row"), values, number)
        )
        order = np.lexsort((number, events.items, events.times, draws, events.users))
        places = place_in_run(events.users, order)
        rows = order[places[order] < self.limit]
        return rows, places[rows].astype(np.uint16)


class PublishQuantiles(CountedSteps, state="publish_quantiles"):
    """On a public clock: publish the quantiles of every window."""

    counter = "quantiles_published"

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: int) -> tuple[int, list[QuantileEstimate]]:
        given = BinnedStep(step=self.steps.number(step), counts=self.counts(batches))
        state, found = self.mechanism.step(state, given, self.noise_of(step))
        rows = list(self._rows(step, found))
        self.published.inc(len(rows))
        return state, rows

    def _rows(self, step: int, found: QuantileRows) -> Iterator[QuantileEstimate]:
        """Return the rows of one window."""
        start, end = self.steps.bounds(step)
        columns = (found.quantiles, found.estimates, found.lower, found.upper, found.estimates)
        for numbers in zip(*(column.tolist() for column in columns), strict=True):
            yield QuantileEstimate(start, end, *numbers)


class NumericQuantiles(QuantilesParameters, CountedCategories):  # noqa: D101 - its docstring is that of its parameters
    row_type = QuantileEstimate
    last_stage = PublishQuantiles

    @property
    def categories(self) -> Binned:
        """The bins."""
        return Binned(self.mechanism.bins, self.steps)

    @property
    @override
    def _people(self) -> NoiseSource:
        return self.noise.derive("people in quantiles")

    @override
    def _limits(self) -> tuple[BoundValues, int]:
        bound = BoundValues(steps=self.steps, noise=self._people, limit=self.mechanism.per_step)
        return bound, self.mechanism.contributions

    @override
    def _noise(self) -> NoiseSource:
        return self.noise.derive("quantiles of numbers", self.steps.label)
