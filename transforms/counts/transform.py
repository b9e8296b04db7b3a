"""KeyedCounts: how many people have each item, and what their values add up to; and questions that are views of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.contributions import (
    CLOCK,
    CountContributions,
    CountEvents,
    ReleaseDropped,
)
from privstream.transforms.counts.counted import CountedParameters
from privstream.transforms.counts.keyed_counts import MOST_IN_WINDOW, CountsParameters
from privstream.transforms.counts.publishing import PublishCounts
from privstream.transforms.counts.shown import Follow, ShowCounts
from privstream.transforms.people.bounding import BoundPerWindow
from privstream.transforms.reading.domain import PublicKeys
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.clock import WithClock
from typing_extensions import override


class KeyedCounts(CountsParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    then: tuple[type, Follow, str] | None = None
    """What is made of the counts that are shown: the type of its rows, how they are made, and their counter."""

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        *shared, last = super().segments
        return *shared, last._replace(gives=Keyed) if self.ended else last

    @override
    def _splitter(self, **given: Any) -> beam.DoFn:
        return super()._splitter(limits=(0, self.mechanism.max_value or 0), **given)

    @override
    def _limits(self) -> Sequence[beam.DoFn]:
        _ = self.mechanism.law  # once, at launch; workers receive it
        if not self._by_person:
            return (CountEvents(steps=self.steps),)
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        bound, dropped = self.bound, self.dropped_share
        assert bound is not None
        in_window = BoundPerWindow(
            **common,
            items_per_step=min(bound.in_run if dropped is None else bound.in_run + dropped.clip, MOST_IN_WINDOW),
            by_people=True,
            in_parts=bound.sampled,
            ranked=False,
            distinct=bound.sampled and self._distinct,
        )
        count = CountContributions(
            **common,
            timer_offset=1,
            bound=bound,
            distinct=self._distinct,
            key_shards=self.shards,
            limits=(0, self.mechanism.max_value or 0),
            lists=self.mechanism if isinstance(self.mechanism, FoundKeys) and self.mechanism.listed else None,
            dropped=dropped,
        )
        return in_window, count

    @override
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        mechanism = self.mechanism
        if mechanism.windows > 1:  # sums of windows are a view
            mechanism = replace(mechanism, over="window")
        publish = PublishCounts(
            steps=self.steps,
            timer_offset=2,
            mechanism=mechanism,
            noise=self.counting_noise,
            key_shards=self.shards,
            domain=self.domain,
            always=None if self.public_items is None else PublicKeys(self.public_items, self.noise),
            row_type=self.row_type,
            ended=self.ended,
        )
        counts = self._without_sums(counted, apply_dofn)
        tables = apply_dofn(counts | "WithClock" >> WithClock(self.steps, self.item_shards), publish, Keyed)
        if self.ended:
            return tables
        row_type, follow, counter = self.then or (self.row_type, None, self.counter)
        given = {"row_type": row_type, "view": self.shown, "follow": follow, "counter": counter}
        show = ShowCounts(steps=self.steps, timer_offset=3, **given)
        return apply_dofn(tables | "ShowClock" >> WithClock(self.steps), show, row_type)

    def _without_sums(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stage that releases what limits drop, in one process, and return the counts alone."""
        if (mechanism := self.dropped_share) is None:
            return counted
        if self._shared.number == 0:
            sums = counted | "Sums" >> beam.Filter(lambda element: element[0] == CLOCK).with_output_types(Keyed)
            release = ReleaseDropped(
                steps=self.steps,
                timer_offset=2,
                mechanism=mechanism,
                noise=self.counting_noise,
                readings=frozenset(self.shares_read),
            )
            apply_dofn(sums | "SumsWithClock" >> WithClock(self.steps, (CLOCK,)), release, bytes)
        return cast(
            PCollection[Any],
            counted | "Counts" >> beam.Filter(lambda element: element[0] != CLOCK).with_output_types(Keyed),
        )


class CountedTransform(CountedParameters, PeopleTransform):
    """Counts and a view of them, or the stages of another method."""

    counts_type = KeyedCounts

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.counts is None:
            return super().segments
        counts = cast(KeyedCounts, copy.copy(self.counts))
        counts._shared, counts._names = self._shared, self._names
        counts.then = self.row_type, self.follow, self.counter
        return counts.segments
