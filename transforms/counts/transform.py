"""KeyedCounts: how many people have each item, public or not known before, and what their values add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apache_beam.pvalue import PCollection
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.contributions import (
    CountContributions,
    CountEvents,
    Totals,
    lists_of,
)
from privstream.transforms.counts.keyed_counts import MOST_IN_WINDOW, CountsParameters
from privstream.transforms.counts.publishing import KeyPublisher, in_groups, publish_counts
from privstream.transforms.counts.random_contributions import CountRandomContributions
from privstream.transforms.events.bounding import BoundPerWindow
from privstream.transforms.events.domain import PublicKeys
from privstream.transforms.events.people_transform import PeopleTransform, refuse_unbounded
from privstream.transforms.events.private_transform import ApplyDoFn, Segment
from privstream.transforms.events.split_stages import SplitEvents
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
        if not events.is_bounded and self.selection == "random":
            raise ValueError(
                "selection must not be random when the input is unbounded: it is known at the end of the run, or of a "
                "period, which contributions of a person count"
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
            streams=self.streams,
            limits=self._value_limits,
            groups=self._groups,
        )

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if not self._by_person:
            return apply_dofn(batches, CountEvents(steps=self.steps, timer_offset=1, domain=self.domain), Keyed)
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        bound = BoundPerWindow(
            **common,
            timer_offset=1,
            items_per_step=min(self.mechanism.contributions, MOST_IN_WINDOW),
            selection="random",
            item_shards=1,
            by_people=True,
            in_parts=self.chooses_randomly,
            ranked=False,
            distinct=self.chooses_randomly and self._distinct,
            domain=self.domain,
        )
        count = (CountRandomContributions if self.chooses_randomly else CountContributions)(
            **common,
            timer_offset=2,
            contributions=self.mechanism.contributions,
            per_window=self.mechanism.contributions_per_window,
            spread=self.spread,
            distinct=self._distinct,
            newcomers=self.mechanism.needs_people,
            groups=self._groups,
            key_shards=self.shards,
            limits=self._value_limits,
            domain=self.domain,
            lists=lists_of(self.mechanism),
            totals=self._totals,
        )
        return apply_dofn(apply_dofn(batches, bound, Keyed), count, Keyed)

    @override
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        mechanism = self.mechanism
        if self._to_finish and isinstance(mechanism, FoundKeys):
            mechanism = replace(mechanism, over="window", rising=0, smooths=False)
        publisher = KeyPublisher(
            steps=self.steps,
            mechanism=mechanism,
            noise=self.counting_noise,
            domain=self.domain,
            choose=self._choose,
            at_least=None if self._to_finish else self.at_least,
            everything=not self._by_person or not self._may_leave_out,
            in_columns=self._in_columns,
            always=None if self.public_items is None else PublicKeys(self.public_items, self.noise),
        )
        return publish_counts(
            counted,
            apply_dofn,
            publisher,
            clocked=self._clocked,
            streams=self.streams,
            groups=self._groups,
            key_shards=self.shards,
            timer_offset=3,
            shared=self._shared,
        )

    @property
    def _totals(self) -> Totals | None:
        """How what limits leave out is added up, if it is."""
        if (told := self.mechanism.left_out) is None:
            return None
        return Totals(told.clips, tuple(in_groups(self.streams or ("",), self._groups)), self.shards)
