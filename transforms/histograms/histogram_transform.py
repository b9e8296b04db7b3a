"""What transforms on counts of public categories share: the stages."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Keyed
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.histograms.categories import BoundRows, CountEvents, LimitRows, SplitRows
from privstream.transforms.histograms.parameters import CategoryParameters
from privstream.transforms.timing.clocked import WithClock
from privstream.transforms.timing.on_time import KeyedBatch, apart_in_time
from typing_extensions import override


class CategoryTransform(CategoryParameters, SharedTransform):
    """Events with public categories in; something private about their counts, after every window, out."""

    row_type: type

    @abstractmethod
    def publisher(self, timer_offset: int, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.unit == "event":
            return Segment(self._count_events, Keyed), Segment(partial(self._publish, last=1))
        people = Segment(self._split, KeyedBatch), Segment(self._count_people, Keyed)
        return *people, Segment(partial(self._publish, last=3))

    def _check(self, events: PCollection[Any]) -> None:
        """Refuse noise that does not depend on the data where others could be seen with it."""
        if not events.is_bounded and self.mechanism.delta == 0 and not self.restartable:
            raise ValueError(
                "restartable must be true when the input is unbounded and delta is 0: else noise does not depend on "
                "the data, and a job that is restored and sees other events in time would show the exact difference"
            )

    @property
    def _common(self) -> dict[str, Any]:
        """What all stages are given."""
        return {"steps": self.steps, "categories": self.categories}

    def _count_events(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to counts of them."""
        self._check(events)
        return apply_dofn(gather(events, apply_dofn, self.event_fields), CountEvents(**self._common), Keyed)

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to batches of them by window and shard of people."""
        self._check(events)
        split = SplitRows(**self._common, noise=self._source.derive("people in histograms"), shards=self.shards)
        batches = apply_dofn(gather(events, apply_dofn, self.event_fields), split, KeyedBatch)
        return apart_in_time(batches, self.steps)

    def _count_people(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from batches of events to counts of what counts of them."""
        limit = cast(int, self.max_contributions)
        bound = BoundRows(**self._common, timer_offset=1, limit=min(limit, self.max_per_window or limit))
        bounded = apply_dofn(batches, bound, Keyed)
        return apply_dofn(bounded, LimitRows(**self._common, timer_offset=2, limit=limit), Keyed)

    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn, *, last: int) -> PCollection[Any]:
        """Build the last stage, which has a number."""
        clocked = counts | "WithClock" >> WithClock(
            self.steps, self.categories.streams, together=True, apart=self.unit == "event"
        )
        return apply_dofn(clocked, self.publisher(last, self._noise()), self.row_type)

    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the counts depend on, beside the events."""
        unit = "user" if self.unit == "person" else self.unit  # as it was called in the first version
        limits = f"{unit} {self.max_contributions} {self.max_per_window}"
        if self.unit == "person" and self.categories.streams != ("",):
            limits += f" {sorted(self.categories.streams)}"  # which of a person's rows count depends on all streams
        rows = f"{self.categories.domain.digest} {self.categories.limit} {self.categories.separator}"
        return self._source.derive(type(self).__name__, self.steps.label, limits, rows)
