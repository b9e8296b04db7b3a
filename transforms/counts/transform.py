"""KeyedCounts: how many people have each item, public or not known before, and what their values add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.contributions import (
    CountContributions,
    CountEvents,
    lists_of,
)
from privstream.transforms.counts.dropped import CLOCK, ReleaseDropped, is_counts, is_sums, to_clock
from privstream.transforms.counts.keyed_counts import MOST_IN_WINDOW, CountsParameters
from privstream.transforms.counts.publishing import KeyPublisher, publish_counts
from privstream.transforms.counts.random_contributions import CountRandomContributions
from privstream.transforms.events.bounding import BoundPerWindow
from privstream.transforms.events.domain import PublicKeys
from privstream.transforms.events.people_transform import PeopleTransform, refuse_unbounded
from privstream.transforms.events.private_transform import ApplyDoFn, Segment
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.timing.clocked import WithClock
from typing_extensions import override


class KeyedCounts(CountsParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        *shared, last = super().segments
        return *shared, last._replace(gives=Keyed) if self._in_columns else last

    @override
    def _check(self, events: PCollection[Any]) -> None:
        if self.mechanism.keeps_noise_from_data:
            rule = "delta must be > 0 when the input is unbounded and counts are since the start"
            refuse_unbounded(events, rule)
        if not events.is_bounded and self.domain is not None and self.rising is not None:
            raise ValueError(
                "rising must not be given with a domain when the input is unbounded: counts of a list are smoothed and "
                "compared when a run has ended"
            )

    @override
    def _splitter(self) -> SplitEvents:
        _ = self.mechanism.law  # once, at launch; workers receive it
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=self.domain,
            positions=self.domain is not None,
            limits=self._value_limits,
        )

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if not self._by_person:
            return apply_dofn(batches, CountEvents(steps=self.steps, timer_offset=1, domain=self.domain), Keyed)
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise, "domain": self.domain}
        bound, dropped = self.bound, self.dropped_share
        assert bound is not None
        in_window = BoundPerWindow(
            **common,
            timer_offset=1,
            items_per_step=min(bound.in_run if dropped is None else bound.in_run + dropped.clip, MOST_IN_WINDOW),
            item_shards=1,
            by_people=True,
            in_parts=bound.sampled,
            ranked=False,
            distinct=bound.sampled and self._distinct,
        )
        count = (CountRandomContributions if bound.sampled else CountContributions)(
            **common,
            timer_offset=2,
            bound=bound,
            distinct=self._distinct,
            newcomers=self.mechanism.needs_people,
            key_shards=self.shards,
            limits=self._value_limits,
            lists=lists_of(self.mechanism),
            dropped=dropped,
        )
        return apply_dofn(apply_dofn(batches, in_window, Keyed), count, Keyed)

    @override
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        mechanism = self.mechanism
        finished = self._to_finish and self.finish is not None
        if finished and isinstance(mechanism, FoundKeys):
            mechanism = replace(mechanism, over="window", rising=0, smooths=False)
        publisher = KeyPublisher(
            row_type=self.row_type,
            steps=self.steps,
            mechanism=mechanism,
            noise=self.counting_noise,
            domain=self.domain,
            choose=None if finished else self.chosen,
            at_least=None if finished else self.at_least,
            rising=self.rising is not None and not finished,
            in_columns=self._in_columns,
            always=None if self.public_items is None else PublicKeys(self.public_items, self.noise),
        )
        return publish_counts(
            self._without_sums(counted, apply_dofn),
            apply_dofn,
            publisher,
            key_shards=self.shards,
            timer_offset=3,
            shared=self._shared,
        )

    def _without_sums(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stage that releases what limits drop, in one process, and return the counts alone."""
        if (mechanism := self.dropped_share) is None:
            return counted
        if self._shared.number == 0:
            sums = counted | "Sums" >> beam.Filter(is_sums)
            sums = sums | "SumsOnClock" >> beam.Map(to_clock).with_output_types(Keyed)
            release = ReleaseDropped(
                steps=self.steps,
                timer_offset=3,
                mechanism=mechanism,
                noise=self.counting_noise,
                readings=self.shares_read,
            )
            apply_dofn(sums | "SumsWithClock" >> WithClock(self.steps, (CLOCK,), apart=False), release, bytes)
        return cast(PCollection[Any], counted | "Counts" >> beam.Filter(is_counts).with_output_types(Keyed))
