"""Who meets which rule, how many they are, and tests of these numbers until a budget is spent."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.free_gap.adaptive_sparse_vector import GapAnswers, GapProgress
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.methods import AlertPlan
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    InStreams,
    Keyed,
    Names,
    StepKey,
    first_of_run,
    string_buffers,
)
from privstream.transforms.events.bounding import BoundEvents, to_people
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.clocked import SingleSteps, on_clocks, stepped
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

ONE_RUN = b""
"""Key of tests that go over all streams."""


class MeetRules(BoundEvents, state="meet_rules"):
    """Per group of streams, step and shard of people: events in, out who meets which rule: holdings of its number.

    They go on keyed by group of streams and step, or `by_people`, for `BoundAcrossWindows`, by shard of people.
    """

    def __init__(
        self, *, rules: tuple[AlertRule, ...], steps: Steps, timer_offset: int, noise: NoiseSource, by_people: bool
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self.noise = noise
        self.by_people = by_people

    @override
    def setup(self) -> None:
        pairs = [(number, item) for number, rule in enumerate(self.rules) for item in rule.items or ()]
        texts = pa.array([item for _, item in pairs], pa.string())
        items = self.noise.derive("item hash").hash_bytes(*reversed(string_buffers(texts)))
        order = np.argsort(items, kind="stable")
        self._items = items[order]
        self._rules = np.array([number for number, _ in pairs], np.int64)[order]
        self._for_all = np.array([number for number, rule in enumerate(self.rules) if rule.items is None], np.int64)

    @override
    def bound(self, key: StepKey, events: InStreams[EventBatch]) -> Iterator[Keyed]:
        rows, rules = self.meet(events.people(), events.batch.items)
        if not len(rows):
            return
        holders = HolderBatch(events.users[rows], rules.astype(np.uint64), np.zeros(len(rows), np.uint16), Names.none())
        held = InStreams.sort(events.streams, events.codes[rows], holders).with_rows()
        if self.by_people:
            yield to_people(key, held.to_bytes())
        else:
            yield key._replace(shard=0).to_bytes(), held.to_bytes()

    def meet(self, people: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct pairs of a person and the number of a rule that one of their events meets.

        A person is given by the number of a row, int64. Pairs are in the order of `people`, and then of rules.
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


class CountMeeting(beam.DoFn):
    """Count who meets each rule; a person is in one batch of a step only, so counts of batches may be added."""

    def __init__(self, rules: int, *, by_stream: bool) -> None:
        self.rules = rules
        self.by_stream = by_stream

    @override
    def process(self, element: Keyed) -> Iterator[Keyed]:
        step, held = StepKey.from_bytes(element[0]).step, InStreams.from_bytes(HolderBatch, element[1])
        cells = held.codes * self.rules + held.batch.items.astype(np.int64)
        counts = np.bincount(cells, minlength=len(held.streams) * self.rules).reshape(-1, self.rules)
        if self.by_stream:
            each = zip(held.streams, counts, strict=True)
            yield from on_clocks((stream, step, encode_counts((stream,), row)) for stream, row in each)
        else:
            yield ONE_RUN, stepped(step, encode_counts(held.streams, counts))


def encode_counts(streams: tuple[str, ...], counts: np.ndarray) -> bytes:
    """Encode how many people meet each rule, (streams, rules)."""
    offsets, text = string_buffers(pa.array(streams, pa.large_string()))
    return pack("alert counts", 2, {"offsets": offsets, "text": text, "counts": counts.astype(np.int64).ravel()})


def decode_counts(data: bytes) -> tuple[list[str], np.ndarray]:
    """Decode streams and counts."""
    found: dict[str, Any] = unpack("alert counts", 2, data)
    names = Names(np.arange(len(found["offsets"]) - 1, dtype=np.uint64), found["offsets"], found["text"])
    streams: list[str] = names.to_arrow().to_pylist()
    return streams, found["counts"].reshape(len(streams), -1)


NEVER = -1
PUBLISHED = "alerts_published"
PARTS = 10**6  # of epsilon, to which what is left is rounded down


class Tests(NamedTuple):
    """The tests of a window in their order: numbers of stream and rule (int64), and values; all of shape (n,)."""

    streams: np.ndarray
    rules: np.ndarray
    values: np.ndarray

    def take(self, rows: np.ndarray) -> Tests:
        """Keep some tests."""
        return Tests(*(column[rows] for column in self))


@dataclass(frozen=True, eq=False)
class Runs:
    """State of a key: how far each run of the mechanism is.

    When each rule fired last in each stream, and since when it has fired in each window, int64 (streams, rules).
    """

    progress: tuple[GapProgress, ...]
    fired: np.ndarray
    since: np.ndarray

    def alerted(self, streams: np.ndarray, rules: np.ndarray, step: int) -> Runs:
        """Return what follows alerts at a step."""
        fired, since = self.fired.copy(), self.since.copy()
        last = fired[streams, rules]
        goes_on = (last != NEVER) & (last == step - 1)  # the first window of a calendar is step 0
        since[streams, rules] = np.where(goes_on, since[streams, rules], step)
        fired[streams, rules] = step
        return replace(self, fired=fired, since=since)

    def awake(self, step: int, quiet: int) -> np.ndarray:
        """Tell which rules are tested, bool (streams, rules), if they are not in so many windows after an alert."""
        found: np.ndarray = (self.fired == NEVER) | (self.fired + quiet < step)
        return found


class TestAlerts(SingleSteps):
    """Test the rules of each window once, and publish the alerts. Misses publish nothing.

    A window without data is tested like any other. A run that has spent its budget tests nothing more.
    """

    __test__ = False  # not a test case

    def __init__(self, *, plan: AlertPlan, steps: Steps, timer_offset: int, noise: NoiseSource) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, streams=plan.streams if plan.by_stream else None)
        self.plan = plan
        self.noise = noise
        self.alerts = Metrics.counter("privstream", PUBLISHED)
        self.stopped = Metrics.counter("privstream", "runs_stopped")

    @abstractmethod
    def read(self, streams: tuple[str, ...], batches: list[bytes]) -> Tests:
        """Return the tests of one window."""

    @override
    def initial(self, key: bytes) -> Runs:
        plan = self.plan
        fired = np.full((len(plan.streams_of(key)), len(plan.rules)), NEVER, np.int64)
        return Runs(tuple(plan.mechanism.initial_state() for _ in plan.groups), fired, fired)

    @override
    def snapshot(self, state: Runs) -> bytes:
        runs = {f"run {i}": self.plan.mechanism.snapshot(progress) for i, progress in enumerate(state.progress)}
        return pack("alert runs", 1, runs | {"fired": state.fired, "since": state.since})

    @override
    def restore(self, data: bytes) -> Runs:
        fields: dict[str, Any] = unpack("alert runs", 1, data)
        runs = (self.plan.mechanism.restore(fields[f"run {i}"]) for i in range(len(self.plan.groups)))
        return Runs(tuple(runs), fields["fired"], fields["since"])

    @override
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Runs) -> tuple[Runs, list[Alert]]:
        plan, mechanism = self.plan, self.plan.mechanism
        if all(map(mechanism.halted, state.progress)):
            return state, []
        streams = plan.streams_of(key)
        tests = self.read(streams, batches)
        awake = state.awake(step, plan.quiet)[tests.streams, tests.rules]
        after, progress, alerts = state, list(state.progress), []
        for run, rules in enumerate(plan.groups):
            mine = tests.take(np.flatnonzero(awake & np.isin(tests.rules, rules)))
            if not len(mine.values) or mechanism.halted(progress[run]):
                continue
            progress[run], hits, answers = self._test(key, step, run, mine, progress[run])
            after = after.alerted(hits.streams, hits.rules, step)
            since = after.since[hits.streams, hits.rules]
            alerts += self._rows(streams, step, hits, answers, progress[run], since)
        self.alerts.inc(len(alerts))
        return replace(after, progress=tuple(progress)), alerts

    def _test(
        self, key: bytes, step: int, run: int, tests: Tests, before: GapProgress
    ) -> tuple[GapProgress, Tests, GapAnswers]:
        """Make the tests of one run in one window; return those that hit, and their answers."""
        plan = self.plan
        signs = np.array([rule.sign for rule in plan.rules])[tests.rules]
        thresholds = np.array([rule.threshold for rule in plan.rules])[tests.rules]
        noise = self.steps.renewed(self.noise, step)
        noise = noise.derive("run", key, plan.rules[run].name if plan.by_rule else "")
        after, answers = plan.mechanism.step(before, signs * tests.values, noise, thresholds=signs * thresholds)
        return after, tests.take(np.flatnonzero(answers.hits)), answers

    def _rows(
        self,
        streams: tuple[str, ...],
        step: int,
        hits: Tests,
        answers: GapAnswers,
        after: GapProgress,
        since: np.ndarray,
    ) -> list[Alert]:
        """Write the hits as rows; the last that the budget pays for says so.

        Numbers are rounded to about a hundredth of their noise: low bits of noisy real numbers may betray something.
        """
        plan, mechanism = self.plan, self.plan.mechanism
        start, end = self.steps.bounds(step)
        costs = mechanism.costs(answers)
        left = mechanism.epsilon - mechanism.spent(after) + costs.sum() - np.cumsum(costs)
        columns = zip(
            hits.streams.tolist(),
            hits.rules.tolist(),
            answers.gaps.tolist(),
            np.sqrt(mechanism.variances(answers)).tolist(),
            mechanism.lower_bounds(answers, 1 - plan.beta).tolist(),
            costs.tolist(),
            np.maximum(left, 0).tolist(),
            since.tolist(),
            strict=True,
        )
        rows = []
        for stream, number, raw, stddev, lower, cost, remaining, first in columns:
            rule = plan.rules[number]
            digits = 2 - math.floor(math.log10(stddev))
            gap = round(raw, digits)
            rows.append(
                Alert(
                    stream=streams[stream],
                    window_start=start,
                    window_end=end,
                    rule=rule.name,
                    threshold=float(rule.threshold),
                    estimate=round(rule.threshold + rule.sign * gap, digits),
                    gap=gap,
                    gap_stddev=round(stddev, digits + 1),
                    gap_lower_bound=math.floor(lower * 10.0**digits) / 10.0**digits,
                    epsilon_spent=math.ceil(cost * PARTS) / PARTS,
                    epsilon_left=math.floor(remaining * PARTS) / PARTS,
                    stopped=False,
                    since=self.steps.bounds(first)[0],
                    status=STARTED if first == step else CONTINUES,
                )
            )
        if rows and mechanism.halted(after):
            rows[-1] = rows[-1]._replace(stopped=True)
            self.stopped.inc()
        return rows

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        self.late.inc()
        yield late_letter(self.steps, step, "late count", "")


class TestCounts(TestAlerts, state="test_counts"):
    """Test how many people meet each rule: every rule in every stream, in every window."""

    @override
    def read(self, streams: tuple[str, ...], batches: list[bytes]) -> Tests:
        counts = np.zeros((len(streams), len(self.plan.rules)), np.int64)
        place = {stream: number for number, stream in enumerate(streams)}
        for batch in batches:
            names, some = decode_counts(batch)
            counts[[place[name] for name in names]] += some
        in_stream, rules = np.indices(counts.shape)
        return Tests(in_stream.ravel(), rules.ravel(), counts.ravel())
