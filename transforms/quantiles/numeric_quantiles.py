"""NumericQuantiles: medians and percentiles of numbers in events, such as latencies, prices or ages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.keyed_counts.key_table import KeyedState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.transforms.batches import EventBatch, Keyed
from privstream.transforms.events.bounding import first_of_run, place_in_run
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.events.split import stream_numbers
from privstream.transforms.histograms.categories import (
    BoundCodes,
    CountedSteps,
    CountEvents,
    LimitRows,
    SplitRows,
)
from privstream.transforms.histograms.parameters import LISTED, Categories
from privstream.transforms.limits.measuring import pair_hashes
from privstream.transforms.quantiles.parameters import LAST_PLACE, QuantilesParameters
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.clocked import Outputs, WithClock
from privstream.transforms.timing.on_time import KeyedBatch, apart_in_time
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


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

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values = batch["value"].to_numpy()
        beyond = np.flatnonzero((values < self.bins.low) | (values > self.bins.high))
        if len(beyond):
            of_stream = beyond[stream_numbers(batch["stream"].take(pa.array(beyond)), self.streams) >= 0]
            in_run, _ = self.steps.assign(batch["time"].to_numpy()[of_stream])
            self.clipped.inc(len(in_run))
        named = self.names.texts.take(pa.array(self.bins.places(values)))
        yield batch.append_column("item", named)


class BoundValues(BoundCodes, state="bound_values"):
    """Of each person one value in each stream counts, chosen at random.

    Which one, and which stream comes first, depends on nothing but the person's own events, with their times, and the
    noise key. The code of a value is stream * number of bins + bin.
    """

    counter = "values"

    def __init__(self, *, noise: NoiseSource, **common: Any) -> None:
        super().__init__(**common)
        self.noise = noise

    @override
    def choose(self, step: int, events: EventBatch) -> tuple[np.ndarray, np.ndarray]:
        noise = self.noise.derive("value order", step)
        values = pair_hashes(noise.derive("value"), events.times.astype(np.uint64), events.items)
        draws = pair_hashes(noise.derive("person"), events.users, values)
        streams = events.items // np.uint64(len(self.categories.domain))
        order = np.lexsort((events.items, events.times, draws, streams, events.users))  # rows that are left are equal
        rows = order[first_of_run(events.users[order], streams[order])]
        users, draws = events.users[rows], draws[rows]
        places = place_in_run(users, np.lexsort((streams[rows], draws, users)))
        return rows, np.minimum(places, LAST_PLACE).astype(np.uint16)


class PublishQuantiles(CountedSteps, state="publish_quantiles"):
    """Per stream, on a public clock: publish the quantiles of every window."""

    counter = "quantiles_published"

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: KeyedState
    ) -> tuple[KeyedState, Outputs]:
        stream, noise = key.decode(), self.noise_of(key, first)
        outputs: list[tuple[int, QuantileEstimate]] = []
        for step, counts in enumerate(self.matrix(first, last, batches), first):
            given = BinnedStep(step=self.steps.number(step), counts=counts)
            state, found = self.mechanism.step(state, given, noise)
            outputs += ((step, row) for row in self._rows(stream, step, found))
        self.published.inc(len(outputs))
        return state, outputs

    def _rows(self, stream: str, step: int, found: QuantileRows) -> Iterator[QuantileEstimate]:
        """Return the rows of one window."""
        start, end = self.steps.bounds(step)
        columns = (found.quantiles, found.estimates, found.lower, found.upper)
        for numbers in zip(*(column.tolist() for column in columns), strict=True):
            yield QuantileEstimate(stream, start, end, *numbers)


class NumericQuantiles(QuantilesParameters, SharedTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if not self._by_person:
            return Segment(self._count_events, Keyed), Segment(partial(self._publish, last=1))
        people = Segment(self._split, KeyedBatch), Segment(self._count_people, Keyed)
        return *people, Segment(partial(self._publish, last=3))

    def _in_bins(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to the bins of their values."""
        if not events.is_bounded and self.mechanism.delta == 0 and self.mechanism.over == "start":
            raise ValueError(
                "delta must be > 0 when the input is unbounded and quantiles are since the start: with delta = 0 noise "
                "does not depend on the data, and a job that is restored and sees other events in time would show the "
                "exact difference"
            )
        sort = SortIntoBins(self.mechanism.bins, self._categories.domain, self.steps, self.streams)
        return apply_dofn(gather(events, apply_dofn, self.event_fields), sort, pa.RecordBatch)

    @cached_property
    def _categories(self) -> Categories:
        """The bins."""
        return Categories(domain=bin_names(self.mechanism.bins), streams=self.streams, limit=1, separator=LISTED)

    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn, *, last: int) -> PCollection[Any]:
        """Build the last stage, which has a number."""
        clocked = counts | "WithClock" >> WithClock(self.steps, self.streams, together=True, apart=not self._by_person)
        publish = PublishQuantiles(
            steps=self.steps,
            timer_offset=last,
            categories=self._categories,
            mechanism=self.mechanism,
            noise=self._counting_noise,
        )
        return apply_dofn(clocked, publish, QuantileEstimate)

    @property
    def _common(self) -> dict[str, Any]:
        """What stages that count are given."""
        return {"steps": self.steps, "categories": self._categories}

    @property
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""
        return self.noise.derive("people in quantiles")

    def _count_events(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to numbers of values per bin."""
        return apply_dofn(self._in_bins(events, apply_dofn), CountEvents(**self._common), Keyed)

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to batches of them by window and shard of people."""
        split = SplitRows(**self._common, noise=self._people, shards=self.shards)
        return apart_in_time(apply_dofn(self._in_bins(events, apply_dofn), split, KeyedBatch), self.steps)

    def _count_people(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from batches of events to numbers of values that count, per bin."""
        bounded = apply_dofn(batches, BoundValues(**self._common, timer_offset=1, noise=self._people), Keyed)
        limit = LimitRows(**self._common, timer_offset=2, limit=self.mechanism.contributions)
        return apply_dofn(bounded, limit, Keyed)

    @property
    def _counting_noise(self) -> NoiseSource:
        """The noise of counts: a run with other windows or streams shares none of it."""
        return self.noise.derive("quantiles of numbers", self.steps.label, f"{sorted(self.streams)}")
