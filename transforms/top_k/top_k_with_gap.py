"""Top-k with gaps: from events to the items that most people have in each window, and how far each is ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apache_beam.pvalue import PCollection
from privstream.transforms.events.bounding import bound_items_of_people
from privstream.transforms.events.people_transform import PeopleTransform
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.rows import KeyCount
from privstream.transforms.top_k.answers import finished_ranks, publish_found_items, publish_list
from privstream.transforms.top_k.methods import FoundItems
from privstream.transforms.top_k.parameters import TopKParameters
from typing_extensions import override


class TopKWithGap(TopKParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def finish(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        return finished_ranks(self.answer)

    @property
    @override
    def unfinished(self) -> type | None:
        return None if self.finish is None else KeyCount

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=self.domain,
            positions=self.domain is not None,
            streams=self.streams,
            groups=self._groups,
        )

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        return bound_items_of_people(
            batches,
            apply_dofn,
            steps=self.steps,
            noise=self.noise,
            items_per_step=self.items_per_step,
            selection=self.selection,
            item_shards=self.shards if self.domain is None else 1,
            groups=self._groups,
            participations=self._participations,
            streams=self._streams_limit,
            domain=self.domain,
            by_people=isinstance(self.answer, FoundItems) and self.answer.mechanism.listed > 0,
        )

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        self.answer.calibrate()
        if isinstance(self.answer, FoundItems):
            return publish_found_items(self.answer, held, apply_dofn, groups=self._groups, timer_offset=3)
        return publish_list(self.answer, held, apply_dofn, timer_offset=3)
