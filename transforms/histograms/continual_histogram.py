"""Live histograms: counts of public categories, extremes, quantiles and top k, after every window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.histograms.histogram_queries import Histogram
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.histograms.categories import CountedSteps
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.histograms.parameters import HistogramParameters
from privstream.transforms.histograms.questions import Question
from privstream.transforms.row_types import interval
from privstream.transforms.rows import HistogramEstimate
from privstream.transforms.timing.clocked import Outputs
from typing_extensions import override

Spreads = tuple[int | None, int | None]


class PublishHistogram(CountedSteps, state="publish_histogram"):
    """Per stream: run the mechanism through every window, and publish what is asked."""

    counter = "estimates_published"

    def __init__(self, *, questions: tuple[Question, ...], **common: Any) -> None:
        super().__init__(**common)
        self.questions = questions

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: PartitionState
    ) -> tuple[PartitionState, Outputs]:
        stream, noise = key.decode(), self.noise_of(key, first)
        published: list[tuple[np.ndarray, int, Spreads]] = []
        counts = self.matrix(first, last, batches)
        runs = [counts] if self.mechanism.chosen_mode == "direct" else counts[:, None, :]  # else intervals may end
        for run in runs:
            before = state.step
            state, answers = self.mechanism.run(state, run, noise)
            steps = range(before + 1, state.step + 1)
            bounds = [self.mechanism.error_bound(each, state.interval) for each in steps]
            published += zip(answers, bounds, map(self._spreads, steps), strict=True)
        return state, self._outputs(stream, first, published)

    def _spreads(self, step: int) -> Spreads:
        """Return how far the count of one category is off at most, and that of any, each in 95% of all cases."""
        one, any_of = (
            self.mechanism.spread(step, columns=columns, beta=OUTSIDE) for columns in (1, self.mechanism.columns)
        )
        return one, any_of

    def _outputs(self, stream: str, first: int, published: list[tuple[np.ndarray, int, Spreads]]) -> Outputs:
        """Make the rows one by one: there may be many."""
        for step, (answer, bound, spreads) in enumerate(published, first):
            for row in self.rows(stream, step, answer, bound, spreads):
                yield step, row

    def rows(
        self, stream: str, step: int, answer: np.ndarray, bound: int, spreads: Spreads
    ) -> Iterator[HistogramEstimate]:
        """Publish one window's answers."""
        start, end = self.steps.bounds(step)
        number = 0
        for question, categories, estimates in self._named(answer):
            number += len(estimates)
            spread = spreads[not isinstance(question.query, Histogram)]
            for category, estimate in zip(categories, estimates, strict=True):
                ends = interval(estimate, spread)
                yield HistogramEstimate(stream, start, end, question.name, category, estimate, bound, *ends)
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
