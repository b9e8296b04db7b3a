"""Who meets which rule, how many they are, and tests of these numbers until a budget is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.sparse_vector import Answers, Progress, SparseVector
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.rules import AlertRule
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
from privstream.transforms.holders import add_counts
from privstream.transforms.people.bounding import BoundEvents
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.clock import on_clock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import Steps
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

    def __init__(self, *, rules: tuple[AlertRule, ...], steps: Steps, noise: NoiseSource) -> None:
        super().__init__(steps=steps)
        self.rules = rules
        self.noise = noise

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

    def __init__(
        self,
        *,
        rules: tuple[AlertRule, ...],
        mechanism: SparseVector,
        steps: Steps,
        timer_offset: int,
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self.mechanism = mechanism
        self.noise = noise
        self.alerts = Metrics.counter("privstream", "alerts_published")
        self.stopped = Metrics.counter("privstream", "runs_stopped")

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
        noise = self.steps.renewed(self.noise, step)
        progress, answers = self.mechanism.step(state.progress, signs * counts, noise, thresholds=signs * thresholds)
        hits = np.flatnonzero(answers.hits)
        after = replace(state.alerted(hits, step), progress=progress)
        alerts = self._rows(step, hits, answers, progress, after.since[hits])
        self.alerts.inc(len(alerts))
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
