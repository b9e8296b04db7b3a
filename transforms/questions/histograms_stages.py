"""Counts of public categories since the start, by event or within the limits of people: histograms and flags."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from privstream.mechanisms.continual.histogram import HistogramState
from privstream.mechanisms.continual.queries import Histogram, HistogramQuery
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    Names,
    StepKey,
    encode,
    first_of_run,
    people_key,
)
from privstream.transforms.people.bound import place_in_run
from privstream.transforms.people.bounding import (
    BoundEvents,
    ChargesInOrder,
    LimitCounter,
    ReadEvents,
    SplitEvents,
    add_counts,
    encode_counts,
)
from privstream.transforms.questions.histograms import (
    CategoryParameters,
    FlagsParameters,
    HistogramParameters,
    answer,
)
from privstream.transforms.reading.fields import UNREAD
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CategoryFlag, HistogramEstimate
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.clock import CloseWindows, ToClock, WithClock, on_clock, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override


class CountEvents(ReadEvents):
    """Count the categories of each Arrow batch, per step: whose events they are is not even read."""

    categories: Any

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        codes = self.categories.codes(batch)
        rows, steps = self.in_run(codes, batch["time"].to_numpy())
        for step, number, counts in count(len(self.categories), steps, codes[rows].astype(np.int64)):
            yield StepKey(step, 0).to_bytes(), (number, counts)


def count(size: int, steps: np.ndarray, positions: np.ndarray) -> Iterator[tuple[int, int, bytes]]:
    """Count positions below `size`: yield each step, how much was counted in it, and what."""
    if not len(positions):
        return
    cells, totals = np.unique(steps * size + positions, return_counts=True)
    groups, columns = np.divmod(cells, size)
    starts = np.flatnonzero(first_of_run(groups))
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
        some = totals[start:end]
        yield int(groups[start]), int(some.sum()), encode_counts(columns[start:end], some)


class BoundCodes(BoundEvents):
    """Per step and shard of people: of each person so many codes on, by shard of people."""

    limited: LimitCounter
    limit: int

    @abstractmethod
    def order(self, step: int, events: EventBatch) -> np.ndarray:
        """Return the rows person by person, those that count first: by the person's own events and the noise key."""

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = self.order(key.step, events)
        places = place_in_run(events.users, order)
        rows = order[places[order] < self.limit]
        self.limited.add(len(events.users), len(events.users) - len(rows))
        held = HolderBatch(events.users[rows], events.items[rows], places[rows].astype(np.uint16), Names.none())
        yield people_key(key.shard), stepped(key.step, encode(held))


class BoundRows(BoundCodes):
    """Of each person the first rows of a window count, by time, then by item; equal rows are alike."""

    limited = LimitCounter("items")

    @override
    def order(self, step: int, events: EventBatch) -> np.ndarray:
        return np.lexsort((events.items, events.times, events.users))


class LimitRows(ChargesInOrder, state="limit_rows"):
    """Per shard of people: leave out what is beyond a person's share of the whole run, and count the rest.

    Steps are handled in order, so what is left of a person's rows depends on that person's rows alone.
    """

    size: int
    limit: int
    limited = LimitCounter("contributions")

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        rows = HolderBatch.read(batches)
        admitted = rows.ranks.astype(np.int64) < self.limit - state.charged(rows.users)
        self.limited.add(len(admitted), int(len(admitted) - admitted.sum()))
        charges = Charges.of(rows.users[admitted])
        positions = rows.items[admitted].astype(np.int64)
        counts = [on_clock(at, data) for at, _, data in count(self.size, np.full(len(positions), step), positions)]
        return Stepped(state.add(charges), counts, charges.to_bytes if len(charges) else unchanged)


class CountedSteps(StepFn):
    """Counts of categories, on a public clock: the mechanism makes of them what rows are made of."""

    categories: Any

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, list[Any]]:
        state, found = self.mechanism.step(state, self.given(step, batches), self.noise_of(step))
        rows = list(self.rows(step, state, found))
        self.published.inc(len(rows))
        return state, rows

    def given(self, step: int, batches: list[bytes]) -> Any:
        """Return what the mechanism is given: counts of a step, int64 (columns,)."""
        return add_counts(batches, len(self.categories))

    @abstractmethod
    def rows(self, step: int, state: Any, found: Any) -> Iterable[Any]:
        """Return the rows of a step, of what the mechanism has released."""

    @cached_property
    def names(self) -> list[str]:
        """The categories by their positions."""
        found: list[str] = self.categories.texts.to_pylist()
        return found


