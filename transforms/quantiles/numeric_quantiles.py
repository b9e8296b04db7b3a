"""NumericQuantiles: medians and percentiles of numbers in events, such as latencies, prices or ages."""

from __future__ import annotations

import copy
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Self

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.key_table import KeyedState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.mechanisms.numeric_quantiles import NumericQuantiles as Mechanism
from privstream.transforms.batches import EventBatch, first_of_run
from privstream.transforms.events.bounding import place_in_run
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.people_transform import refuse_unbounded
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split import stream_numbers
from privstream.transforms.histograms.categories import BoundCodes, CountedCategories, CountedSteps
from privstream.transforms.histograms.parameters import LISTED, Categories
from privstream.transforms.limits.measuring import pair_hashes
from privstream.transforms.quantiles.parameters import LAST_PLACE, QuantilesParameters
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.clocked import Outputs
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

MOST_COUNTS = 1 << 21
"""Counts of bins, in all windows and streams, that are smoothed at the end of a run at most."""


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


class UnfinishedQuantile(NamedTuple):
    """A row of a run whose rows `finish` gets.

    Attributes:
        stream, window_start, window_end, quantile, estimate, lower, upper: as in `QuantileEstimate`.
        counts: noisy counts of the bins, the bytes of float64 in base 64, in the first row of a window; empty in the
            others.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    quantile: float
    estimate: float
    lower: float
    upper: float
    counts: str


registry.register_coder(UnfinishedQuantile, RowCoder)


@dataclass(frozen=True)
class SmoothQuantiles:
    """Fills in `smoothed`, `smoothed_lower` and `smoothed_upper` of all rows of a run that has ended.

    Privacy: post-processing of what is published with noise.

    Attributes:
        mechanism: what knows the noise of the counts.
    """

    mechanism: Mechanism

    def __call__(self, rows: Sequence[UnfinishedQuantile]) -> list[QuantileEstimate]:
        """Return the rows, by stream and window."""
        ordered = sorted(rows, key=attrgetter("stream", "window_start", "quantile"))
        found: list[QuantileEstimate] = []
        for _, of_stream in groupby(ordered, key=attrgetter("stream")):
            published = list(of_stream)
            counts = np.array([np.frombuffer(b64decode(row.counts)) for row in published if row.counts])
            columns = (ends.ravel().tolist() for ends in self.mechanism.smooth(counts))
            found += (
                QuantileEstimate._make((*row[:-1], *smoothed))
                for row, *smoothed in zip(published, *columns, strict=True)
            )
        return found


class PublishQuantiles(CountedSteps, state="publish_quantiles"):
    """Per stream, on a public clock: publish the quantiles of every window.

    `unfinished`: with the noisy counts that they are made of.
    """

    counter = "quantiles_published"

    def __init__(self, *, unfinished: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.unfinished = unfinished

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: KeyedState
    ) -> tuple[KeyedState, Outputs]:
        stream, noise = key.decode(), self.noise_of(key, first)
        outputs: list[tuple[int, Any]] = []
        for step, counts in enumerate(self.matrix(first, last, batches), first):
            given = BinnedStep(step=self.steps.number(step), counts=counts)
            state, found = self.mechanism.step(state, given, noise)
            outputs += ((step, row) for row in self._rows(stream, step, found))
        self.published.inc(len(outputs))
        return state, outputs

    def _rows(self, stream: str, step: int, found: QuantileRows) -> Iterator[Any]:
        """Return the rows of one window."""
        start, end = self.steps.bounds(step)
        columns = (found.quantiles, found.estimates, found.lower, found.upper)
        counts = b64encode(found.counts.tobytes()).decode() if self.unfinished else ""
        for place, numbers in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            if self.unfinished:
                yield UnfinishedQuantile._make((stream, start, end, *numbers, "" if place else counts))
            else:
                yield QuantileEstimate(stream, start, end, *numbers)


class NumericQuantiles(QuantilesParameters, CountedCategories):  # noqa: D101 - its docstring is that of its parameters
    row_type = QuantileEstimate
    last_stage = PublishQuantiles
    _to_finish = False

    @override
    def to_finish(self) -> Self:
        """Return this transform with the noisy counts of all windows, of which `finish` makes smoothed quantiles."""
        first, end = self.steps.first, self.steps.end
        if self.mechanism.over != "window" or first is None or end is None:
            return self
        if (end - first) * self.mechanism.resolution * len(self.streams) > MOST_COUNTS:
            return self
        made = copy.copy(self)
        made._to_finish = True
        return made

    @property
    @override
    def finish(self) -> SmoothQuantiles | None:
        return SmoothQuantiles(self.mechanism) if self._to_finish else None

    @property
    @override
    def unfinished(self) -> type | None:
        return UnfinishedQuantile if self._to_finish else None

    @override
    def publisher(self, timer_offset: int, noise: NoiseSource, **asked: Any) -> CountedSteps:
        return super().publisher(timer_offset, noise, unfinished=self._to_finish, **asked)

    @override
    def _check(self, events: PCollection[Any]) -> None:
        if self.mechanism.delta == 0 and self.mechanism.over == "start":
            rule = "delta must be > 0 when the input is unbounded and quantiles are since the start"
            refuse_unbounded(events, rule)

    @override
    def _gather(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to the bins of their values, too."""
        sort = SortIntoBins(self.mechanism.bins, self.categories.domain, self.steps, self.streams)
        return apply_dofn(super()._gather(events, apply_dofn), sort, pa.RecordBatch)

    @cached_property
    def categories(self) -> Categories:  # type: ignore[override]
        """The bins."""
        return Categories(domain=bin_names(self.mechanism.bins), streams=self.streams, limit=1, separator=LISTED)

    @property
    @override
    def _people(self) -> NoiseSource:
        return self.noise.derive("people in quantiles")

    @override
    def _limits(self) -> tuple[BoundValues, int]:
        return BoundValues(**self._common, timer_offset=1, noise=self._people), self.mechanism.contributions

    @override
    def _noise(self) -> NoiseSource:
        return self.noise.derive("quantiles of numbers", self.steps.label, f"{sorted(self.streams)}")
