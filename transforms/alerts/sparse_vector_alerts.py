"""Alerts: in each window, which public rules about numbers of people are met, under one guarantee for all windows."""

from __future__ import annotations

from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.alerts.parameters import AlertsParameters, RuleCountsParameters
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.alerts.status_tests import DecideRules, rank_rules
from privstream.transforms.alerts.threshold_tests import MeetRules, TestCounts, ToRules
from privstream.transforms.batches import Keyed, KeyedBatch
from privstream.transforms.counted_transform import CountedTransform
from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.holders import CountHolders
from privstream.transforms.people.split_stages import SplitEvents
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import Alert
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


def split_for(rules: tuple[AlertRule, ...], steps: Steps, noise: NoiseSource, shards: int) -> SplitEvents:
    """Return the stage that splits the events that rules are about."""
    everybody = any(rule.items is None for rule in rules)
    domain = None if everybody else Domain({item for rule in rules for item in rule.items or ()})
    return SplitEvents(steps=steps, noise=noise, shards=shards, domain=domain)


class RuleCounts(RuleCountsParameters, KeyedCounts):
    """Counts of the people who meet each rule."""

    @override
    def _splitter(self) -> SplitEvents:
        _ = self.mechanism.law  # once, at launch; workers receive it
        return split_for(self.rules, self.steps, self.noise, self.shards)

    @override
    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        to_rules = beam.ParDo(ToRules(self.rules, self.noise)).with_output_types(KeyedBatch)
        return cast(PCollection[Any], super()._split(events, apply_dofn) | "ToRules" >> to_rules)


class SparseVectorAlerts(AlertsParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    counts_type = RuleCounts

    @override
    def _splitter(self) -> SplitEvents:
        return split_for(self.rules, self.steps, self.noise, self.shards)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        meet = MeetRules(rules=self.rules, steps=self.steps, noise=self.noise)
        return apply_dofn(closed, meet, Keyed)

    @override
    def _publish(self, met: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        last: dict[str, Any] = {"rules": self.rules, "steps": self.steps, "timer_offset": 1, "noise": self.noise}
        if self.monitor is not None:
            few = tuple(rule.sign < 0 for rule in self.rules)
            ranked = met | "RankRules" >> beam.Map(rank_rules, few).with_output_types(Keyed)
            clocked = ranked | "WithClock" >> WithClock(self.steps)
            return apply_dofn(clocked, DecideRules(**last, monitor=self.monitor), Alert)
        assert self.sparse_vector is not None
        counts = met | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
        clocked = counts | "WithClock" >> WithClock(self.steps)
        return apply_dofn(clocked, TestCounts(**last, mechanism=self.sparse_vector), Alert)
