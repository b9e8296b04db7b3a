"""What questions about people in windows share: events are split, each person is bounded, and rows are published."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.transforms.batches import Keyed, KeyedBatch, shard_key
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.events.split import people_key
from privstream.transforms.timing.closing import CloseWindows
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class PeopleTransform(SharedTransform):
    """Events in; they are split, bounded and published: a segment each."""

    steps: Steps

    shards: int

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        return Segment(self._split, KeyedBatch), Segment(self._closed, Keyed), Segment(self._publish)

    @property
    def people(self) -> tuple[bytes, ...]:
        """The keys of the shards of people that are handled here."""
        return tuple(map(people_key, self._shared.of(self.shards)))

    @property
    def item_shards(self) -> tuple[bytes, ...]:
        """The keys of the shards of items that are handled here."""
        return tuple(map(shard_key, self._shared.of(self.shards)))

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to batches of them by window and shard of people."""
        return apply_dofn(self._gather(events, apply_dofn), self._splitter(), KeyedBatch)

    def _closed(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Close the windows, and add the stages that bound people."""
        return self._bound(batches | "CloseWindows" >> CloseWindows(self.steps), apply_dofn)

    def _gather(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to checked batches of columns."""
        self._check(events)
        return gather(events, apply_dofn, self.event_fields)

    def _check(self, events: PCollection[Any]) -> None:
        """Refuse input about which nothing can be promised."""

    @abstractmethod
    def _splitter(self) -> beam.DoFn:
        """Return the stage from checked batches to parts of them by window and shard of people."""

    @abstractmethod
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from windows of events, closed, to what counts of them within the limits of each person."""

    @abstractmethod
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from what counts to rows."""


def refuse_unbounded(events: PCollection[Any], rule: str, otherwise: str = "with delta = 0") -> None:
    """Refuse input without an end, for which a rule must hold: otherwise noise does not depend on the data."""
    if not events.is_bounded:
        raise ValueError(
            f"{rule}: {otherwise} noise does not depend on the data, and a job that is restored and sees other events "
            "in time would show the exact difference"
        )
