"""Counts of public categories since the start, by event or within the limits of people: histograms and flags."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
from privstream.mechanisms.continual.histogram import HistogramState
from privstream.mechanisms.continual.queries import Histogram, HistogramQuery
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
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
from privstream.transforms.questions.running_stages import RunningAnswers, RunningTransform
from privstream.transforms.reading.fields import UNREAD
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CategoryFlag, HistogramEstimate
from privstream.transforms.timing.clock import on_clock, stepped
from privstream.transforms.timing.step_fn import Stepped, unchanged
from typing_extensions import override


class CountEvents(ReadEvents):
    """Count the categories of each Arrow batch, per step: whose events they are is not even read."""

    categories: Any

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        codes = self.categories.codes(batch)
        rows, steps = self.in_run(codes, batch["time"].to_numpy())
        cells, counts = np.unique(steps * len(self.categories) + codes[rows].astype(np.int64), return_counts=True)
        step, columns = np.divmod(cells, len(self.categories))
        starts: list[int] = np.flatnonzero(first_of_run(step)).tolist() if len(step) else []
        for start, end in itertools.pairwise([*starts, len(step)]):
            some = counts[start:end]
            yield StepKey(int(step[start]), 0).to_bytes(), (int(some.sum()), encode_counts(columns[start:end], some))


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
        if not len(charges):
            return Stepped(state, (), unchanged)
        counts = encode_counts(*np.unique(rows.items[admitted], return_counts=True))
        return Stepped(state.add(charges), [on_clock(step, counts)], charges.to_bytes)


class CountedSteps(RunningAnswers):
    """Counts of categories, int64 (categories,), are what the mechanism is given."""

    categories: Any

    @override
    def given(self, step: int, batches: list[bytes]) -> Any:
        return add_counts(batches, len(self.categories))

    @cached_property
    def names(self) -> list[str]:
        """The categories by their positions."""
        found: list[str] = self.categories.texts.to_pylist()
        return found


class CountedCategories(RunningTransform):
    """Events with public categories in; something private about their counts, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    categories: Any
    """What is counted: how many there are, and the `codes` of events, -1 for those that count in none."""

    @property
    @override
    def _asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"categories": self.categories}

    @override
    def _packer(self) -> CountEvents | None:
        if self.event_fields.user != UNREAD:
            return None
        return CountEvents(steps=self.steps, categories=self.categories)

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by | {"noise": self._people}, domain=self.categories, positions=True)

    def _limit_rows(self, limit: int) -> LimitRows:
        return LimitRows(steps=self.steps, timer_offset=1, limit=limit)


class CategoryTransform(CategoryParameters, CountedCategories):
    """Counts of categories since the start."""

    @override
    def _limits(self) -> tuple[BoundRows, LimitRows]:
        in_run = cast(int, self.max_contributions)
        limit = min(in_run, self.max_per_window or in_run)
        return BoundRows(steps=self.steps, limit=limit), self._limit_rows(in_run)

    @property
    @override
    def _labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return f"{self.unit} {self.max_contributions} {self.max_per_window}", self.categories.digest


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Publish what is asked."""

    row_type = HistogramEstimate
    queries: dict[str, HistogramQuery]
    counter = "estimates_published"

    @override
    def rows(self, state: HistogramState, found: np.ndarray) -> Iterator[tuple[Any, ...]]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        whole = self.mechanism.queries == (Histogram(),)
        for place, (name, query) in enumerate(self.queries.items()):
            columns, estimates = answer(query, found) if whole else ((-1,), found[place : place + 1])
            for column, estimate in zip(columns, estimates.tolist(), strict=True):
                category = self.names[column] if column >= 0 else ""
                yield name, category, estimate, bound, *interval(estimate, bound)


class ContinualHistogram(HistogramParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = PublishHistogram

    @property
    @override
    def _asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {**super()._asked, "queries": self.queries}


class RaiseFlags(CountedSteps, state="raise_flags"):
    """Publish all flags."""

    row_type = CategoryFlag
    counter = "flags_published"

    @override
    def rows(self, state: HistogramState, found: np.ndarray) -> Iterator[tuple[Any, ...]]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        for name, threshold, up in zip(self.names, self.mechanism.thresholds, found.tolist(), strict=True):
            yield name, up, threshold, bound


class ThresholdFlags(FlagsParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = RaiseFlags