class CountedCategories(PeopleTransform):
    """Events with public categories in; something private about their counts, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    row_type: type
    last_stage: type[CountedSteps]
    categories: Any
    """What is counted: how many there are, and the `codes` of events, -1 for those that count in none."""
    mechanism: Any
    noise: NoiseSource

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.event_fields.user != UNREAD:
            return super().segments
        return Segment(self._count, KeyedBatch), Segment(self._publish_counts)

    @property
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""
        return self.noise.derive("people of categories")

    @abstractmethod
    def _limits(self) -> tuple[BoundCodes, int]:
        """Return what bounds what counts of a person in a window, and how much counts in the run."""

    _asked: Mapping[str, Any] = MappingProxyType({})
    """What the last stage is given beside that."""

    _labels: tuple[str, ...] = ()
    """All that counts depend on beside events, windows and the mechanism, as parts of noise labels."""

    def _noise(self) -> NoiseSource:
        return self.noise.derive(type(self).__name__, self.steps.label, *self._labels)

    def _count(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to counts of them."""
        count_events = CountEvents(steps=self.steps, categories=self.categories)
        return apply_dofn(self._gather(events, apply_dofn), count_events, KeyedBatch)

    def _publish_counts(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Close the windows, and publish."""
        closed = counts | "CloseWindows" >> CloseWindows(self.steps)
        return self._publish(apply_dofn(closed, ToClock(), Keyed), apply_dofn)

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by | {"noise": self._people}, domain=self.categories, positions=True)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        in_window, in_run = self._limits()
        limit = LimitRows(steps=self.steps, size=len(self.categories), timer_offset=1, limit=in_run)
        held = apply_dofn(closed, in_window, Keyed)
        return apply_dofn(held | "PeopleClocks" >> WithClock(self.steps, self.people), limit, Keyed)

    @override
    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        clocked = counts | "WithClock" >> WithClock(self.steps)
        given = {"mechanism": self.mechanism, "noise": self._noise(), "categories": self.categories, **self._asked}
        return apply_dofn(clocked, self.last_stage(steps=self.steps, timer_offset=2, **given), self.row_type)


class CategoryTransform(CategoryParameters, CountedCategories):
    """Counts of categories since the start."""

    @override
    def _limits(self) -> tuple[BoundRows, int]:
        in_run = cast(int, self.max_contributions)
        limit = min(in_run, self.max_per_window or in_run)
        return BoundRows(steps=self.steps, limit=limit), in_run

    @property
    @override
    def _labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return f"{self.unit} {self.max_contributions} {self.max_per_window}", self.categories.digest


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Run the mechanism through every window, and publish what is asked."""

    queries: dict[str, HistogramQuery]
    counter = "estimates_published"

    @override
    def rows(self, step: int, state: HistogramState, found: np.ndarray) -> Iterator[HistogramEstimate]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        for name, categories, estimates in self._named(found):
            for category, estimate in zip(categories, estimates, strict=True):
                ends = interval(estimate, bound)
                yield HistogramEstimate(*self.steps.bounds(step), name, category, estimate, bound, *ends)

    def _named(self, found: np.ndarray) -> Iterator[tuple[str, Sequence[str], list[int]]]:
        """Return categories and numbers of every query."""
        if self.mechanism.queries != (Histogram(),):
            for name, estimate in zip(self.queries, found.tolist(), strict=True):
                yield name, [""], [estimate]
            return
        for name, query in self.queries.items():
            columns, estimates = answer(query, found)
            yield name, [self.names[column] if column >= 0 else "" for column in columns], estimates.tolist()


class ContinualHistogram(HistogramParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = HistogramEstimate
    last_stage = PublishHistogram

    @property
    @override
    def _asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"queries": self.queries}


class RaiseFlags(CountedSteps, state="raise_flags"):
    """Run the mechanism through every window, and publish all flags."""

    counter = "flags_published"

    @override
    def rows(self, step: int, state: HistogramState, found: np.ndarray) -> Iterator[CategoryFlag]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        for name, threshold, up in zip(self.names, self.mechanism.thresholds, found.tolist(), strict=True):
            yield CategoryFlag(*self.steps.bounds(step), name, up, threshold, bound)


class ThresholdFlags(FlagsParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = CategoryFlag
    last_stage = RaiseFlags
