"""The last stage of a live histogram: counts in, and at the end of every window the answers out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.histograms.query import Histogram
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.histograms.events import Categories, decode_counts
from privstream.transforms.histograms.people import late_counts
from privstream.transforms.histograms.questions import Question
from privstream.transforms.rows import HistogramEstimate
from privstream.transforms.timing.clocked import ClockedSteps, Outputs
from privstream.transforms.timing.steps import Steps

CELLS_AT_ONCE = 1 << 20  # steps times columns


class CountedSteps(ClockedSteps):
    """Counts of categories per stream, on a public clock."""

    def __init__(self, *, steps: Steps, timer_offset: int, categories: Categories) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, streams=categories.streams)
        self.categories = categories
        self.chunk = max(1, min(self.chunk, CELLS_AT_ONCE // len(categories.domain)))

    def setup(self) -> None:
        """Read the names of the categories."""
        self._names: list[str] = self.categories.domain.texts.to_pylist()

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count late events, and describe them by category."""
        columns, counts = decode_counts(batch)
        self.late.inc(int(counts.sum()))
        stream = self.categories.streams.index(key.decode())
        yield from late_counts(self.steps, self.categories, step, columns, counts, stream)

    def matrix(self, first: int, last: int, batches: dict[int, list[bytes]]) -> np.ndarray:
        """Return the counts of steps `first` to `last`, int64 (steps, columns)."""
        found = np.zeros((last - first + 1, len(self.categories.domain)), np.int64)
        for step in range(first, last + 1):
            for batch in batches.get(step, ()):
                columns, counts = decode_counts(batch)
                found[step - first, columns] += counts  # columns are distinct
        return found


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Per stream: run the mechanism through every window, and publish what is asked."""

    def __init__(
        self,
        *,
        steps: Steps,
        timer_offset: int,
        categories: Categories,
        mechanism: HistogramQueries,
        questions: tuple[Question, ...],
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, categories=categories)
        self.mechanism = mechanism
        self.questions = questions
        self.noise = noise
        self.published = Metrics.counter("privstream", "estimates_published")

    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: PartitionState
    ) -> tuple[PartitionState, Outputs]:
        """Answer in all windows from `first` to `last`."""
        stream = key.decode()
        noise = self.steps.renewed(self.noise, first).derive("stream", stream)
        published: list[tuple[np.ndarray, int]] = []
        counts = self.matrix(first, last, batches)
        runs = [counts] if self.mechanism.chosen_mode == "direct" else counts[:, None, :]  # else intervals may end
        for run in runs:
            before = state.step
            state, answers = self.mechanism.run(state, run, noise)
            bounds = [self.mechanism.error_bound(before + 1 + i, state.interval) for i in range(len(run))]
            published += zip(answers, bounds, strict=True)
        return state, self._outputs(stream, first, published)

    def _outputs(self, stream: str, first: int, published: list[tuple[np.ndarray, int]]) -> Outputs:
        """Make the rows one by one: there may be many."""
        for step, (answer, bound) in enumerate(published, first):
            for row in self.rows(stream, step, answer, bound):
                yield step, row

    def rows(self, stream: str, step: int, answer: np.ndarray, bound: int) -> Iterator[HistogramEstimate]:
        """Publish one window's answers."""
        start, end = self.steps.bounds(step)
        number = 0
        for name, categories, estimates in self._named(answer):
            number += len(estimates)
            for category, estimate in zip(categories, estimates, strict=True):
                yield HistogramEstimate(stream, start, end, name, category, estimate, bound)
        self.published.inc(number)

    def _named(self, answer: np.ndarray) -> Iterator[tuple[str, list[str], list[int]]]:
        """Return name, categories and numbers of every query."""
        if self.mechanism.queries != (Histogram(),):
            for question, estimate in zip(self.questions, answer.tolist(), strict=True):
                yield question.name, [""], [estimate]
            return
        for question in self.questions:
            columns, estimates = question.answer(answer)
            if isinstance(question.query, Histogram):
                yield question.name, self._names, estimates.tolist()
            else:
                yield question.name, [self._names[c] if c >= 0 else "" for c in columns], estimates.tolist()
