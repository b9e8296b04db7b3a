"""Top-k by free gaps: of the items of a public list, which are the largest in a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, Keyed, decode
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import RankedItem
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import STEP, WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import Steps
from privstream.transforms.top_k.parameters import TopKParameters


class CountHolders(beam.DoFn):
    """Count the people with each item in a batch: each person is in one batch of a step, with an item at most once."""

    def __init__(self) -> None:
        self.counted = Metrics.counter("privstream", "holdings_counted")

    def process(self, element: Keyed) -> Iterator[Keyed]:
        """Count one batch."""
        (step,), data = STEP.unpack_from(element[1]), element[1][STEP.size :]
        held = decode(HolderBatch, data)
        self.counted.inc(len(held.items))
        items, counts = np.unique(held.items, return_counts=True)
        yield on_clock(step, pack("counts", 1, {"items": items, "counts": counts}))


def read_counts(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of items (uint64) and how many people have them (int64)."""
    fields: dict[str, Any] = unpack("counts", 1, data)
    return fields["items"], fields["counts"]


class RankItems(StepFn, state="rank_items"):
    """At each step rank all items of the domain, and publish those on top. No state outlives a step."""

    def __init__(
        self, *, steps: Steps, noise: NoiseSource, timer_offset: int, mechanism: MeasuredTopK, domain: Domain
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.noise = noise
        self.mechanism = mechanism
        self.domain = domain
        self.published = Metrics.counter("privstream", "ranks_published")

    def initial(self, key: bytes) -> None:
        """Remember nothing."""

    def snapshot(self, state: None) -> bytes:
        """Encode nothing."""
        return b""

    def restore(self, data: bytes) -> None:
        """Decode nothing."""

    def step(self, key: bytes, step: int, batches: list[bytes], state: None) -> tuple[None, list[Any]]:
        """Rank the items of one step."""
        totals = np.zeros(len(self.domain), np.int64)
        for items, counts in map(read_counts, batches):
            totals[items.astype(np.int64)] += counts
        found = self.mechanism.release(totals, self.noise.derive("step", step))
        start, end = self.steps.bounds(step)
        columns = (found.indices, found.gaps.astype(float), found.estimates, found.lower, found.upper)
        rows = [
            RankedItem(start, end, rank, self.domain[item], *numbers)
            for rank, (item, *numbers) in enumerate(zip(*(column.tolist() for column in columns), strict=True), start=1)
        ]
        self.published.inc(len(rows))
        return None, rows


def publish_gaps(
    asked: TopKParameters, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what to rows."""
    _ = asked.mechanism.estimate_variance  # once, at launch; workers receive it
    assert asked.domain is not None
    counts = held | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
    clocked = counts | "WithClock" >> WithClock(asked.steps)
    rank = RankItems(
        steps=asked.steps,
        noise=asked.ranking_noise,
        timer_offset=timer_offset,
        mechanism=asked.mechanism,
        domain=asked.domain,
    )
    return apply_dofn(clocked, rank, RankedItem)
