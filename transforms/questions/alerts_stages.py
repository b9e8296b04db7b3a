"""Alerts: who meets which rule, how many they are, and tests of these numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.sparse_vector import Progress, SparseVector
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import (
    EventBatch,
    KeyedBatch,
    Names,
    decode,
    encode,
    first_of_run,
    string_buffers,
)
from privstream.transforms.counts.transform import CountedTransform, KeyedCounts
from privstream.transforms.people.bounding import BoundPerWindow, SplitEvents
from privstream.transforms.questions.alerts import AlertRule, AlertsParameters, RuleCountsParameters
from privstream.transforms.questions.heavy_hitters_stages import DecideSteps
from privstream.transforms.questions.running_stages import RunningAnswers
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.stages import ApplyDoFn, PeopleTransform
from privstream.transforms.timing.step_fn import NEVER
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


class Tested(NamedTuple):
    """What tests have spent, and since which step each rule has been met without a gap, int64 (rules,), or NEVER."""

    progress: Progress
    since: np.ndarray


class TestCounts(RunningAnswers, state="test_counts"):
    """Test every rule in each window once, and publish the alerts. Misses publish nothing.

    A window without data is tested like any other. A run that has spent its budget tests nothing more.
    """

    __test__ = False  # not a test case

    listed: tuple[AlertRule, ...]
    mechanism: SparseVector
    row_type = Alert
    counter = "alerts_published"
    stopped = Metrics.counter("privstream", "runs_stopped")

    @override
    def initial(self, key: bytes) -> Tested:
        return Tested(self.mechanism.initial_state(), np.full(len(self.listed), NEVER))

    @override
    def snapshot(self, state: Tested) -> bytes:
        return pack("tested", 1, {"progress": self.mechanism.snapshot(state.progress), "since": state.since})

    @override
    def restore(self, data: bytes) -> Tested:
        found: dict[str, Any] = unpack("tested", 1, data)
        return Tested(self.mechanism.restore(found["progress"]), found["since"])

    @override
    def answer(self, step: int, batches: list[bytes], state: Tested) -> tuple[Tested, list[tuple[Any, ...]]]:
        if self.mechanism.halted(state.progress):
            return state, []
        signs, thresholds = (np.array([getattr(rule, of) for rule in self.listed]) for of in ("sign", "threshold"))
        counts = signs * self.given(step, batches)
        after, answers = self.mechanism.step(state.progress, counts, self.noise_of(step), thresholds=signs * thresholds)
        left = math.floor(max(0.0, self.mechanism.epsilon - self.mechanism.spent(after)) * PARTS) / PARTS
        since = np.where(answers.hits, np.minimum(state.since, step), NEVER)
        hits, stopped = np.flatnonzero(answers.hits), self.mechanism.halted(after)
        self.stopped.inc(int(stopped))
        least = self.mechanism.lower_bounds(answers, 1 - OUTSIDE)
        columns = (hits, answers.numbers, least, answers.branches, since[hits])
        told = zip(*(column.tolist() for column in columns), strict=True)
        rows = [
            (*self._fields(step, self.listed[rule], *of_hit), left, stopped and rule == hits[-1])
            for rule, *of_hit in told
        ]
        return Tested(after, since), rows

    def _fields(self, step: int, rule: AlertRule, gap: float, least: float, branch: int, since: int) -> tuple[Any, ...]:
        """Return what a row says of a hit, rounded to about a hundredth of its noise."""
        digits = 2 - math.floor(math.log10(math.sqrt(self.mechanism.gap_variance(branch))))
        bound = rule.threshold + rule.sign * math.floor(least * 10.0**digits) / 10.0**digits
        ends = (max(0.0, bound), None) if rule.sign > 0 else (None, bound)
        estimate = round(rule.threshold + rule.sign * gap, digits)
        status = STARTED if since == step else CONTINUES
        return rule.name, float(rule.threshold), estimate, *ends, self.steps.bounds(since)[0], status


class RulesOfEvents(PeopleTransform):
    """Splits the events that rules are about, and puts rules in place of their items."""

    rules: tuple[AlertRule, ...]

    @override
    def _splitter(self, **given: Any) -> SplitEvents:
        everybody = any(rule.items is None for rule in self.rules)
        domain = None if everybody else Domain({item for rule in self.rules for item in rule.items or ()})
        return SplitEvents(steps=self.steps, noise=self.noise, shards=self.shards, domain=domain, **given)

    @override
    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        to_rules = beam.ParDo(ToRules(self.rules, self.noise)).with_output_types(KeyedBatch)
        return cast(PCollection[Any], super()._split(events, apply_dofn) | "ToRules" >> to_rules)


class RuleCounts(RulesOfEvents, RuleCountsParameters, KeyedCounts):
    """Counts of the people who meet each rule."""


class SparseVectorAlerts(AlertsParameters, RulesOfEvents, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    counts_type = RuleCounts

    @override
    def _limits(self) -> tuple[BoundPerWindow]:
        given: dict[str, Any] = {"ranked": True} if self.monitor is not None else {"ranked": False, "counted": True}
        most = len(self.rules)  # nobody has more
        return (BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=most, **given),)

    @override
    def _last(self) -> DecideSteps | TestCounts:
        last: dict[str, Any] = {"steps": self.steps, "timer_offset": 1, "noise": self.noise}
        if self.monitor is None:
            return TestCounts(**last, listed=self.rules, mechanism=self.sparse_vector)
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        listed = [(rule.name, float(rule.threshold)) for rule in self.rules]
        return DecideSteps(**last, monitor=self.monitor, listed=listed, row_type=self.row_type, counter=self.counter)
