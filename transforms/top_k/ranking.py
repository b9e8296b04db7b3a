"""Top-k of a public list: exact counts of people in columns, and the ranking of all items in each window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import EACH, Accuracy
from privstream.mechanisms.free_gap.measured_top_k import MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, InStreams, Keyed, StepKey
from privstream.transforms.events.coverage import together
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.rows import RankedItem
from privstream.transforms.timing.clocked import SingleSteps, WithClock, on_clocks
from privstream.transforms.timing.steps import Steps

SAME_NOISE = (
    "Ranks and estimates have the same noise: items on top are more often too high than too low, and of intervals of "
    "95% of a row by itself fewer hold there. Error bounds are for all of a window together, and hold all the same."
)
"""What is to be said of estimates by the method "counts"."""


@dataclass(frozen=True, kw_only=True)
class RankedList:
    """How `TopKWithGap` answers about a public list: each window is ranked by itself.

    Attributes:
        mechanism: what ranks the items of one window of a stream.
        domain: the list.
        beta: probability with which each accuracy statement may be wrong.
        steps: the windows.
        noise: of the rankings.
        streams: public names of the streams, if there are several.
    """

    mechanism: MeasuredTopK | CountedTopK
    domain: Domain
    beta: float
    steps: Steps
    noise: NoiseSource
    streams: tuple[str, ...] | None

    @property
    def note(self) -> str:
        """What is to be said of estimates: where the noise of a measure does not know the ranks, nothing."""
        return SAME_NOISE if isinstance(self.mechanism, CountedTopK) else ""

    @property
    def scope(self) -> str:
        """Which estimates are within their error bounds at once: those with the noise of the whole list, all."""
        return together(self.streams, each_window=True) if isinstance(self.mechanism, CountedTopK) else EACH

    def calibrate(self) -> None:
        """Find the noise once, at launch; workers receive it."""
        _ = self.mechanism.estimate_variance

    @property
    def prediction(self) -> Accuracy:
        """How right the ranking and the counts are; compared by the ranking."""
        confidence = f"With probability {1 - self.beta:g}"
        error = self.mechanism.selection_error(len(self.domain), self.beta)
        least_bound = self.mechanism.measure_error(self.beta)
        return Accuracy(
            error=error,
            failure_probability=self.beta,
            claim=f"{confidence}, no item that is left out of a window belongs to over {error:,.0f} more people than "
            f"an item that is published. {confidence}, estimates are within their error bounds of at least "
            f"{least_bound:,.0f} people, {self.scope}.",
            numbers={
                "selection_error": error,
                "least_error_bound": least_bound,
                "estimate_stddev": self.mechanism.estimate_variance**0.5,
            },
        )

    def publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int) -> PCollection[Any]:
        """Add the last stages: from who has what to rows."""
        counts = held | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
        streams = self.streams or ("",)
        clocked = counts | "WithClock" >> WithClock(self.steps, streams, together=True)
        rank = RankItems(
            steps=self.steps,
            noise=self.noise,
            timer_offset=timer_offset,
            streams=streams,
            mechanism=self.mechanism,
            domain=self.domain,
            beta=self.beta,
        )
        return apply_dofn(clocked, rank, RankedItem)


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
    """Per stream: at each step rank all items of the domain, and publish those on top. No state outlives a step."""

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
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, streams=streams)
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

    def advance(self, key: bytes, step: int, batches: list[bytes], state: None) -> tuple[None, list[RankedItem]]:
        """Rank the items of one step."""
        totals = np.zeros(len(self.domain), np.int64)
        for items, counts in map(read_counts, batches):
            totals[items.astype(np.int64)] += counts
        stream = key.decode()
        found = self.mechanism.release(totals, self.noise.derive("stream", stream, "step", step), self.beta)
        start, end = self.steps.bounds(step)
        columns = (column.tolist() for column in found)
        rows = [
            RankedItem(stream, start, end, rank, self.domain[item], *numbers)
            for rank, (item, *numbers) in enumerate(zip(*columns, strict=True), start=1)
        ]
        self.published.inc(len(rows))
        return None, rows

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Describe late counts by stream, window and item."""
        items, counts = read_counts(batch)
        self.late.inc(int(counts.sum()))
        for item in items.tolist():
            yield late_letter(self.steps, step, "late counts", self.domain[item], key.decode())
