"""Alerts: who meets which rule, how many they are, and tests of these numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import UserCounters
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor, RuleState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.sparse_vector import Answers, Progress, SparseVector
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    Names,
    decode,
    encode,
    first_of_run,
    string_buffers,
)
from privstream.transforms.counts.counted import with_streaks
from privstream.transforms.counts.transform import AtWindowEnds, CountedTransform, KeyedCounts
from privstream.transforms.people.bound import place_in_run
from privstream.transforms.people.bounding import BoundPerWindow, CountHolders, SplitEvents, add_counts
from privstream.transforms.questions.alerts import AlertRule, AlertsParameters, RuleCountsParameters
from privstream.transforms.questions.heavy_hitters_stages import StatusStage
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import STARTED, Alert
from privstream.transforms.stages import ApplyDoFn, PeopleTransform
from privstream.transforms.timing.clock import STEP, WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped
from typing_extensions import override


class ToRules(beam.DoFn):
    """Put rules in place of items: an event counts for each rule that it meets, whose number is that of a list."""

    def __init__(self, rules: tuple[AlertRule, ...], noise: NoiseSource) -> None:
        self.rules, self.noise = rules, noise

    @override
    def setup(self) -> None:
        pairs = [(number, item) for number, rule in enumerate(self.rules) for item in rule.items or ()]
        texts = pa.array([item for _, item in pairs], pa.string())
        items = self.noise.derive("item hash").hash_bytes(*reversed(string_buffers(texts)))
        order = np.argsort(items, kind="stable")
        self._items, self._rules = items[order], np.array([number for number, _ in pairs], np.int64)[order]
        self._for_all = np.array([number for number, rule in enumerate(self.rules) if rule.items is None], np.int64)

    @override
    def process(self, element: KeyedBatch) -> Iterator[KeyedBatch]:
        key, (number, data) = element
        events = decode(EventBatch, data)
        rows, rules = self.meet(events.users, events.items)
        made = encode(EventBatch(events.users[rows], rules.astype(np.uint64), events.times[rows], Names.none()))
        yield key, (number, made)

    def meet(self, people: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct pairs of a person and a rule that one of their events meets, in the order of both.

        Pairs are given by the row of such an event, and the number of the rule, int64.
        """
        first = np.searchsorted(self._items, items, "left")
        times = np.searchsorted(self._items, items, "right") - first
        rows = np.repeat(np.arange(len(items)), times)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        _, each = np.unique(people, return_index=True)
        found = np.concatenate([rows, np.tile(each, len(self._for_all))])
        rules = np.concatenate([self._rules[first[rows] + within], np.repeat(self._for_all, len(each))])
        order = np.lexsort((rules, people[found]))
        found, rules = found[order], rules[order]
        distinct = first_of_run(people[found], rules)
        return found[distinct], rules[distinct]


PARTS = 10**6  # of epsilon, to which what is left is rounded down


class TestCounts(StepFn, state="test_counts"):
    """Test every rule in each window once, and publish the alerts. Misses publish nothing.

    A window without data is tested like any other. A run that has spent its budget tests nothing more.
    """

    __test__ = False  # not a test case

    rules: tuple[AlertRule, ...]
    mechanism: SparseVector
    counter = "alerts_published"
    stopped = Metrics.counter("privstream", "runs_stopped")

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Progress) -> tuple[Progress, list[Alert]]:
        if self.mechanism.halted(state):
            return state, []
        counts = add_counts(batches, len(self.rules))
        signs, thresholds = (np.array([getattr(rule, of) for rule in self.rules]) for of in ("sign", "threshold"))
        noise = self.noise_of(step)
        after, answers = self.mechanism.step(state, signs * counts, noise, thresholds=signs * thresholds)
        alerts = list(self._rows(step, answers, after))
        if alerts and self.mechanism.halted(after):
            alerts[-1] = alerts[-1]._replace(stopped=True)
            self.stopped.inc()
        self.published.inc(len(alerts))
        return after, alerts

    def _rows(self, step: int, answers: Answers, after: Progress) -> Iterator[Alert]:
        """Write the hits as rows, rounded to about a hundredth of their noise."""
        mechanism, (start, end) = self.mechanism, self.steps.bounds(step)
        costs = mechanism.costs(answers)
        left = mechanism.epsilon - mechanism.spent(after) + costs.sum() - np.cumsum(costs)
        columns = (
            np.flatnonzero(answers.hits),
            answers.numbers,
            np.sqrt(mechanism.variances(answers)),
            mechanism.lower_bounds(answers, 1 - OUTSIDE),
            np.maximum(left, 0),
        )
        for number, gap, stddev, least, remaining in zip(*(column.tolist() for column in columns), strict=True):
            rule, digits = self.rules[number], 2 - math.floor(math.log10(stddev))
            bound = rule.threshold + rule.sign * math.floor(least * 10.0**digits) / 10.0**digits
            yield Alert(
                window_start=start,
                window_end=end,
                rule=rule.name,
                threshold=float(rule.threshold),
                estimate=round(rule.threshold + rule.sign * gap, digits),
                lower=max(0.0, bound) if rule.sign > 0 else None,
                upper=bound if rule.sign < 0 else None,
                since=start,
                status=STARTED,
                epsilon_left=math.floor(remaining * PARTS) / PARTS,
            )


