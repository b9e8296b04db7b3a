"""Live histograms: counts of public categories, extremes, quantiles and top k, after every window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.histograms.query import Monotone
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.events.domain import Domain
from privstream.transforms.histograms.errors import error_bound
from privstream.transforms.histograms.events import LISTED
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.histograms.publishing import PublishHistogram
from privstream.transforms.histograms.questions import questions, watched
from privstream.transforms.rows import HistogramEstimate


class ContinualHistogram(CategoryTransform):
    """Publish, at the end of every window, queries on the counts of public categories in all windows so far.

    Input: pairs (user, category) timestamped with their event time, rows with `user`, `item` (the category), `time` and
    perhaps `stream`, or Arrow record batches with these columns; where the unit is an event, no `user` is read.
    With `categories_per_row` an item may be several categories: a list, or a text with separators. Bounded or
    unbounded, in any order. Output: `HistogramEstimate` rows; with `with_dead_letters()`, a `Published` pair of rows
    and dead letters.

    Every window from `start` to `end` is published once, empty ones too, at its end plus `allowed_lateness`; what comes
    later is never used.

    Privacy:
        Unit: one event, or one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta):
        `guarantee`. Enforced: an event counts for at most `categories_per_row` categories; a person's first
        `max_contributions` categories count, by window and in it by time, at most `max_per_window` of each window.
        Public: all arguments but `noise`. The people of unit "user" are those that the user field tells apart; of unit
        "event" nothing is promised to somebody who has many events.

    Accuracy:
        With probability 1 - beta, all estimates of a stream are within their `error_bound`, in all windows together, of
        the numbers without noise of what counts: after all limits, without late events. `error_bound` is
        `error(window, intervals)`. The categories that `top:K` names have counts within twice that of the largest ones.

    Args:
        epsilon: finite and > 0.
        delta: in [0, 1).
        domain: the public list of categories; events of others are counted and left out.
        window: length of a window in seconds.
        start: seconds since 1970 UTC of the first window's start.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: seconds since 1970 UTC after which no window ends, or None for no end (unbounded input only).
        allowed_lateness: seconds that a window stays open after its end.
        queries: some of "histogram" (all counts), "max", "min", "median" and "quantile:Q" (over categories), "top:K",
            and `Monotone` functions.
        unit: "event" or "user".
        max_contributions: categories counted of one person in the whole run, 1 to 65535; for unit "user" alone.
        max_per_window: categories counted of one person in one window, or None.
        categories_per_row: categories of one event that count.
        separator: text between the categories of an event, if `categories_per_row` > 1.
        mode: "auto", "anchored", "direct" or "paper"; see `HistogramQueries`.
        largest: largest count that is expected, for the choice of mode, and the accuracy of "anchored"; or None.
        streams: public names of the streams, each with a histogram of its own; None if the events carry no stream.
        neighbouring: "add_remove" or "replace_one".
        restartable: whether all noise is bound to the data, as it is anyway if delta > 0. If a job that is restored
            sees other events in time than before, then that counts differ shows, but not by how much. With delta = 0
            the error is about three times as large. None: if there is no end.
        beta: failure probability of the accuracy.
        shards: parallel shards of people. Changes no answer.

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
        domain: Domain,
        window: float,
        start: float,
        noise: NoiseSource,
        end: float | None = None,
        delta: float = 0.0,
        allowed_lateness: float = 0,
        queries: Sequence[str | Monotone] = ("histogram",),
        unit: str = "event",
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        categories_per_row: int = 1,
        separator: str = LISTED,
        mode: str = "auto",
        largest: int | None = None,
        streams: tuple[str, ...] | None = None,
        neighbouring: str = "add_remove",
        restartable: bool | None = None,
        beta: float = 0.05,
        shards: int = 4,
    ) -> None:
        super().__init__(
            domain=domain,
            window=window,
            start=start,
            end=end,
            allowed_lateness=allowed_lateness,
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
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "beta": beta, "mode": mode, "largest": largest}
        choices = [HistogramQueries(**budget, **self.shape, queries=each) for each in watched(self.questions)]
        self._mechanism = choices[-1] if mode == "paper" else min(choices, key=_expected_error)

    @property
    def mechanism(self) -> HistogramQueries:
        """The mechanism of one stream."""
        return self._mechanism

    def error(self, window: int, intervals: int = 0) -> int:
        """Return the error bound in window 1, 2, .. when estimates have been renewed `intervals` times.

        In mode direct they are renewed in every window, and `intervals` is not needed.
        """
        return error_bound(self.mechanism, window, intervals)

    def publisher(self, stage: int, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""
        return PublishHistogram(
            steps=self.steps,
            stage=stage,
            categories=self.categories,
            mechanism=self.mechanism,
            questions=self.questions,
            noise=noise,
        )


def _expected_error(mechanism: HistogramQueries) -> int:
    """Return the error that a mechanism promises for the answers that it expects."""
    return mechanism.error(mechanism.largest or mechanism.horizon or 100_000)
