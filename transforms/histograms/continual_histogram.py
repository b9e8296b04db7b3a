"""Live histograms: counts of public categories, extremes, quantiles and top k, after every window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import apache_beam as beam
import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.histograms.histogram_queries import Histogram, HistogramQueries, Monotone
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.events.domain import Items
from privstream.transforms.histograms.categories import CountedSteps
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.histograms.questions import Question, questions, watched
from privstream.transforms.rows import HistogramEstimate
from privstream.transforms.timing.clocked import Outputs
from privstream.transforms.timing.steps import Moment, WindowOptions
from typing_extensions import Unpack, override

METHODS = {
    "auto": "auto",
    "direct_counters": "direct",
    "anchored_counters": "anchored",
    "henzinger_sricharan_steiner": "paper",
}
"""Which mode of the mechanism each method is."""

MANY = 100_000
"""The largest count that is expected if nothing else is known."""


class ContinualHistogram(CategoryTransform):
    """Publish, at the end of every window, queries on the counts of public categories in all windows so far.

    Input: pairs (user, category) timestamped with their event time, rows with `user`, `item` (the category), `time` and
    perhaps `stream`, or Arrow record batches with these columns; where the unit is an event, no `user` is read.
    With `categories_per_row` an item may be several categories: a list, or a text with separators. Bounded or
    unbounded, in any order. `queries` may have `Monotone` functions, too. Output: `HistogramEstimate` rows; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters.

    Every window from `start` to `end` is published once, also an empty one, at its end plus `allowed_lateness`. Events
    that come later are never used.

    Privacy:
        Unit: one event, or one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta):
        `guarantee`. Enforced: an event counts for at most `categories_per_row` categories; a person's first
        `max_contributions` categories count, by window and in it by time, at most `max_per_window` of each window.
        Public: all arguments but `noise`. With unit "person", one value of the user field is one person; with unit
        "event", nothing is promised to a person who has many events.

    Accuracy:
        With probability 1 - beta, all estimates of a stream, in all windows together, are within their `error_bound` of
        the numbers without noise. These are the numbers after all limits and without late events. `error_bound` is
        `error(window, intervals)`. The categories that `top:K` names have counts within twice that of the largest ones.

    Args:
        epsilon: limit on what all rows together show about one event or one person, > 0. A smaller value protects
            better and needs more noise.
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). Choose it far below 1 /
            (number of people). A delta above 0 lowers the noise of long runs, and may raise that of short ones, up to
            some hundred windows: `privstream plan` says where it does.
        domain: public list of items: the categories. Events of other items count in no answer.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: every window that ends at or before this moment, in seconds since 1970 UTC, is published, also an empty
            one. `end` must be given unless the input has no end.
        queries: one or several of histogram (all counts), max, min, median, quantile:Q and top:K. They are about the
            counts of all categories.
        unit: what is protected: one "event", or all that one "person" does in the whole run.
        max_contributions: number of categories of one person that count in the whole run, 1 to 65,535; each event
            counts for its categories. It must be given with unit "person".
        max_per_window: number of categories of one person that count in one window, with unit "person". With delta
            > 0 a smaller one needs less noise.
        categories_per_row: number of categories of one event that count.
        separator: text between the categories of an event that may have several. Rows of Beam may have lists instead.
        method: method that makes the numbers; "auto" takes the most accurate one. "direct_counters" renews them in
            every window; "anchored_counters" only when they have grown, for long runs with few events;
            "henzinger_sricharan_steiner" is the published algorithm.
        largest: the largest count that you expect. The method is chosen for it, and the accuracy is stated for it.
            Without it, it is the number of windows, or 100,000 if there is no end.
        streams: public names of the streams, each of which is counted by itself. They must be given if events have a
            stream.
        neighbouring: what makes two inputs neighbours: one event or person is added or removed ("add_remove"), or
            replaced by another one ("replace_one").
        restartable: bind all noise to the data, so that a run that is repeated with other data does not show by how
            much these differ. This is always so if there is no end, or if delta > 0; otherwise it makes errors of
            long runs up to 1.4 times as large, and of short ones no larger.
        beta: probability with which the accuracy statement may be wrong.
        shards: number of parallel parts into which people are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made or applied.

    Example:
        >>> histogram = ContinualHistogram(epsilon=1.0, domain=Domain(["cat", "dog"]), window=3600, start=0, end=86400,
        ...                                noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/anchored.md, counters.md, live_histograms.md.
    """

    row_type = HistogramEstimate

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Items,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        queries: tuple[str | Monotone, ...] = ("histogram",),
        unit: Literal["event", "person"] = "event",
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        categories_per_row: int = 1,
        separator: str | None = None,
        method: Literal["auto", "direct_counters", "anchored_counters", "henzinger_sricharan_steiner"] = "auto",
        largest: int | None = None,
        streams: tuple[str, ...] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        restartable: bool | None = None,
        beta: float = 0.05,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(
            domain=domain,
            start=start,
            end=end,
            **options,
            unit=unit,
            max_contributions=max_contributions,
            max_per_window=max_per_window,
            categories_per_row=categories_per_row,
            separator=separator,
            streams=streams,
            neighbouring=neighbouring,
            restartable=restartable,
            noise=noise,
            shards=shards,
        )
        self.questions = questions(queries, len(domain))
        mode = METHODS[checks.one_of("method", method, tuple(METHODS))]
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "beta": beta, "mode": mode, "largest": largest}
        choices = [
            HistogramQueries(**budget, **self.shape_with(delta), queries=each) for each in watched(self.questions)
        ]
        self._mechanism = choices[-1] if mode == "paper" else min(choices, key=_expected_error)
        self.method = next(name for name, mode in METHODS.items() if mode == self._mechanism.chosen_mode)

    @property
    @override
    def mechanism(self) -> HistogramQueries:
        return self._mechanism

    @property
    @override
    def prediction(self) -> Accuracy:
        mechanism, error = self.mechanism, _expected_error(self.mechanism)
        numbers: dict[str, Any] = {"error_bound": error, "method": self.method}
        windows, grown = "all windows" if self.windows else f"the first {_expected(mechanism):,} windows", ""
        if mechanism.chosen_mode != "direct":
            numbers["largest"] = _expected(mechanism)
            grown = f", while none of them exceeds {_expected(mechanism):,}"
        return Accuracy(
            error=error,
            failure_probability=mechanism.beta,
            claim=f"With probability {1 - mechanism.beta:g}, all numbers of a stream, in {windows} together, are "
            f"within {error:,} of the numbers without noise{grown} (method {self.method}; each row has an error bound "
            "of its own).",
            numbers=numbers,
        )

    def error(self, window: int, intervals: int = 0) -> int:
        """Return the error bound in window 1, 2, .. when estimates have been renewed `intervals` times.

        With direct counters they are renewed in every window, and `intervals` is not needed.
        """
        return self.mechanism.error_bound(window, intervals)

    @override
    def publisher(self, timer_offset: int, noise: NoiseSource) -> beam.DoFn:
        return PublishHistogram(
            steps=self.steps,
            timer_offset=timer_offset,
            categories=self.categories,
            mechanism=self.mechanism,
            questions=self.questions,
            noise=noise,
        )


def _expected_error(mechanism: HistogramQueries) -> int:
    """Return the error that a mechanism promises for the answers that it expects."""
    return mechanism.error(_expected(mechanism))


def _expected(mechanism: HistogramQueries) -> int:
    """Return the largest count that is expected; without an end, the number of windows, too."""
    return mechanism.largest or mechanism.horizon or MANY


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
