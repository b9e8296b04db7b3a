"""What transforms on counts of public categories share: the stages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Keyed
from privstream.transforms.events.event_fields import UNREAD
from privstream.transforms.events.people_transform import PeopleTransform, refuse_unbounded
from privstream.transforms.events.private_transform import ApplyDoFn, Segment
from privstream.transforms.histograms.categories import (
    BoundCodes,
    BoundRows,
    CountedSteps,
    CountEvents,
    LimitRows,
    SplitRows,
)
from privstream.transforms.histograms.parameters import Categories, CategoryParameters
from privstream.transforms.timing.clocked import WithClock
from typing_extensions import override


class CountedCategories(PeopleTransform):
    """Events with public categories in; something private about their counts, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    row_type: type
    last_stage: type[CountedSteps]
    categories: Categories
    mechanism: Any
    noise: NoiseSource
    shards: int

    @property
    def _by_person(self) -> bool:
        return self.event_fields.user != UNREAD

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self._by_person:
            return super().segments
        return Segment(self._count, Keyed), Segment(self._publish)

    @property
    def _common(self) -> dict[str, Any]:
        """What all stages are given."""
        return {"steps": self.steps, "categories": self.categories}

    @property
    @abstractmethod
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""

    @abstractmethod
    def _limits(self) -> tuple[BoundCodes, int]:
        """Return what bounds what counts of a person in a window, and how much counts in the run."""

    @abstractmethod
    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the counts depend on, beside the events."""

    def publisher(self, timer_offset: int, noise: NoiseSource, **asked: Any) -> CountedSteps:
        """Return the last stage."""
        given = self._common | {"mechanism": self.mechanism, "noise": noise}
        return self.last_stage(**given, timer_offset=timer_offset, **asked)

    def _count(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from events to counts of them."""
        return apply_dofn(self._gather(events, apply_dofn), CountEvents(**self._common), Keyed)

    @override
    def _splitter(self) -> SplitRows:
        return SplitRows(**self._common, noise=self._people, shards=self.shards)

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        in_window, in_run = self._limits()
        limit = LimitRows(**self._common, timer_offset=2, limit=in_run)
        return apply_dofn(apply_dofn(batches, in_window, Keyed), limit, Keyed)

    @override
    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        streams, last = self.categories.streams, 3 if self._by_person else 1
        clocked = counts | "WithClock" >> WithClock(self.steps, streams, together=True, apart=not self._by_person)
        return apply_dofn(clocked, self.publisher(last, self._noise()), self.row_type)


class CategoryTransform(CategoryParameters, CountedCategories):
    """Counts of categories since the start."""

    @override
    def _check(self, events: PCollection[Any]) -> None:
        if self.mechanism.delta == 0 and not self.restartable:
            rule = "restartable must be true when the input is unbounded and delta is 0"
            refuse_unbounded(events, rule, otherwise="else")

    @property
    @override
    def _people(self) -> NoiseSource:
        return self.noise.derive("people in histograms")

    @override
    def _limits(self) -> tuple[BoundRows, int]:
        in_run = cast(int, self.max_contributions)
        limit = min(in_run, self.max_per_window or in_run)
        return BoundRows(**self._common, timer_offset=1, limit=limit), in_run

    @override
    def _noise(self) -> NoiseSource:
        unit = "user" if self.unit == "person" else self.unit  # as it was called in the first version
        limits = f"{unit} {self.max_contributions} {self.max_per_window}"
        if self.unit == "person" and self.categories.streams != ("",):
            limits += f" {sorted(self.categories.streams)}"  # which of a person's rows count depends on all streams
        rows = f"{self.categories.domain.digest} {self.categories.limit} {self.categories.separator}"
        return self.noise.derive(type(self).__name__, self.steps.label, limits, rows)
