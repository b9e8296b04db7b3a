"""Questions whose answers follow from counts of what is listed, after every window: top-k by gaps, histograms, flags,
quantiles, ranges and nearest points.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.continual.histogram import HistogramState
from privstream.mechanisms.continual.predecessor import Neighbours, PredecessorStep
from privstream.mechanisms.continual.queries import Histogram
from privstream.mechanisms.continual.ranges import RangeState, Updates
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.transforms.batches import (
    NO_NAMES,
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    StepKey,
    encode,
    first_of_run,
    shard_key,
)
from privstream.transforms.counters import count_dropped, counter
from privstream.transforms.counts.contributions import CountContributions, SampleContributions
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.parameters import BEGIN
from privstream.transforms.people.bounding import (
    BoundEvents,
    BoundPerWindow,
    LimitWindows,
    SplitEvents,
    add_counts,
    encode_counts,
    parts_of_people,
    place_in_run,
)
from privstream.transforms.questions.by_counts import TopKParameters
from privstream.transforms.questions.continual import (
    FlagsParameters,
    HistogramParameters,
    PointParameters,
    PredecessorParameters,
    RangesParameters,
    answer,
)
from privstream.transforms.questions.numbers import QuantilesParameters
from privstream.transforms.reading.fields import UNREAD
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CategoryFlag, HistogramEstimate, NearestPoints, QuantileEstimate, RangeCount
from privstream.transforms.stages import PeopleTransform
from privstream.transforms.timing.step_fn import StepFn, stepped
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class CountPerStep(SplitEvents):
    """Count what each Arrow batch has, per step: whose events they are is not even read."""

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        _, steps, codes = self.usable(batch)
        cells, counts = np.unique(steps * len(self.domain) + codes, return_counts=True)
        step, columns = np.divmod(cells, len(self.domain))
        starts: list[int] = np.flatnonzero(first_of_run(step)).tolist() if len(step) else []
        for start, end in itertools.pairwise([*starts, len(step)]):
            some = counts[start:end]
            yield StepKey(int(step[start]), 0).to_bytes(), (int(some.sum()), encode_counts(columns[start:end], some))


class RunningAnswers(StepFn, state="running_answers"):
    """On a public clock: run a mechanism through every window, and make rows of what it releases."""

    asked: Any
    """The transform that is answered."""
    row_type: Any

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, list[Any]]:
        state, found = self.answer(step, batches, state)
        rows = [self.row_type(*self.steps.bounds(step), *fields) for fields in found]
        self.published.inc(len(rows))
        return state, rows

    def answer(self, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[tuple[Any, ...]]]:
        """Return the state after a step, and the fields of each row behind those of the window."""
        state, found = self.mechanism.step(
            state, self.asked.counts_of(step, batches), self.steps.renewed(self.noise, step)
        )
        return state, self.asked.rows(state, found)


class RunningTransform(PeopleTransform):
    """Events in; something private about the counts of what is listed, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    row_type: Any
    counter: str
    last_stage = RunningAnswers

    def counts_of(self, step: int, batches: list[bytes]) -> Any:
        """Return what the mechanism is given: counts, int64, of what is listed."""
        return add_counts(batches, len(self.domain))

    @abstractmethod
    def rows(self, state: Any, found: Any) -> Iterable[tuple[Any, ...]]:
        """Return the fields of rows, given what the mechanism has released, and its state after that."""

    @override
    def _splitter(self, **given: Any) -> beam.DoFn:
        if self.event_fields.user == UNREAD:
            return CountPerStep(steps=self.steps, domain=self.domain)
        return super()._splitter(**given)

    @override
    def _last(self) -> RunningAnswers:
        given = {"mechanism": self.mechanism, "noise": self.publishing_noise, "asked": self}
        given |= {"row_type": self.row_type, "counter": self.counter}
        return self.last_stage(steps=self.steps, timer_offset=2, **given)


class RankItems(RunningAnswers, state="rank_items"):
    """At each step rank all items of the domain, and publish those on top. No state outlives a step."""

    @override
    def initial(self, key: bytes) -> None:
        return None

    @override
    def encode(self, state: None) -> list[bytes]:
        return []

    @override
    def answer(self, step: int, batches: list[bytes], state: None) -> tuple[None, Iterator[tuple[Any, ...]]]:
        found = self.mechanism.release(self.asked.counts_of(step, batches), self.noise.derive("step", step))
        columns = (found.indices, found.gaps.astype(float), found.estimates, found.lower, found.upper)
        rows = enumerate(zip(*(column.tolist() for column in columns), strict=True), start=1)
        return None, ((rank, self.asked.domain[item], *numbers) for rank, (item, *numbers) in rows)


