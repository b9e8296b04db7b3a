"""Top-k with gaps: from events to the items that most people have in each window, and how far each is ahead."""

from __future__ import annotations

from typing import Any

from apache_beam.pvalue import PCollection
from privstream.transforms.counted_transform import CountedTransform
from privstream.transforms.people.bounding import bound_items_of_people
from privstream.transforms.people.split_stages import SplitEvents
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.top_k.gaps import publish_gaps
from privstream.transforms.top_k.parameters import TopKParameters
from typing_extensions import override


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
