"""Top-k without a list: items that are found stay found, and those with the largest estimates are ranked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Names
from privstream.transforms.counts.finished import LargestCounts, SmoothFinished
from privstream.transforms.counts.publishing import KeyPublisher, KeysOfStreams
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.by_counts import publish_held
from privstream.transforms.rows import KeyCount, RankedItem
from privstream.transforms.timing.steps import Steps

BY_ESTIMATES = (
    "Estimates are noisy counts smoothed over windows; lower and upper rest on a model in which counts stay near "
    "levels that move. The order is that of estimates: an item that leads, or has just been found, is more often too "
    "high than too low."
)
"""What is to be said of ranks without a list."""
OF_FINISHED = (
    "Estimates are noisy counts smoothed over all windows of the file; lower and upper rest on a model in which counts "
    "stay near levels that move. The order is that of estimates: an item that leads is more often too high than too "
    "low, and so is one in the windows by which it was found."
)
"""The same of a finished file."""

UNRANKED = 0
BY_WINDOW = attrgetter("window_start")
MOST_ITEMS = 10_000
"""Error bounds of a window hold for so many items together, found or not."""


@dataclass(frozen=True, kw_only=True)
class FoundItems:
    """How `TopKWithGap` answers without a list.

    Privacy: ranks, gaps and smoothed estimates are post-processing of what `FoundKeys` publishes.

    Attributes:
        mechanism: counts, of all streams together.
        top: number of items in a window of a stream at most.
        steps: the windows.
        noise: of counts.
        streams: public names of the streams, if there are several.
        shards: of items.
        to_finish: whether `finish` gets the rows: then these are counts of all found items, to be ranked at the end.
    """

    mechanism: FoundKeys
    top: int
    steps: Steps
    noise: NoiseSource
    streams: tuple[str, ...] | None
    shards: int
    to_finish: bool = False

    @property
    def note(self) -> str:
        """What is to be said of estimates."""
        return OF_FINISHED if self.to_finish else BY_ESTIMATES

    @property
    def finish(self) -> FinishedRanks | None:
        """Smooth the counts of all windows both ways, as a table of counts is, and rank the items of each."""
        if not self.to_finish:
            return None
        smooth = SmoothFinished(
            self.steps.size, self.mechanism.stddev(1), steps=self.steps, left_out=self.mechanism.left_out
        )
        return FinishedRanks(smooth, self.top, self.reach)

    @property
    def scope(self) -> str:
        """Which estimates are within their error bounds at once."""
        return f"up to {MOST_ITEMS:,} items of a window together"

    def calibrate(self) -> None:
        """Find noise and thresholds once, at launch; workers receive them."""
        _ = self.mechanism.law

    @cached_property
    def reach(self) -> int:
        """How far noisy counts are off: but with probability beta, those of so many items in a window together."""
        return self.mechanism.error(1, self.mechanism.beta, keys=MOST_ITEMS)

    @property
    def prediction(self) -> Accuracy:
        """How many people must have an item for it to be found, and how far noisy counts are off."""
        counts, found = self.mechanism, self.mechanism.accuracy.numbers
        durations = [int(name.removeprefix("needed_in_")) for name in counts.needed if name.startswith("needed_in_")]
        told = ", or by ".join(
            f"{people:,} people in each of {windows:,} windows" if windows > 1 else f"{people:,} people in one window"
            for windows in durations
            for people in [counts.needed[f"needed_in_{windows}"]]
        )
        surely, confidence = found["detection_threshold"], f"With probability {1 - counts.beta:g}"
        return Accuracy(
            error=float(surely),
            failure_probability=counts.beta,
            claim=f"Items that are found stay found, and no others are ranked. An item is found with an even chance by "
            f"{told}.{counts.list_claim} {confidence}, each of {counts.bounded_keys:,} items is found that at least "
            f"{surely:,} people have in a window. {confidence}, estimates are within their error bounds of at least "
            f"{self.reach:,} people, {self.scope}. The noise of a count has a standard deviation of "
            f"{found['stddev']:.3g}; estimates are smoothed over windows, and mostly closer.",
            numbers={
                **{name: found[name] for name in ("stddev", "threshold", "detection_threshold")},
                **counts.needed,
                "least_error_bound": self.reach,
            },
        )

    def publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int) -> PCollection[Any]:
        """Add the last stages: from who has what, by shard of items, to rows."""
        mechanism = replace(self.mechanism, smooths=False) if self.to_finish else self.mechanism
        given: dict[str, Any] = {"steps": self.steps, "mechanism": mechanism, "noise": self.noise, "domain": None}
        publisher = (
            KeyPublisher(**given)
            if self.to_finish
            else EstimatePublisher(**given, choose=LeadingItems(self.top), reach=self.reach)
        )
        return publish_held(
            held,
            apply_dofn,
            publisher,
            clocked=True,
            streams=self.streams,
            key_shards=self.shards,
            timer_offset=timer_offset,
        )


@dataclass(frozen=True, kw_only=True)
class EstimatePublisher(KeyPublisher):
    """Writes the estimates of all items that are found, to be ranked.

    Attributes:
        reach: how far a noisy count of the window is off at most.
    """

    reach: int

    @property
    def row_type(self) -> type:
        """What rows are."""
        return RankedItem

    def rows(
        self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names, *, back: int = 0
    ) -> Iterator[RankedItem]:
        """Write the items of one step, without ranks and gaps. Each bound reaches as far as the noisy count is off."""
        assert found.smoothed is not None
        start, end = self.steps.bounds(step)
        bounds = error_bounds(self.reach, found.smoothed.estimates, found.counts)
        columns = (found.smoothed.estimates, bounds, found.smoothed.lower, found.smoothed.upper)
        texts, full = self.texts(held, found.keys, names), self._full(held.told, found, back)
        numbers = zip(*(column.tolist() for column in columns), *full, strict=True)
        for stream, item, (*ends, (kept, left_out, *_), number, fewest, most) in zip(*texts, numbers, strict=True):
            about = stream, start, end, UNRANKED, item, None
            yield RankedItem._make((*about, *ends, kept, left_out, number, fewest, most))


def error_bounds(reach: int, estimates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return how far estimates are off at most if noisy counts are off by no more than `reach`, float64, shape (n,)."""
    bounds: np.ndarray = np.round(reach + np.abs(estimates - counts), 1)
    return bounds