class TopKWithGap(TopKParameters, CountedTransform, RunningTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = RankItems

    @override
    def _limits(self) -> tuple[BoundPerWindow, LimitWindows]:
        _ = self.mechanism.estimate_variance  # once, at launch; workers receive it
        in_window = BoundPerWindow(
            steps=self.steps, noise=self.noise, items_per_step=self.max_per_window, by_people=True, ranked=False
        )
        in_run = LimitWindows(steps=self.steps, timer_offset=1, limit=self.windows_of_person)
        return in_window, in_run


class ContinualHistogram(HistogramParameters, RunningTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = HistogramEstimate, "estimates_published"

    @override
    def rows(self, state: HistogramState, found: np.ndarray) -> Iterator[tuple[Any, ...]]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        whole = self.mechanism.queries == (Histogram(),)
        for place, (name, query) in enumerate(self.queries.items()):
            columns, estimates = answer(query, found) if whole else ((-1,), found[place : place + 1])
            for column, estimate in zip(columns, estimates.tolist(), strict=True):
                category = self.domain[column] if column >= 0 else ""
                yield name, category, estimate, bound, *interval(estimate, bound)


class ThresholdFlags(FlagsParameters, RunningTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = CategoryFlag, "flags_published"

    @override
    def rows(self, state: HistogramState, found: np.ndarray) -> Iterator[tuple[Any, ...]]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        for place, (threshold, up) in enumerate(zip(self.mechanism.thresholds or (), found.tolist(), strict=True)):
            yield self.domain[place], up, threshold, bound


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


class BoundValues(BoundEvents):
    """Of each person a random sample of the values of a window counts; `in_parts`, large ones as several records.

    Equal rows of a person are told apart by how many of them come before: each is as likely to count as any other.
    """

    noise: NoiseSource
    limit: int
    in_parts: bool

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        columns = events.users, events.items, events.times.astype(np.uint64)
        order = np.lexsort(columns[::-1])
        first = first_of_run(*(column[order] for column in columns))
        number = np.empty(len(order), np.uint64)
        number[order] = np.arange(len(order)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        rows = np.stack([*columns, number], axis=1)
        offsets = np.arange(len(rows) + 1) * rows.itemsize * rows.shape[1]
        noise = self.noise.derive("value order", key.step)
        draws = noise.hash_bytes(rows.astype("<u8").view(np.uint8).ravel(), offsets)
        order = np.lexsort((number, events.items, events.times, draws, events.users))
        places = place_in_run(events.users, order)
        some = order[places[order] < self.limit]
        count_dropped("values", len(events.users), len(events.users) - len(some))
        held = HolderBatch(events.users[some], events.items[some], places[some].astype(np.uint16), NO_NAMES)
        for part in parts_of_people(held) if self.in_parts else [encode(held)]:
            yield shard_key(key.shard), stepped(key.step, part)


class NumericQuantiles(QuantilesParameters, RunningTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = QuantileEstimate, "quantiles_published"

    @property
    def domain(self) -> Binned:
        """The bins."""
        return Binned(self.mechanism.bins, self.steps)

    @override
    def _limits(self) -> Sequence[beam.DoFn]:
        if (bound := self.bound) is None:
            return super()._limits()
        given: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        in_window = BoundValues(**given, limit=self.mechanism.per_step, in_parts=bound.sampled)
        in_run = SampleContributions if bound.sampled else CountContributions
        return in_window, in_run(**given, timer_offset=1, bound=bound, key_shards=1)

    @override
    def counts_of(self, step: int, batches: list[bytes]) -> BinnedStep:
        return BinnedStep(step=self.steps.number(step), counts=super().counts_of(step, batches))

    @override
    def rows(self, state: int, found: QuantileRows) -> Iterator[tuple[Any, ...]]:
        columns = (found.quantiles, found.estimates, found.lower, found.upper, found.estimates)
        return zip(*(column.tolist() for column in columns), strict=True)


def updates_of(batches: Sequence[bytes]) -> Updates:
    """Return the updates of a step in order of time, insertions after deletions of one moment."""
    events = EventBatch.read(batches)
    points, inserted = events.users.astype(np.int64), events.items == BEGIN
    order = np.lexsort((points, inserted, events.times))
    return Updates(points[order], inserted[order])


class PackUpdates(SplitEvents):
    """Turn batches of events (`user`: the point, `item`: what happens to it) into `EventBatch`es of steps.

    Points outside of the universe, which are 1 .. `universe`, are counted and dropped, and so are actions that mean
    nothing. All that depends on the event alone.
    """

    universe: int
    positions = True
    other_points = Metrics.counter("privstream", "points_outside_universe")
    other = "events_of_other_actions"

    @override
    def usable(
        self, batch: pa.RecordBatch, codes: np.ndarray | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        points = batch["user"].to_numpy()
        within = np.flatnonzero((points >= 1) & (points <= self.universe))
        self.events.inc(len(points) - len(within))
        self.other_points.inc(len(points) - len(within))
        return super().usable(batch.take(pa.array(within)))


class PointTransform(PointParameters, RunningTransform):
    """Updates of points in; answers to public queries at the end of each window."""

    @override
    def _splitter(self, **given: Any) -> PackUpdates:
        common: dict[str, Any] = {"steps": self.steps, "shards": self.shards, "domain": self.actions}
        return PackUpdates(universe=self.universe, **common, **given)


class PredecessorQueries(PredecessorParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = NearestPoints, "neighbours_published"

    @override
    def counts_of(self, step: int, batches: list[bytes]) -> PredecessorStep:
        return PredecessorStep(updates_of(batches), self.queries[:, 0])

    @override
    def rows(self, state: Any, found: Neighbours) -> Iterable[tuple[Any, ...]]:
        columns = self.queries[:, 0], found.predecessors, found.successors, found.distances, found.errors
        return zip(*(column.tolist() for column in columns), strict=True)


class RangeCounts(RangesParameters, PointTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = RangeCount, "counts_published"

    @override
    def counts_of(self, step: int, batches: list[bytes]) -> Updates:
        return updates_of(batches)

    @override
    def rows(self, state: RangeState, found: np.ndarray) -> Iterable[tuple[Any, ...]]:
        errors, spreads = self.mechanism.errors(state.step), self.mechanism.spreads(state.step, OUTSIDE)
        ends = np.maximum(0, found - spreads), np.maximum(0, found + spreads)
        return zip(*(column.tolist() for column in (*self.queries.T, found, errors, *ends)), strict=True)
