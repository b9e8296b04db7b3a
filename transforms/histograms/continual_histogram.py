"""Live histograms: counts of public categories, extremes, quantiles and top k, after every window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from privstream.mechanisms.histograms.histogram_queries import Histogram
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.histograms.categories import CountedSteps
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.histograms.parameters import HistogramParameters
from privstream.transforms.histograms.questions import Question
from privstream.transforms.row_types import interval
from privstream.transforms.rows import HistogramEstimate
from typing_extensions import override


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Run the mechanism through every window, and publish what is asked."""

    counter = "estimates_published"

    def __init__(self, *, questions: tuple[Question, ...], **common: Any) -> None:
        super().__init__(**common)
        self.questions = questions

    @override
    def step(
        self, key: bytes, step: int, batches: list[bytes], state: PartitionState
    ) -> tuple[PartitionState, Iterator[HistogramEstimate]]:
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
                yield question, self._names, estimates.tolist()
            else:
                yield question, [self._names[c] if c >= 0 else "" for c in columns], estimates.tolist()


class ContinualHistogram(HistogramParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = HistogramEstimate
    last_stage = PublishHistogram

    @override
    def publisher(self, timer_offset: int, noise: NoiseSource, **asked: Any) -> CountedSteps:
        return super().publisher(timer_offset, noise, questions=self.questions, **asked)
