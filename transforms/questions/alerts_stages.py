"""Alerts: who meets which rule, how many they are, and tests of these numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.sparse_vector import Progress, SparseVector
from privstream.transforms.batches import (
    EventBatch,
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
from privstream.transforms.people.bounding import BoundPerWindow, CountHolders, SplitEvents, add_counts
from privstream.transforms.questions.alerts import AlertRule, AlertsParameters, RuleCountsParameters
from privstream.transforms.questions.heavy_hitters_stages import DecideSteps
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import STARTED, Alert
from privstream.transforms.stages import ApplyDoFn, PeopleTransform
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.step_fn import StepFn
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
        after, answers = self.mechanism.step(state, signs * counts, self.noise_of(step), thresholds=signs * thresholds)
        left = math.floor(max(0.0, self.mechanism.epsilon - self.mechanism.spent(after)) * PARTS) / PARTS
        least = self.mechanism.lower_bounds(answers, 1 - OUTSIDE)
        found = (np.flatnonzero(answers.hits), answers.numbers, least, answers.branches)
        told = zip(*(column.tolist() for column in found), strict=True)
        alerts = [self._row(step, self.rules[number], left, *of_hit) for number, *of_hit in told]
        if alerts and self.mechanism.halted(after):
            alerts[-1] = alerts[-1]._replace(stopped=True)
            self.stopped.inc()
        self.published.inc(len(alerts))
        return after, alerts

    def _row(self, step: int, rule: AlertRule, left: float, gap: float, least: float, branch: int) -> Alert:
        """Return the row of a hit, rounded to about a hundredth of its noise."""
        start, end = self.steps.bounds(step)
        digits = 2 - math.floor(math.log10(math.sqrt(self.mechanism.gap_variance(branch))))
        bound = rule.threshold + rule.sign * math.floor(least * 10.0**digits) / 10.0**digits
        return Alert(
            window_start=start,
            window_end=end,
            rule=rule.name,
            threshold=float(rule.threshold),
            estimate=round(rule.threshold + rule.sign * gap, digits),
            lower=max(0.0, bound) if rule.sign > 0 else None,
            upper=bound if rule.sign < 0 else None,
            since=start,
            status=STARTED,
            epsilon_left=left,
        )


class DecideRules(DecideSteps, state="decide_rules"):
    """Which rules many people meet."""

    counter = "alerts_published"

    @override
    def row(self, step: int, what: AlertRule, *told: Any) -> Alert:
        return Alert(*self.steps.bounds(step), what.name, float(what.threshold), *told)


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
        bound = BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=most, ranked=self.monitor is not None)
        return apply_dofn(closed, bound, Keyed)

    @override
    def _publish(self, met: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        last: dict[str, Any] = {"steps": self.steps, "timer_offset": 1, "noise": self.noise}
        if self.monitor is not None:
            decide = DecideRules(**last, monitor=self.monitor, listed=self.rules)
            return apply_dofn(met | "WithClock" >> WithClock(self.steps), decide, Alert)
        counts = met | "CountHolders" >> beam.ParDo(CountHolders()).with_output_types(Keyed)
        clocked = counts | "WithClock" >> WithClock(self.steps)
        alerts = apply_dofn(clocked, TestCounts(**last, rules=self.rules, mechanism=self.sparse_vector), Alert)
        at_ends = AtWindowEnds(self.steps, Alert, timer_offset=2, follow=with_streaks)
        return cast(PCollection[Any], alerts | "AtWindowEnds" >> at_ends)
