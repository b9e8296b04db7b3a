"""Alerts: who meets which rule, how many they are, and tests of these numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings
from privstream.mechanisms.monitor.item_monitors import StatusRows
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor, RuleState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.sparse_vector import Answers, Progress, SparseVector
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    Names,
    StepKey,
    decode,
    encode,
    first_of_run,
    string_buffers,
)
from privstream.transforms.counts.transform import CountedTransform, KeyedCounts
from privstream.transforms.people.bound import place_in_run
from privstream.transforms.people.bounding import BoundEvents, CountHolders, LimitCounter, SplitEvents, add_counts
from privstream.transforms.questions.alerts import AlertRule, AlertsParameters, RuleCountsParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import CONTINUES, STARTED, STATUSES, Alert
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import STEP, WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped
from typing_extensions import override


class MetBy:
    """Which rules events meet, by hashes of their items."""

    def __init__(self, rules: tuple[AlertRule, ...], noise: NoiseSource) -> None:
        pairs = [(number, item) for number, rule in enumerate(rules) for item in rule.items or ()]
        texts = pa.array([item for _, item in pairs], pa.string())
        items = noise.derive("item hash").hash_bytes(*reversed(string_buffers(texts)))
        order = np.argsort(items, kind="stable")
        self._items = items[order]
        self._rules = np.array([number for number, _ in pairs], np.int64)[order]
        self._for_all = np.array([number for number, rule in enumerate(rules) if rule.items is None], np.int64)

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


class ToRules(beam.DoFn):
    """Put rules in place of items: an event counts for each rule that it meets, whose number is that of a list."""

    def __init__(self, rules: tuple[AlertRule, ...], noise: NoiseSource) -> None:
        self.rules, self.noise = rules, noise

    @override
    def setup(self) -> None:
        self._met = MetBy(self.rules, self.noise)

    @override
    def process(self, element: KeyedBatch) -> Iterator[KeyedBatch]:
        key, (number, data) = element
        events = decode(EventBatch, data)
        rows, rules = self._met.meet(events.users, events.items)
        made = encode(EventBatch(events.users[rows], rules.astype(np.uint64), events.times[rows], Names.none()))
        yield key, (number, made)


class MeetRules(BoundEvents):
    """Per step and shard of people: events in, out who meets which rule: holdings of its number, by step."""

    rules: tuple[AlertRule, ...]
    noise: NoiseSource

    @override
    def setup(self) -> None:
        self._met = MetBy(self.rules, self.noise)

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        rows, rules = self._met.meet(events.users, events.items)
        if len(rows):
            ranks = np.zeros(len(rows), np.uint16)
            held = HolderBatch(events.users[rows], rules.astype(np.uint64), ranks, Names.none())
            yield on_clock(key.step, encode(held))


NEVER = -1
PARTS = 10**6  # of epsilon, to which what is left is rounded down


@dataclass(frozen=True, eq=False)
class Runs:
    """How far the run of the mechanism is; when each rule fired last, and since when in each window, int64 (rules,)."""

    progress: Progress
    fired: np.ndarray
    since: np.ndarray

    def alerted(self, rules: np.ndarray, step: int) -> Runs:
        """Return what follows alerts at a step."""
        fired, since = self.fired.copy(), self.since.copy()
        last = fired[rules]
        goes_on = (last != NEVER) & (last == step - 1)  # the first window of a calendar is step 0
        since[rules] = np.where(goes_on, since[rules], step)
        fired[rules] = step
        return replace(self, fired=fired, since=since)


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
    def initial(self, key: bytes) -> Runs:
        fired = np.full(len(self.rules), NEVER, np.int64)
        return Runs(self.mechanism.initial_state(), fired, fired)

    @override
    def snapshot(self, state: Runs) -> bytes:
        run = self.mechanism.snapshot(state.progress)
        return pack("alert runs", 2, {"run": run, "fired": state.fired, "since": state.since})

    @override
    def restore(self, data: bytes) -> Runs:
        fields: dict[str, Any] = unpack("alert runs", 2, data)
        return Runs(self.mechanism.restore(fields["run"]), fields["fired"], fields["since"])

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Runs) -> tuple[Runs, list[Alert]]:
        if self.mechanism.halted(state.progress):
            return state, []
        counts = add_counts(batches, len(self.rules))
        signs, thresholds = (np.array([getattr(rule, of) for rule in self.rules]) for of in ("sign", "threshold"))
        noise = self.noise_of(step)
        progress, answers = self.mechanism.step(state.progress, signs * counts, noise, thresholds=signs * thresholds)
        hits = np.flatnonzero(answers.hits)
        after = replace(state.alerted(hits, step), progress=progress)
        alerts = self._rows(step, hits, answers, progress, after.since[hits])
        self.published.inc(len(alerts))
        return after, alerts

    def _rows(self, step: int, hits: np.ndarray, answers: Answers, after: Progress, since: np.ndarray) -> list[Alert]:
        """Write the hits as rows; the last that the budget pays for says so.

        Numbers are rounded to about a hundredth of their noise.
        """
        mechanism, (start, end) = self.mechanism, self.steps.bounds(step)
        costs = mechanism.costs(answers)
        left = mechanism.epsilon - mechanism.spent(after) + costs.sum() - np.cumsum(costs)
        columns = zip(
            hits.tolist(),
            answers.numbers.tolist(),
            np.sqrt(mechanism.variances(answers)).tolist(),
            mechanism.lower_bounds(answers, 1 - OUTSIDE).tolist(),
            np.maximum(left, 0).tolist(),
            since.tolist(),
            strict=True,
        )
        rows = []
        for number, gap, stddev, least, remaining, first in columns:
            rule, digits = self.rules[number], 2 - math.floor(math.log10(stddev))
            bound = rule.threshold + rule.sign * math.floor(least * 10.0**digits) / 10.0**digits
            rows.append(
                Alert(
                    window_start=start,
                    window_end=end,
                    rule=rule.name,
                    threshold=float(rule.threshold),
                    estimate=round(rule.threshold + rule.sign * gap, digits),
                    lower=max(0.0, bound) if rule.sign > 0 else None,
                    upper=bound if rule.sign < 0 else None,
                    since=self.steps.bounds(first)[0],
                    status=STARTED if first == step else CONTINUES,
                    epsilon_left=math.floor(remaining * PARTS) / PARTS,
                )
            )
        if rows and mechanism.halted(after):
            rows[-1] = rows[-1]._replace(stopped=True)
            self.stopped.inc()
        return rows


SEGMENTS = 2
"""Version of what is stored."""


def rank_rules(element: Keyed, few: tuple[bool, ...]) -> Keyed:
    """Number the rules that each person meets in a window, those of `few` people first, and send them on.

    All that a person meets in a window is in one batch, so ranks depend on that person alone.
    """
    (step,), held = STEP.unpack_from(element[1]), decode(HolderBatch, element[1][STEP.size :])
    later = ~np.array(few)[held.items.astype(np.int64)]
    ranks = place_in_run(held.users, np.lexsort((held.items, later, held.users))).astype(np.uint16)
    return on_clock(step, encode(replace(held, ranks=ranks)))


class DecideRules(StepFn, state="decide_rules"):
    """On a public clock: test every rule in every window, and publish those that are met or end."""

    rules: tuple[AlertRule, ...]
    monitor: RuleMonitor
    counter = "alerts_published"
    stopped = Metrics.counter("privstream", "rules_stopped")
    limited = LimitCounter("charged")

    @override
    def initial(self, key: bytes) -> RuleState:
        return RuleState(since=self.monitor.initial_state().since)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: RuleState) -> Stepped:
        held = HolderBatch.read(batches)
        given = Holdings(step=self.steps.in_first_period(step), users=held.users, items=held.items, ranks=held.ranks)
        noise = self.noise_of(step)
        active = given.active(state.counters, self.monitor.max_hits)
        self.limited.add(len(active), len(active) - int(active.sum()))
        found, after, charges = self.monitor.decide(state, given, noise)
        self.published.inc(len(found.items))
        self.stopped.inc(int(found.stopped))
        after = replace(after, counters=state.counters.add(charges))
        return Stepped(after, self._rows(step, found), partial(_segment, charges, after))

    def _rows(self, step: int, found: StatusRows) -> Iterator[Alert]:
        """Write the rules that are met or end; a count that nobody was charged for is none."""
        later, reach = step - self.steps.in_first_period(step), self.monitor.count_error(OUTSIDE)
        start, end = self.steps.bounds(step)
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), found.status.tolist(), found.since.tolist(), counts)
        for number, kind, since, count in zip(*columns, strict=True):
            rule, status = self.rules[number], STATUSES[kind]
            counted = count is not None and status != CONTINUES
            yield Alert(
                window_start=start,
                window_end=end,
                rule=rule.name,
                threshold=float(rule.threshold),
                estimate=float(count) if counted else None,
                lower=max(0.0, count - reach) if counted else None,
                upper=max(0.0, count + reach) if counted else None,
                since=self.steps.bounds(since + later)[0],
                status=status,
                stopped=found.stopped,
            )

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> RuleState:
        state = self.initial(key)
        for segment in segments:
            found: dict[str, Any] = unpack("rules met", SEGMENTS, segment)
            counters = state.counters.add(Charges.from_bytes(found["charges"]))
            state = RuleState(counters, found["since"], found["changes"])
        return state

    @override
    def encode(self, state: RuleState) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges)), SEGMENT)
        return [_segment(charges.slice(start, start + SEGMENT), state) for start in starts]


def _segment(charges: Charges, state: RuleState) -> bytes:
    fields: dict[str, Any] = {"charges": charges.to_bytes(), "since": state.since, "changes": state.changes}
    return pack("rules met", SEGMENTS, fields)


def split_for(rules: tuple[AlertRule, ...], **given: Any) -> SplitEvents:
    """Return the stage that splits the events that rules are about."""
    everybody = any(rule.items is None for rule in rules)
    domain = None if everybody else Domain({item for rule in rules for item in rule.items or ()})
    return SplitEvents(**given, domain=domain)


class RuleCounts(RuleCountsParameters, KeyedCounts):
    """Counts of the people who meet each rule."""

    @override
    def _splitter(self) -> SplitEvents:
        _ = self.mechanism.law  # once, at launch; workers receive it
        return split_for(self.rules, **self._split_by)

    @override
    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        to_rules = beam.ParDo(ToRules(self.rules, self.noise)).with_output_types(KeyedBatch)
        return cast(PCollection[Any], super()._split(events, apply_dofn) | "ToRules" >> to_rules)


class SparseVectorAlerts(AlertsParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    counts_type = RuleCounts

    @override
    def _splitter(self) -> SplitEvents:
        return split_for(self.rules, **self._split_by)

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