@dataclass(frozen=True)
class LeadingItems(LargestCounts):
    """Chooses the items of a window with the largest estimates in each stream, and says how far each is ahead.

    Privacy: post-processing.
    """

    by: tuple[str, ...] = ("estimate",)

    counter: ClassVar[str] = "ranks_published"

    def __call__(self, rows: list[RankedItem]) -> list[RankedItem]:
        """Return the items on top, with their ranks and gaps."""
        streams = groupby(self.among(rows), key=attrgetter("stream"))
        ranked = [row for _, leading in streams for row in self._ranked([*leading])]
        Metrics.counter("privstream", self.counter).inc(len(ranked))
        return ranked

    def _largest(self, rows: list[RankedItem]) -> list[RankedItem]:
        """Return the largest of one stream, and one more: that of the last rank is so far ahead of it."""
        return LargestCounts(self.top + 1, self.by)._largest(rows)

    def _ranked(self, leading: list[RankedItem]) -> Iterator[RankedItem]:
        """Yield the items of one stream that have a rank; the one after them may be missing."""
        for rank, (row, following) in enumerate(zip(leading[: self.top], [*leading[1:], None], strict=False), start=1):
            gap = None if following is None else round(row.estimate - following.estimate)
            yield row._replace(rank=rank, gap=gap)


@dataclass(frozen=True)
class FinishedRanks:
    """Ranks the items of each window of a finished run, by counts smoothed with the windows before and after it.

    An item that is found is ranked in all windows of which a count is published, also in those before it was found.

    Privacy: post-processing of what is published.

    Attributes:
        smooth: smooths the counts.
        top: number of items in a window of a stream at most.
        reach: how far a noisy count of a window is off at most.
    """

    smooth: SmoothFinished
    top: int
    reach: int

    def __call__(self, rows: Sequence[KeyCount]) -> list[RankedItem]:
        """Return the items on top, by window, with their ranks and gaps."""
        found: list[Any] = self.smooth(rows)
        estimates, counts = (np.array([getattr(row, name) for row in found]) for name in ("smoothed", "count"))
        bounds = error_bounds(self.reach, estimates, counts).tolist()
        unranked = (
            RankedItem(
                stream=row.stream,
                window_start=row.window_start,
                window_end=row.window_end,
                rank=UNRANKED,
                item=row.item,
                gap=None,
                estimate=row.smoothed,
                error_bound=bound,
                lower=row.smoothed_lower,
                upper=row.smoothed_upper,
                kept=row.kept,
                left_out=row.left_out,
                full=row.full,
                full_lower=row.full_lower,
                full_upper=row.full_upper,
            )
            for row, bound in zip(found, bounds, strict=True)
        )
        windows = groupby(sorted(unranked, key=BY_WINDOW), key=BY_WINDOW)
        return [row for _, window in windows for row in LeadingItems(self.top)([*window])]
