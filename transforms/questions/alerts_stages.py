"""Alerts: who meets which rule, how many they are, and tests of these numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.selection.sparse_vector import Progress, SparseVector
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow
from privstream.transforms.questions.alerts import AlertRule, AlertsParameters
from privstream.transforms.questions.heavy_hitters_stages import DecideSteps
from privstream.transforms.questions.running_stages import RunningAnswers
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.step_fn import NEVER
from typing_extensions import override

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
        hits, stopped = np.flatnonzero(answers.hits), self.mechanism.halted(after)  # rules behind the last one are cut
        since = np.full(len(self.listed), NEVER)
        since[hits] = np.minimum(state.since[hits], step)
        self.stopped.inc(int(stopped))
        least = self.mechanism.lower_bounds(answers, 1 - OUTSIDE)
        columns = (hits, answers.numbers, least, answers.branches, since[hits])
        told = zip(*(column.tolist() for column in columns), strict=True)
        last = hits[-1].item() if len(hits) else None
        rows = [
            (*self._fields(step, self.listed[rule], *of_hit), left, stopped and rule == last) for rule, *of_hit in told
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


class SparseVectorAlerts(AlertsParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
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
