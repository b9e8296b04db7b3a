"""Counts of public categories since the start, by event or within the limits of people: histograms and flags."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.continual.histogram import HistogramState
from privstream.mechanisms.continual.queries import Histogram
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
    people_key,
)
from privstream.transforms.people.bound import place_in_run
from privstream.transforms.people.bounding import (
    BoundEvents,
    ChargesInOrder,
    CodedEvents,
    LimitCounter,
    ReadEvents,
    SplitCodes,
    add_counts,
    encode_counts,
)
from privstream.transforms.questions.histograms import (
    CategoryParameters,
    FlagsParameters,
    HistogramParameters,
    Question,
)
from privstream.transforms.reading.fields import UNREAD
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CategoryFlag, HistogramEstimate
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.clock import CloseWindows, ToClock, WithClock, on_clock, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override

_MOST_CELLS = 1 << 22


class ReadCategories(ReadEvents):
    """What stages that read events share: which categories and steps the rows of an Arrow batch count in."""

    categories: Any
    other_items = Metrics.counter("privstream", "events_outside_domain")

    def code(self, batch: pa.RecordBatch) -> CodedEvents:
        """Return the categories that count in a batch, in row order, by their positions; count the others."""
        rows, positions = self.categories.found_in(batch)
        times = batch["time"].to_numpy()
        in_run, in_step = self.steps.assign(times)
        step = np.full(len(times), -1)
        step[in_run] = in_step
        keep = step[rows] >= 0
        self.other_items.inc(len(times) - len(rows))
        self.outside.inc(int((~keep).sum()))
        rows, positions = rows[keep], positions[keep]
        self.usable.inc(len(rows))
        return CodedEvents(rows, positions.astype(np.uint64), step[rows])


class CountEvents(ReadCategories):
    """Count the categories of each Arrow batch, per step: whose events they are is not even read."""

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        self.events.inc(batch.num_rows)
        _, codes, steps = self.code(batch)
        for step, number, counts in count(self.categories.size, steps, codes.astype(np.int64)):
            yield StepKey(step, 0).to_bytes(), (number, counts)


def count(size: int, steps: np.ndarray, positions: np.ndarray) -> Iterator[tuple[int, int, bytes]]:
    """Count positions below `size`: yield each step, how much was counted in it, and what."""
    if not len(positions):
        return
    first = int(steps.min())
    span = int(steps.max()) - first + 1
    cells = (steps - first) * size + positions
    if span * size <= max(_MOST_CELLS, 2 * len(cells)):
        totals = np.bincount(cells)
        cells = np.flatnonzero(totals)
        totals = totals[cells]
    else:
        cells, totals = np.unique(cells, return_counts=True)
    groups, columns = np.divmod(cells, size)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
        some = totals[start:end]
        yield first + int(groups[start]), int(some.sum()), encode_counts(columns[start:end], some)


class SplitRows(ReadCategories, SplitCodes):
    """Split the categories of events; the code of one is its position."""


def first_rows(users: np.ndarray, items: np.ndarray, times: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `limit` rows of each person, by time, then by item, and their places (uint16) in that order.

    Both depend on nothing but the person's own rows, whatever their order in the input: equal rows are alike.
    """
    order = np.lexsort((items, times, users))
    place = place_in_run(users, order)
    rows = order[place[order] < limit]
    return rows, place[rows].astype(np.uint16)


