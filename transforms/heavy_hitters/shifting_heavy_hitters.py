"""Shifting heavy hitters: from events to the items that many people have in each window."""

from __future__ import annotations

from typing import Any

from apache_beam.pvalue import PCollection
from privstream.transforms.counted_transform import CountedTransform
from privstream.transforms.heavy_hitters.by_monitor import publish_by_monitor
from privstream.transforms.heavy_hitters.by_status import publish_by_status
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters
from privstream.transforms.people.bounding import bound_items_of_people
from privstream.transforms.people.split_stages import SplitEvents
from privstream.transforms.stages import ApplyDoFn
from typing_extensions import override


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=self.domain,
            positions=self.tested_domain is not None,
        )

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        return bound_items_of_people(
            closed,
            apply_dofn,
            steps=self.steps,
            noise=self.noise,
            items_per_step=self.max_per_window,
            item_shards=self.shards,
            participations=None,
            people=self.people,
        )

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        publish = publish_by_status if self.method == "status" else publish_by_monitor
        return publish(self, held, apply_dofn, shards=self.item_shards)
