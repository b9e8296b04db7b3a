"""Top-k by free gaps: of the items of a public list, which are the largest in a window."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import (
    BoundAcrossWindows,
    BoundPerWindow,
    CountHolders,
    SplitEvents,
    add_counts,
)
from privstream.transforms.questions.top_k import TopKParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import RankedItem
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override


class RankItems(StepFn, state="rank_items"):
    """At each step rank all items of the domain, and publish those on top. No state outlives a step."""

    mechanism: MeasuredTopK
    domain: Domain
    counter = "ranks_published"

    @override
    def initial(self, key: bytes) -> None:
        return None

    @override
    def encode(self, state: None) -> list[bytes]:
        return []

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: None) -> tuple[None, list[Any]]:
        found = self.mechanism.release(add_counts(batches, len(self.domain)), self.noise.derive("step", step))
        start, end = self.steps.bounds(step)
        columns = (found.indices, found.gaps.astype(float), found.estimates, found.lower, found.upper)
        rows = [
            RankedItem(start, end, rank, self.domain[item], *numbers)
            for rank, (item, *numbers) in enumerate(zip(*(column.tolist() for column in columns), strict=True), start=1)
        ]
        self.published.inc(len(rows))
        return None, rows


class TopKWithGap(TopKParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by, domain=self.domain, positions=True)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        limits = self.windows_of_person < (self.steps.count or 0)
        per_window = BoundPerWindow(
            steps=self.steps, noise=self.noise, items_per_step=self.max_per_window, by_people=limits
        )
        held = apply_dofn(closed, per_window, Keyed)
        if not limits:
            return held
        limit = BoundAcrossWindows(steps=self.steps, timer_offset=1, participations=self.windows_of_person)
        return apply_dofn(held | "PeopleClocks" >> WithClock(self.steps, self.people), limit, Keyed)

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        _ = self.mechanism.estimate_variance  # once, at launch; workers receive it
        counts = held | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
        given = {"noise": self.ranking_noise, "mechanism": self.mechanism, "domain": self.domain}
        rank = RankItems(steps=self.steps, timer_offset=2, **given)
        return apply_dofn(counts | "WithClock" >> WithClock(self.steps), rank, RankedItem)
