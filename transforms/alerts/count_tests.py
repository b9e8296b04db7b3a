"""Alerts by noisy counts: every count gets noise in every window, and is compared with the threshold of its rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.methods import CountedAlerts
from privstream.transforms.alerts.threshold_tests import Runs, TestCounts
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

SHARED = "shared"
"""What a state has that is of a run whose counts have noise in common."""


@dataclass(frozen=True, eq=False)
class CountedRuns(Runs):
    """State of a key: beside when rules fired, the noisy counts of the last windows, the newest first.

    Attributes:
        recent: int64 (windows, tests): as many windows as the longest rule has, less one. Noisy, so nothing private.
    """

    recent: np.ndarray


class CompareCounts(TestCounts, state="compare_counts"):
    """Compare noisy counts of all rules, in all streams and windows, with their thresholds. Misses publish nothing.

    A rule over n windows compares the mean of the last n noisy counts, once there are so many in the run or period.
    """

    def __init__(self, *, method: CountedAlerts, steps: Steps, timer_offset: int, noise: NoiseSource) -> None:
        super().__init__(plan=method.plan, steps=steps, timer_offset=timer_offset, noise=noise)
        self.method = method
        self.lengths = np.array([rule.windows for rule in method.plan.rules])
        self.signs = np.array([rule.sign for rule in method.plan.rules])
        self.thresholds = np.array([rule.threshold for rule in method.plan.rules])

    @property
    def shares(self) -> bool:
        """Whether counts have noise in common: windows with noise of another kind must not come before."""
        return isinstance(self.method.counts, SharedCounts)

    @override
    def initial(self, key: bytes) -> CountedRuns:
        start = super().initial(key)
        recent = np.zeros((self.lengths.max() - 1, start.fired.size), np.int64)
        return CountedRuns((), start.fired, start.since, recent)

    @override
    def snapshot(self, state: Runs) -> bytes:
        assert isinstance(state, CountedRuns)
        fields = {"fired": state.fired, "since": state.since} | ({SHARED: 1} if self.shares else {})
        return pack("alert runs", 1, fields | ({"recent": state.recent} if len(state.recent) else {}))

    @override
    def restore(self, data: bytes) -> CountedRuns:
        fields: dict[str, Any] = unpack("alert runs", 1, data)
        if (SHARED in fields) != self.shares:
            raise SnapshotError("state must be of a run with the same noise, got that of another commit")
        recent = fields.get("recent", np.zeros((0, fields["fired"].size), np.int64))
        if len(recent) != self.lengths.max() - 1:
            raise SnapshotError("state must be of a run with the same rules")
        return CountedRuns((), fields["fired"], fields["since"], recent)

    @override
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Runs) -> tuple[Runs, list[Alert]]:
        assert isinstance(state, CountedRuns)
        streams = self.plan.streams_of(key)
        tests = self.read(streams, batches)
        noisy = self.method.noisy(key, step, tests.values, self.noise)
        latest = np.concatenate([noisy[None], state.recent])
        gaps = self._gaps(tests.rules, latest)
        full = self.lengths[tests.rules] <= self.steps.number(step)
        hits = np.flatnonzero((gaps >= 0) & full & self.awake(state.fired[tests.streams, tests.rules], step))
        after = replace(state, recent=latest[:-1]).alerted(tests.streams[hits], tests.rules[hits], step)
        since = after.since[tests.streams[hits], tests.rules[hits]]
        self.alerts.inc(len(hits))
        found = (tests.streams[hits], tests.rules[hits], gaps[hits], since)
        columns = zip(*(column.tolist() for column in found), strict=True)
        return after, [self._row(streams[stream], step, rule, gap, first) for stream, rule, gap, first in columns]

    def _gaps(self, rules: np.ndarray, latest: np.ndarray) -> np.ndarray:
        """Return by how much tests pass their thresholds, summed over the windows of their rules, int64 (n,)."""
        lengths = self.lengths[rules]
        sums = np.cumsum(latest, axis=0)[lengths - 1, np.arange(len(rules))]
        found: np.ndarray = self.signs[rules] * (sums - lengths * self.thresholds[rules])
        return found

    @cached_property
    def _noise_of_rules(self) -> list[tuple[float, int]]:
        """Standard deviation, and bound on the noise of a sum over the windows of a rule, of each rule."""
        method = self.method
        return [(method.stddev(rule.windows), method.lower_bound(rule.windows)) for rule in self.plan.rules]

    def _row(self, stream: str, step: int, number: int, gap: int, since: int) -> Alert:
        """Write one alert; its gap is a sum over the windows of the rule, and what is published a mean."""
        rule, (stddev, bound) = self.plan.rules[number], self._noise_of_rules[number]
        start, end = self.steps.bounds(step)
        return Alert(
            stream=stream,
            window_start=start,
            window_end=end,
            rule=rule.name,
            threshold=float(rule.threshold),
            estimate=float((rule.windows * int(rule.threshold) + rule.sign * gap) / rule.windows),
            gap=float(gap / rule.windows),
            gap_stddev=stddev,
            gap_lower_bound=float((gap - bound) / rule.windows),
            epsilon_spent=0.0,
            epsilon_left=0.0,
            stopped=False,
            since=self.steps.bounds(since)[0],
            status=STARTED if since == step else CONTINUES,
        )
