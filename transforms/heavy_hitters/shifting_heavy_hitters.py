"""Shifting heavy hitters: from events to the items that many people have in each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apache_beam.pvalue import PCollection
from privstream.transforms.events.bounding import bound_items_of_people
from privstream.transforms.events.people_transform import PeopleTransform
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.heavy_hitters.by_counts import finished_hitters, publish_by_counts
from privstream.transforms.heavy_hitters.by_monitor import publish_by_monitor, with_empty_steps
from privstream.transforms.heavy_hitters.by_status import publish_by_status
from privstream.transforms.heavy_hitters.methods import ByCounts, ByMonitor, ByStatus
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters
from typing_extensions import override


class ShiftingHeavyHitters(HeavyHittersParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def finish(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        return finished_hitters(self.answer) if isinstance(self.answer, ByCounts) else None

    @override
    def _check(self, events: PCollection[Any]) -> None:
        if self.streams is not None and self.streams_per_person is None:
            raise ValueError("streams_per_person must be given with streams")

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=self.domain,
            positions=self._tested_domain is not None,
            streams=self.streams,
            groups=self._groups,
        )

    @override
    def _complete(self, batches: PCollection[Any]) -> PCollection[Any]:
        return with_empty_steps(self.answer, batches, self._groups) if isinstance(self.answer, ByMonitor) else batches

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        return bound_items_of_people(
            batches,
            apply_dofn,
            steps=self.steps,
            noise=self.noise,
            items_per_step=self.items_per_step,
            selection=self.selection,
            item_shards=self.shards,
            groups=self._groups,
            participations=self._participations,
            streams=self.streams_per_person,
            domain=self._tested_domain,
            by_people=isinstance(self.answer, ByCounts) and self.answer.lists,
        )

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if isinstance(self.answer, ByCounts):
            return publish_by_counts(self.answer, held, apply_dofn, groups=self._groups, timer_offset=3)
        if isinstance(self.answer, ByStatus):
            return publish_by_status(self.answer, held, apply_dofn, timer_offset=3)
        return publish_by_monitor(self.answer, held, apply_dofn, timer_offset=3)
