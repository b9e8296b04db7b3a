"""What questions about people in windows share: events are split, each person is bounded, and rows are published."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.transforms.batches import Keyed, KeyedBatch
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.timing.on_time import apart_in_time
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class PeopleTransform(SharedTransform):
    """Events in; they are split, bounded and published: a segment each."""

    steps: Steps

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        return Segment(self._split, KeyedBatch), Segment(self._bound, Keyed), Segment(self._publish)

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to batches of them by window and shard of people."""
        batches = apply_dofn(self._gather(events, apply_dofn), self._splitter(), KeyedBatch)
        return apart_in_time(self._complete(batches), self.steps)

    def _gather(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to checked batches of columns."""
        self._check(events)
        return gather(events, apply_dofn, self.event_fields)

    def _check(self, events: PCollection[Any]) -> None:
        """Refuse input about which nothing can be promised."""

    @abstractmethod
    def _splitter(self) -> beam.DoFn:
        """Return the stage from checked batches to parts of them by window and shard of people."""

    def _complete(self, batches: PCollection[Any]) -> PCollection[Any]:
        """Add empty batches of windows without events, where they are needed."""
        return batches

    @abstractmethod
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from batches of events to what counts of them within the limits of each person."""

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