class BoundCodes(BoundEvents):
    """Per step and shard of people: of each person so many codes on, by shard of people."""

    limited: LimitCounter
    limit: int

    @abstractmethod
    def choose(self, step: int, events: EventBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that count, and their places (uint16) in an order of the rows of each person.

        Both are functions of the person's own events and the noise key, whatever the order of rows.
        """

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        rows, places = self.choose(key.step, events)
        self.limited.add(len(events.users), len(events.users) - len(rows))
        held = HolderBatch(events.users[rows], events.items[rows], places, Names.none())
        yield people_key(key.shard), stepped(key.step, encode(held))


class BoundRows(BoundCodes):
    """Of each person the first rows of a window count."""

    limited = LimitCounter("items")

    @override
    def choose(self, step: int, events: EventBatch) -> tuple[np.ndarray, np.ndarray]:
        return first_rows(events.users, events.items, events.times, self.limit)


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
    """Counts of categories, on a public clock."""

    categories: Any

    @cached_property
    def names(self) -> list[str]:
        """The categories by their positions."""
        found: list[str] = self.categories.domain.texts.to_pylist()
        return found

    def counts(self, batches: list[bytes]) -> np.ndarray:
        """Return the counts of a step, int64 (columns,)."""
        return add_counts(batches, self.categories.size)


class CountedCategories(PeopleTransform):
    """Events with public categories in; something private about their counts, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    row_type: type
    last_stage: type[CountedSteps]
    categories: Any
    """What is counted: its `size`; and `found_in` a batch: rows, and positions."""
    mechanism: Any
    noise: NoiseSource

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.event_fields.user != UNREAD:
            return super().segments
        return Segment(self._count, KeyedBatch), Segment(self._publish_counts)

    @property
    def _common(self) -> dict[str, Any]:
        """What stages that know categories are given."""
        return {"steps": self.steps, "categories": self.categories}

    @property
    @abstractmethod
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""

    @abstractmethod
    def _limits(self) -> tuple[BoundCodes, int]:
        """Return what bounds what counts of a person in a window, and how much counts in the run."""

    @abstractmethod
    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the counts depend on, beside the events."""

    @property
    def _asked(self) -> dict[str, Any]:
        """What the last stage is given beside that."""
        return {}

    def _count(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to counts of them."""
        return apply_dofn(self._gather(events, apply_dofn), CountEvents(**self._common), KeyedBatch)

    def _publish_counts(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Close the windows, and publish."""
        closed = counts | "CloseWindows" >> CloseWindows(self.steps)
        return self._publish(apply_dofn(closed, ToClock(), Keyed), apply_dofn)

    @override
    def _splitter(self) -> SplitRows:
        return SplitRows(**self._common, noise=self._people, shards=self.shards)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        in_window, in_run = self._limits()
        limit = LimitRows(steps=self.steps, size=self.categories.size, timer_offset=1, limit=in_run)
        held = apply_dofn(closed, in_window, Keyed)
        return apply_dofn(held | "PeopleClocks" >> WithClock(self.steps, self.people), limit, Keyed)

    @override
    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        clocked = counts | "WithClock" >> WithClock(self.steps)
        given = {"mechanism": self.mechanism, "noise": self._noise(), **self._common, **self._asked}
        return apply_dofn(clocked, self.last_stage(**given, timer_offset=2), self.row_type)


class CategoryTransform(CategoryParameters, CountedCategories):
    """Counts of categories since the start."""

    @property
    @override
    def _people(self) -> NoiseSource:
        return self.noise.derive("people in histograms")

    @override
    def _limits(self) -> tuple[BoundRows, int]:
        in_run = cast(int, self.max_contributions)
        limit = min(in_run, self.max_per_window or in_run)
        return BoundRows(steps=self.steps, limit=limit), in_run

    @override
    def _noise(self) -> NoiseSource:
        limits = f"{self.unit} {self.max_contributions} {self.max_per_window}"
        return self.noise.derive(type(self).__name__, self.steps.label, limits, self.categories.domain.digest)


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Run the mechanism through every window, and publish what is asked."""

    questions: tuple[Question, ...]
    counter = "estimates_published"

    @override
    def step(
        self, key: bytes, step: int, batches: list[bytes], state: HistogramState
    ) -> tuple[HistogramState, Iterator[HistogramEstimate]]:
        state, answer = self.mechanism.step(state, self.counts(batches), self.noise_of(step))
        return state, self.rows(step, answer, self.mechanism.error_bound(state.step, state.interval))

    def rows(self, step: int, answer: np.ndarray, bound: int) -> Iterator[HistogramEstimate]:
        """Publish one window's answers."""
        start, end = self.steps.bounds(step)
        number = 0
        for question, categories, estimates in self._named(answer):
            number += len(estimates)
            for category, estimate in zip(categories, estimates, strict=True):
                ends = interval(estimate, bound)
                yield HistogramEstimate(start, end, question.name, category, estimate, bound, *ends)
        self.published.inc(number)

    def _named(self, answer: np.ndarray) -> Iterator[tuple[Question, list[str], list[int]]]:
        """Return categories and numbers of every query."""
        if self.mechanism.queries != (Histogram(),):
            for question, estimate in zip(self.questions, answer.tolist(), strict=True):
                yield question, [""], [estimate]
            return
        for question in self.questions:
            columns, estimates = question.answer(answer)
            if isinstance(question.query, Histogram):
                yield question, self.names, estimates.tolist()
            else:
                yield question, [self.names[c] if c >= 0 else "" for c in columns], estimates.tolist()


class ContinualHistogram(HistogramParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = HistogramEstimate
    last_stage = PublishHistogram

    @property
    @override
    def _asked(self) -> dict[str, Any]:
        return {"questions": self.questions}


class RaiseFlags(CountedSteps, state="raise_flags"):
    """Run the mechanism through every window, and publish all flags."""

    counter = "flags_published"

    @override
    def step(
        self, key: bytes, step: int, batches: list[bytes], state: HistogramState
    ) -> tuple[HistogramState, Iterator[CategoryFlag]]:
        state, raised = self.mechanism.step(state, self.counts(batches), self.noise_of(step))
        return state, self.rows(step, raised, self.mechanism.error_bound(state.step, state.interval))

    def rows(self, step: int, raised: np.ndarray, bound: int) -> Iterator[CategoryFlag]:
        """Publish one window's flags."""
        start, end = self.steps.bounds(step)
        self.published.inc(len(raised))
        for name, threshold, up in zip(self.names, self.mechanism.thresholds, raised.tolist(), strict=True):
            yield CategoryFlag(start, end, name, up, threshold, bound)


class ThresholdFlags(FlagsParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = CategoryFlag
    last_stage = RaiseFlags
