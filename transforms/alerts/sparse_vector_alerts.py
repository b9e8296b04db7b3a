"""Alerts: in each window, which public rules about numbers of people are met, under one guarantee for all windows."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.transforms.alerts.count_tests import CompareCounts, SmoothAlerts
from privstream.transforms.alerts.methods import CountedAlerts, StatusAlerts
from privstream.transforms.alerts.parameters import SparseVectorParameters
from privstream.transforms.alerts.status_tests import DecideRules, rank_rules
from privstream.transforms.alerts.threshold_tests import CountMeeting, MeetRules, TestCounts
from privstream.transforms.batches import Keyed
from privstream.transforms.events.bounding import BoundAcrossWindows
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.people_transform import PeopleTransform
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.rows import Alert
from privstream.transforms.timing.clocked import WithClock
from typing_extensions import override


class SparseVectorAlerts(SparseVectorParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def finish(self) -> SmoothAlerts | None:
        counted = self.counted
        return (
            SmoothAlerts(counted, self.steps) if isinstance(counted, CountedAlerts) and counted.smoothed_over else None
        )

    @override
    def _splitter(self) -> SplitEvents:
        plan = self.plan
        items = {item for rule in plan.rules for item in rule.items or ()}
        everybody = any(rule.items is None for rule in plan.rules)
        return SplitEvents(
            steps=self.steps,
            noise=self.noise,
            shards=self.shards,
            domain=None if everybody else Domain(items),
            streams=self.streams,
            groups=self._groups,
        )

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        plan = self.plan
        meet = MeetRules(rules=plan.rules, steps=self.steps, timer_offset=1, noise=self.noise, by_people=plan.by_stream)
        met = apply_dofn(batches, meet, Keyed)
        if plan.by_stream:
            limit = BoundAcrossWindows(
                steps=self.steps,
                noise=self.noise,
                timer_offset=2,
                item_shards=1,
                groups=self._groups,
                streams=self.streams_per_person,
            )
            met = apply_dofn(met, limit, Keyed)
        return met

    @override
    def _publish(self, met: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        plan = self.plan
        if isinstance(self.counted, StatusAlerts):
            few = tuple(rule.sign < 0 for rule in plan.rules)
            ranked = met | "RankRules" >> beam.FlatMap(rank_rules, few).with_output_types(Keyed)
            clocked = ranked | "WithClock" >> WithClock(self.steps, plan.streams, together=True)
            decide = DecideRules(method=self.counted, steps=self.steps, timer_offset=3, noise=self.noise)
            return apply_dofn(clocked, decide, Alert)
        count = CountMeeting(len(plan.rules), by_stream=plan.by_stream)
        counts = met | "CountMeeting" >> beam.ParDo(count).with_output_types(Keyed)
        clocked = counts | "WithClock" >> WithClock(self.steps, plan.keys, together=plan.by_stream)
        last: dict[str, Any] = {"steps": self.steps, "timer_offset": 3, "noise": self.noise}
        if self.counted is not None:
            return apply_dofn(clocked, CompareCounts(**last, method=self.counted), Alert)
        return apply_dofn(clocked, TestCounts(**last, plan=plan), Alert)
