"""Counts of public categories since the start, by event or within the limits of people: histograms and flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from privstream.mechanisms.continual.histogram import HistogramState
from privstream.mechanisms.continual.queries import Histogram, HistogramQuery
from privstream.transforms.batches import EventBatch
from privstream.transforms.questions.histograms import (
    CategoryParameters,
    FlagsParameters,
    HistogramParameters,
    answer,
)
from privstream.transforms.questions.running_stages import BoundCodes, ListedTransform, RunningAnswers
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CategoryFlag, HistogramEstimate
from typing_extensions import override


class BoundRows(BoundCodes):
    """Of each person the first rows of a window count, by time, then by item; equal rows are alike."""

    counted = "items"

    @override
    def order(self, step: int, events: EventBatch) -> np.ndarray:
        return np.lexsort((events.items, events.times, events.users))


class CategoryTransform(CategoryParameters, ListedTransform):
    """Counts of categories since the start."""

    @override
    def _limits(self) -> Sequence[beam.DoFn]:
        in_run = self.max_contributions or 1
        limit = min(in_run, self.max_per_window or in_run)
        return self._bounded(BoundRows(steps=self.steps, limit=limit), in_run)

    @property
    @override
    def _labels(self) -> tuple[Any, ...]:  # type: ignore[override]
        return f"{self.unit} {self.max_contributions} {self.max_per_window}", self.domain.digest


class PublishHistogram(RunningAnswers, state="publish_histogram"):
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
                category = self.listed[column] if column >= 0 else ""
                yield name, category, estimate, bound, *interval(estimate, bound)


class ContinualHistogram(HistogramParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = PublishHistogram

    @property
    @override
    def asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {**super().asked, "queries": self.queries}


class RaiseFlags(RunningAnswers, state="raise_flags"):
    """Publish all flags."""

    row_type = CategoryFlag
    counter = "flags_published"

    @override
    def rows(self, state: HistogramState, found: np.ndarray) -> Iterator[tuple[Any, ...]]:
        bound = self.mechanism.error_bound(state.step, state.interval)
        for place, (threshold, up) in enumerate(zip(self.mechanism.thresholds, found.tolist(), strict=True)):
            yield self.listed[place], up, threshold, bound


class ThresholdFlags(FlagsParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = RaiseFlags
