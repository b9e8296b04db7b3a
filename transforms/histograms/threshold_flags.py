"""Threshold flags: which public categories have been counted more often than their thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import apache_beam as beam
import numpy as np
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.histograms.flags import ColumnFlags, CountedFlags
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.events.domain import Items
from privstream.transforms.histograms.categories import CountedSteps
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.methods import choose_method
from privstream.transforms.rows import CategoryFlag
from privstream.transforms.timing.clocked import Outputs
from privstream.transforms.timing.steps import Moment, WindowOptions
from typing_extensions import Unpack, override

Thresholds = int | Mapping[str, int]
"""A number for all categories, or one for each by its name."""

MANY = 1_000_000
"""Windows for which the accuracy is stated if there is no end."""


class ThresholdFlags(CategoryTransform):
    """Publish, at the end of every window, which categories have passed their thresholds; a flag stays up.

    Input, windows, unit and limits are as of `ContinualHistogram`. Output: a `CategoryFlag` row for each category and
    window; with `with_dead_letters()`, a `Published` pair of rows and dead letters.

    Privacy:
        Unit: one event, or one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta):
        `guarantee`. Enforced, and public: as for `ContinualHistogram`. No count is published. The method
        "henzinger_sricharan_steiner" compares with floating-point noise, and its guarantee holds up to rounding.

    Accuracy:
        With probability 1 - beta, all flags of a stream are within their `error_bound`, in all windows together.

    Args:
        epsilon: limit on what all rows together show about one event or one person, > 0. A smaller value protects
            better and needs more noise.
        thresholds: a public number from 1 to 2**53 for all categories, or one for each by its name.
        method: method that finds flags; "auto" takes the one with the smallest error bound at the end.
            "direct_counters" counts with noise in every window, as a histogram does. "henzinger_sricharan_steiner" is
            the published algorithm: its error hardly grows with the run, and is large from the start; with a delta
            above 0 it needs an epsilon below 3.
        domain, start, end, delta, unit, max_contributions: see `histograms.continual_histogram.ContinualHistogram`.
        max_per_window, categories_per_row, separator, streams: see `histograms.continual_histogram.ContinualHistogram`.
        neighbouring, restartable, beta, noise, shards: see `histograms.continual_histogram.ContinualHistogram`.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made or applied.

    Source: docs/proofs/live_histograms.md, counters.md; Henzinger, Sricharan, Steiner (2023), Algorithm 9, and
    docs/proofs/anchored.md.
    """

    row_type = CategoryFlag

    def __init__(
        self,
        *,
        epsilon: float,
        thresholds: Thresholds,
        domain: Items,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        method: Literal["auto", "direct_counters", "henzinger_sricharan_steiner"] = "auto",
        unit: Literal["event", "person"] = "event",
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        categories_per_row: int = 1,
        separator: str | None = None,
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
        names = self.categories.domain.texts.to_pylist()
        if isinstance(thresholds, Mapping):
            if set(thresholds) != set(names):
                raise ValueError("thresholds must name every category of the domain, and no other")
            each = tuple(thresholds[name] for name in names)
        else:
            each = (thresholds,) * len(names)
        given: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "beta": beta,
            "thresholds": each,
            **self.shape_with(delta),
        }
        makers: dict[str, Callable[[], CountedFlags | ColumnFlags]] = {
            "direct_counters": partial(CountedFlags, **given),
            "henzinger_sricharan_steiner": partial(ColumnFlags, **given),
        }
        self.method, self._mechanism = choose_method(method, makers, lambda made: made.error(self.windows or MANY))

    @property
    @override
    def mechanism(self) -> CountedFlags | ColumnFlags:
        return self._mechanism

    @property
    @override
    def prediction(self) -> Accuracy:
        windows, beta = self.windows or MANY, self.mechanism.beta
        error = self.error(windows)
        return Accuracy(
            error=error,
            failure_probability=beta,
            claim=f"With probability {1 - beta:g}, in {'all' if self.windows else f'the first {windows:,}'} windows "
            f"of a stream together, the flag of every category whose count is {error:,} above its "
            f"threshold is up, and that of every category whose count is more than {error:,} below it is down "
            f"(method {self.method}).",
            numbers={"error_bound": error, "windows": windows},
        )

    def error(self, window: int) -> int:
        """Return the error bound in window 1, 2, .."""
        return self.mechanism.error(window)

    @override
    def publisher(self, timer_offset: int, noise: NoiseSource) -> beam.DoFn:
        return RaiseFlags(
            steps=self.steps,
            timer_offset=timer_offset,
            categories=self.categories,
            mechanism=self.mechanism,
            noise=noise,
        )


class RaiseFlags(CountedSteps, state="raise_flags"):
    """Per stream: run the mechanism through every window, and publish all flags."""

    counter = "flags_published"

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: PartitionState
    ) -> tuple[PartitionState, Outputs]:
        stream, before = key.decode(), state.step
        counts = self.matrix(first, last, batches)
        state, flags = self.mechanism.run(state, counts, self.noise_of(key, first))
        bounds = [self.mechanism.error(before + 1 + i) for i in range(len(flags))]
        return state, (
            (step, row)
            for step, (raised, bound) in enumerate(zip(flags, bounds, strict=True), first)
            for row in self.rows(stream, step, raised, bound)
        )

    def rows(self, stream: str, step: int, raised: np.ndarray, bound: int) -> Iterator[CategoryFlag]:
        """Publish one window's flags."""
        start, end = self.steps.bounds(step)
        self.published.inc(len(raised))
        for name, threshold, up in zip(self._names, self.mechanism.thresholds, raised.tolist(), strict=True):
            yield CategoryFlag(stream, start, end, name, up, threshold, bound)