def rank_rules(element: Keyed, few: tuple[bool, ...]) -> Keyed:
    """Number the rules that each person meets in a window, those of `few` people first, and send them on.

    All that a person meets in a window is in one batch, so ranks depend on that person alone.
    """
    (step,), held = STEP.unpack_from(element[1]), decode(HolderBatch, element[1][STEP.size :])
    later = ~np.array(few)[held.items.astype(np.int64)]
    ranks = place_in_run(held.users, np.lexsort((held.items, later, held.users))).astype(np.uint16)
    return on_clock(step, encode(replace(held, ranks=ranks)))


class DecideRules(StatusStage, state="decide_rules"):
    """On a public clock: test every rule in every window, and publish those that are met or end."""

    rules: tuple[AlertRule, ...]
    monitor: RuleMonitor
    counter = "alerts_published"
    stopped = Metrics.counter("privstream", "rules_stopped")

    @override
    def initial(self, key: bytes) -> RuleState:
        return RuleState(since=self.monitor.initial_state().since)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: RuleState) -> Stepped:
        given = self.holdings(step, HolderBatch.read(batches), state.counters)
        found, after, charges = self.monitor.decide(state, given, self.noise_of(step))
        self.published.inc(len(found.items))
        self.stopped.inc(int(found.stopped))
        after = replace(after, counters=state.counters.add(charges))
        start, end = self.steps.bounds(step)
        rows = [
            Alert(start, end, rule.name, float(rule.threshold), *number, since, status, stopped=found.stopped)
            for item, number, since, status in self.told(step, found)
            for rule in [self.rules[item]]
        ]
        return Stepped(after, rows, lambda: self.entry(charges, after))

    @override
    def written(self, state: RuleState) -> dict[str, Any]:
        return {"since": state.since, "changes": state.changes}

    @override
    def read(self, counters: UserCounters, fields: dict[str, Any]) -> RuleState:
        return RuleState(counters, fields["since"], fields["changes"])


class RulesOfEvents(PeopleTransform):
    """Splits the events that rules are about, and puts rules in place of their items."""

    rules: tuple[AlertRule, ...]

    @override
    def _splitter(self) -> SplitEvents:
        everybody = any(rule.items is None for rule in self.rules)
        domain = None if everybody else Domain({item for rule in self.rules for item in rule.items or ()})
        return SplitEvents(**self._split_by, domain=domain)

    @override
    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        to_rules = beam.ParDo(ToRules(self.rules, self.noise)).with_output_types(KeyedBatch)
        return cast(PCollection[Any], super()._split(events, apply_dofn) | "ToRules" >> to_rules)


class RuleCounts(RulesOfEvents, RuleCountsParameters, KeyedCounts):
    """Counts of the people who meet each rule."""

    @override
    def _splitter(self) -> SplitEvents:
        _ = self.mechanism.law  # once, at launch; workers receive it
        return super()._splitter()


class SparseVectorAlerts(AlertsParameters, RulesOfEvents, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    counts_type = RuleCounts

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        most = len(self.rules)  # nobody has more
        bound = BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=most, ranked=False)
        return apply_dofn(closed, bound, Keyed)

    @override
    def _publish(self, met: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        last: dict[str, Any] = {"rules": self.rules, "steps": self.steps, "timer_offset": 1, "noise": self.noise}
        if self.monitor is not None:
            few = tuple(rule.sign < 0 for rule in self.rules)
            ranked = met | "RankRules" >> beam.Map(rank_rules, few).with_output_types(Keyed)
            clocked = ranked | "WithClock" >> WithClock(self.steps)
            return apply_dofn(clocked, DecideRules(**last, monitor=self.monitor), Alert)
        counts = met | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
        clocked = counts | "WithClock" >> WithClock(self.steps)
        alerts = apply_dofn(clocked, TestCounts(**last, mechanism=self.sparse_vector), Alert)
        at_ends = AtWindowEnds(self.steps, Alert, timer_offset=2, follow=with_streaks)
        return cast(PCollection[Any], alerts | "AtWindowEnds" >> at_ends)
