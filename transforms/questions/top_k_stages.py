"""Top-k by free gaps: of the items of a public list, which are the largest in a window."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import CountHolders, SplitEvents, add_counts, bound_items_of_people
from privstream.transforms.questions.top_k import TopKParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import RankedItem
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


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
        found = self.mechanism.release(add_counts(batches, len(self.domain)), self.noise.derive("step", step))
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


class TopKWithGap(TopKParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=self.domain,
            positions=True,
        )

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        all_windows = self.windows_of_person == self.steps.count
        return bound_items_of_people(
            closed,
            apply_dofn,
            steps=self.steps,
            noise=self.noise,
            items_per_step=self.max_per_window,
            item_shards=1,
            participations=None if all_windows else self.windows_of_person,
            people=self.people,
        )

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        return publish_gaps(self, held, apply_dofn, timer_offset=2)
