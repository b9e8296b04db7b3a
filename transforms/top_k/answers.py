"""How top-k is answered: of a public list by its ranks, without a list by items that stay found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.free_gap.measured_top_k import MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, InStreams, Keyed, Names, StepKey
from privstream.transforms.counts.finished import LargestCounts, SmoothFinished
from privstream.transforms.counts.publishing import KeyPublisher, KeysOfStreams
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.by_counts import publish_held
from privstream.transforms.rows import KeyCount, RankedItem
from privstream.transforms.timing.clocked import SingleSteps, WithClock, on_clocks
from privstream.transforms.timing.steps import Steps
from privstream.transforms.top_k.methods import FoundItems, RankedList


class CountHolders(beam.DoFn):
    """Count the people with each item in a batch: each person is in one batch of a step, with an item at most once."""

    def __init__(self) -> None:
        self.counted = Metrics.counter("privstream", "holdings_counted")

    def process(self, element: Keyed) -> Iterator[Keyed]:
        """Count one batch."""
        key, data = element
        step, holders = StepKey.from_bytes(key).step, InStreams.from_bytes(HolderBatch, data)
        self.counted.inc(len(holders.batch.items))
        found = []
        for stream, held in holders.each():
            items, counts = np.unique(held.items, return_counts=True)
            found.append((stream, step, pack("counts", 1, {"items": items, "counts": counts})))
        yield from on_clocks(found)


def read_counts(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of items (uint64) and how many people have them (int64)."""
    fields: dict[str, Any] = unpack("counts", 1, data)
    return fields["items"], fields["counts"]


class RankItems(SingleSteps, state="rank_items"):
    """Per stream: at each step rank all items of the domain, and publish those on top. No state outlives a step.

    With `all_counts` publish the noisy counts of all, which are smoothed and ranked when the run has ended.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        streams: tuple[str, ...],
        mechanism: MeasuredTopK | CountedTopK,
        domain: Domain,
        beta: float,
        all_counts: bool = False,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, streams=streams)
        self.all_counts = all_counts
        self.noise = noise
        self.mechanism = mechanism
        self.domain = domain
        self.beta = beta
        self.published = Metrics.counter("privstream", "ranks_published")

    def initial(self, key: bytes) -> None:
        """Remember nothing."""

    def snapshot(self, state: None) -> bytes:
        """Encode nothing."""
        return b""

    def restore(self, data: bytes) -> None:
        """Decode nothing."""

    def advance(self, key: bytes, step: int, batches: list[bytes], state: None) -> tuple[None, list[Any]]:
        """Rank the items of one step, or give them their noise."""
        totals = np.zeros(len(self.domain), np.int64)
        for items, counts in map(read_counts, batches):
            totals[items.astype(np.int64)] += counts
        stream = key.decode()
        noise, (start, end) = self.noise.derive("stream", stream, "step", step), self.steps.bounds(step)
        if self.all_counts and isinstance(self.mechanism, CountedTopK):
            return None, self._counts(stream, start, end, self.mechanism.count(totals, noise))
        found = self.mechanism.release(totals, noise, self.beta)
        columns = (column.tolist() for column in found)
        rows = [
            RankedItem(stream, start, end, rank, self.domain[item], *numbers)
            for rank, (item, *numbers) in enumerate(zip(*columns, strict=True), start=1)
        ]
        self.published.inc(len(rows))
        return None, rows

    def _counts(self, stream: str, start: Timestamp, end: Timestamp, found: KeyedRows) -> list[KeyCount]:
        """Return the noisy counts of one step."""
        (margins,) = found.of_each("count_margin")
        ends = (np.maximum(0.0, found.counts + side * margins) for side in (-1, 1))
        counts, stddevs = found.of_each("counts", "count_stddev")
        numbers = zip(self.domain.texts.to_pylist(), *(c.tolist() for c in (counts, stddevs, *ends)), strict=True)
        return [
            KeyCount(stream, start, end, item, count, stddev, None, lower, upper, end, False)
            for item, count, stddev, lower, upper in numbers
        ]

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Describe late counts by stream, window and item."""
        items, counts = read_counts(batch)
        self.late.inc(int(counts.sum()))
        for item in items.tolist():
            yield late_letter(self.steps, step, "late counts", self.domain[item], key.decode())


UNRANKED = 0
BY_WINDOW = attrgetter("window_start")


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
        texts = (column.to_pylist() for column in self.texts(held, found.keys, names))
        for stream, item, *ends in zip(*texts, *(column.tolist() for column in columns), strict=True):
            yield RankedItem._make((stream, start, end, UNRANKED, item, None, *ends))


def error_bounds(reach: float, estimates: np.ndarray, counts: np.ndarray) -> np.ndarray:
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
    reach: float

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
                lower=row.lower,
                upper=row.upper,
            )
            for row, bound in zip(found, bounds, strict=True)
        )
        windows = groupby(sorted(unranked, key=BY_WINDOW), key=BY_WINDOW)
        return [row for _, window in windows for row in LeadingItems(self.top)([*window])]


def publish_list(
    answer: RankedList, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what to rows."""
    counts = held | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
    streams = answer.streams or ("",)
    clocked = counts | "WithClock" >> WithClock(answer.steps, streams, together=True)
    rank = RankItems(
        steps=answer.steps,
        noise=answer.noise,
        timer_offset=timer_offset,
        streams=streams,
        mechanism=answer.mechanism,
        domain=answer.domain,
        beta=answer.beta,
        all_counts=answer.to_finish,
    )
    return apply_dofn(clocked, rank, KeyCount if answer.to_finish else RankedItem)


def finished_ranks(answer: RankedList | FoundItems) -> FinishedRanks | None:
    """Smooth the counts of all windows both ways, as a table of counts is, and rank the items of each."""
    if not answer.to_finish:
        return None
    if isinstance(answer, FoundItems):
        counts = answer.mechanism
        smooth = SmoothFinished(answer.steps.size, counts.stddev(1), steps=answer.steps)
        return FinishedRanks(smooth, answer.top, answer.reach)
    ranked = answer.mechanism
    assert isinstance(ranked, CountedTopK)
    stddev = ranked.estimate_variance**0.5
    smooth = SmoothFinished(answer.steps.size, stddev, steps=answer.steps)
    return FinishedRanks(smooth, ranked.top, ranked.measure_error(answer.beta))


def publish_found_items(
    answer: FoundItems, held: PCollection[Any], apply_dofn: ApplyDoFn, *, groups: int, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    mechanism = replace(answer.mechanism, smooths=False) if answer.to_finish else answer.mechanism
    given: dict[str, Any] = {"steps": answer.steps, "mechanism": mechanism, "noise": answer.noise, "domain": None}
    given["always"] = answer.always
    publisher = (
        KeyPublisher(**given)
        if answer.to_finish
        else EstimatePublisher(**given, choose=LeadingItems(answer.top), reach=answer.reach)
    )
    return publish_held(
        held,
        apply_dofn,
        publisher,
        clocked=True,
        streams=answer.streams,
        groups=groups,
        key_shards=answer.shards,
        timer_offset=timer_offset,
    )
