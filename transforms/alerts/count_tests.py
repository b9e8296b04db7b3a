"""Alerts by noisy counts: every count gets noise in every window, and is compared with the threshold of its rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.snapshots import unpack
from privstream.transforms.alerts.threshold_tests import AlertPlan, Runs, TestCounts, Tests
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.steps import Steps


@dataclass(frozen=True, kw_only=True)
class CountedAlerts:
    """A method of `SparseVectorAlerts`. All noise is paid for before the run: no alert costs anything.

    Attributes:
        plan: the rules, the streams and what was asked of the tests.
        counts: of people for each rule, of all streams and windows together.
    """

    plan: AlertPlan
    counts: KeyedCounts

    proof: ClassVar[str] = "docs/proofs/alerts.md, section 6"

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        return self.counts.guarantee

    def margin(self, tests: int) -> float:
        """Return by how much counts are off at most in so many tests together, but with the plan's beta."""
        return float(self.counts.error(1, self.plan.beta, keys=tests))

    @cached_property
    def stddev(self) -> float:
        """Standard deviation of the noise on counts."""
        return self.counts.stddev(1)

    @cached_property
    def lower_bound(self) -> int:
        """By how much, with the plan's beta in one test, the noise makes a gap too large."""
        return self.counts.error(1, min(1.0 - 1e-9, 2 * self.plan.beta))


class CompareCounts(TestCounts, state="compare_counts"):
    """Compare noisy counts of all rules, in all streams and windows, with their thresholds. Misses publish nothing."""

    def __init__(self, *, method: CountedAlerts, steps: Steps, timer_offset: int, noise: NoiseSource) -> None:
        super().__init__(plan=method.plan, steps=steps, timer_offset=timer_offset, noise=noise)
        self.method = method

    def initial(self, key: bytes) -> Runs:
        """Return the state before the first window: there are no runs that could stop."""
        return replace(super().initial(key), progress=())

    def restore(self, data: bytes) -> Runs:
        """Decode a state."""
        fields: dict[str, Any] = unpack("alert runs", 1, data)
        return Runs((), fields["fired"], fields["since"])

    def advance(self, key: bytes, step: int, batches: list[bytes], state: Runs) -> tuple[Runs, list[Alert]]:
        """Compare all counts of one window, in all streams of the key."""
        plan = self.plan
        streams = plan.streams_of(key)
        tests = self.read(streams, batches)
        noisy = self._noisy(key, step, tests)
        signs = np.array([rule.sign for rule in plan.rules])[tests.rules]
        thresholds = np.array([rule.threshold for rule in plan.rules])[tests.rules]
        gaps = signs * (noisy - thresholds)
        last = state.fired[tests.streams, tests.rules]
        hits = np.flatnonzero((gaps >= 0) & self.awake(last, step))
        after = state.alerted(tests.streams[hits], tests.rules[hits], step)
        since = after.since[tests.streams[hits], tests.rules[hits]]
        self.alerts.inc(len(hits))
        found = (tests.streams[hits], tests.rules[hits], gaps[hits], since)
        columns = zip(*(column.tolist() for column in found), strict=True)
        return after, [self._row(streams[stream], step, rule, gap, first) for stream, rule, gap, first in columns]

    def _noisy(self, key: bytes, step: int, tests: Tests) -> np.ndarray:
        """Return the counts of one window with noise, int64 (n,)."""
        counts, keys = self.method.counts, np.arange(len(tests.values), dtype=np.uint64)
        noise = self.noise.derive("counts", key, step)
        given = KeyedStep(step=1, keys=keys, counts=tests.values)
        _, rows = counts.step(counts.initial_state(keys), given, noise)
        return rows.counts

    def _row(self, stream: str, step: int, number: int, gap: float, since: int) -> Alert:
        """Write one alert."""
        rule, stddev = self.plan.rules[number], self.method.stddev
        start, end = self.steps.bounds(step)
        return Alert(
            stream=stream,
            window_start=start,
            window_end=end,
            rule=rule.name,
            threshold=float(rule.threshold),
            estimate=float(rule.threshold + rule.sign * gap),
            gap=float(gap),
            gap_stddev=stddev,
            gap_lower_bound=float(gap - self.method.lower_bound),
            epsilon_spent=0.0,
            epsilon_left=0.0,
            stopped=False,
            since=self.steps.bounds(since)[0],
            status=STARTED if since == step else CONTINUES,
        )
