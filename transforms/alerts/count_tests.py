"""Alerts by noisy counts: every count gets noise in every window, and is compared with the threshold of its rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.smoothing import NORMAL
from privstream.transforms.alerts.methods import CountedAlerts
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.alerts.threshold_tests import NEVER, PUBLISHED, Runs, TestCounts
from privstream.transforms.counts.finished import SmoothFinished
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

DIGITS = 1
"""Of smoothed numbers."""

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
    Where numbers are smoothed before they decide, all noisy counts are published, for `SmoothAlerts`.
    """

    def __init__(self, *, method: CountedAlerts, steps: Steps, timer_offset: int, noise: NoiseSource) -> None:
        super().__init__(plan=method.plan, steps=steps, timer_offset=timer_offset, noise=noise)
        self.method = method
        self.lengths = np.array([rule.windows for rule in method.plan.rules])
        self.signs = np.array([rule.sign for rule in method.plan.rules])
        self.thresholds = np.array([rule.threshold for rule in method.plan.rules])

    @override
    def initial(self, key: bytes) -> CountedRuns:
        start = super().initial(key)
        recent = np.zeros((self.lengths.max() - 1, start.fired.size), np.int64)
        return CountedRuns((), start.fired, start.since, recent)

    @override
    def snapshot(self, state: Runs) -> bytes:
        assert isinstance(state, CountedRuns)
        fields = {"fired": state.fired, "since": state.since}
        return pack("alert runs", 1, fields | ({"recent": state.recent} if len(state.recent) else {}))

    @override
    def restore(self, data: bytes) -> CountedRuns:
        fields: dict[str, Any] = unpack("alert runs", 1, data)
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
        if self.method.smoothed_over:
            each = zip(*(column.tolist() for column in (tests.streams, tests.rules, noisy)), strict=True)
            return state, [
                undecided(self.steps, step, streams[stream], self.plan.rules[rule], count)
                for stream, rule, count in each
            ]
        latest = np.concatenate([noisy[None], state.recent])
        gaps = self._gaps(tests.rules, latest)
        full = self.lengths[tests.rules] <= self.steps.number(step)
        hits = np.flatnonzero((gaps >= 0) & full & state.awake(step, self.plan.quiet)[tests.streams, tests.rules])
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

    def _row(self, stream: str, step: int, number: int, gap: int, since: int) -> Alert:
        """Write one alert; its gap is a sum over the windows of the rule, and what is published a mean."""
        rule = self.plan.rules[number]
        (bound,) = self.method.lower_bounds(np.array([gap]), rule.windows).tolist()
        mean = (rule.windows * int(rule.threshold) + rule.sign * gap) / rule.windows
        return undecided(self.steps, step, stream, rule, mean)._replace(
            gap=float(gap / rule.windows),
            gap_stddev=self.method.stddev(rule.windows),
            gap_lower_bound=at_least(math.floor(bound) / rule.windows if bound > -math.inf else bound, rule),
            since=self.steps.bounds(since)[0],
            status=STARTED if since == step else CONTINUES,
        )


def undecided(steps: Steps, step: int, stream: str, rule: AlertRule, number: float) -> Alert:
    """Return a row with a noisy number of a window, before it is known whether it gives an alert."""
    start, end = steps.bounds(step)
    numbers = (float(rule.threshold), float(number), None, None, None, 0.0, 0.0, False)
    return Alert(stream, start, end, rule.name, *numbers, start, STARTED)


def at_least(bound: float, rule: AlertRule) -> float | None:
    """Return a bound on a gap, given that no number of people is below 0; None for none."""
    known = max(bound, -float(rule.threshold)) if rule.sign > 0 else bound
    return None if known == -math.inf else known


@dataclass(frozen=True)
class SmoothAlerts:
    """Decides the alerts of a run that has ended by numbers smoothed over its windows.

    A smoothed number is never farther from that of its window than `CountedAlerts.moved`, and an interval reaches so
    much farther as it has been held back. The part of the noise that all counts have in common does not become smaller,
    and widens all intervals.

    Privacy: post-processing of what is published with noise.

    Attributes:
        method: what is tested, and what knows the noise.
        steps: the windows, all of which have a row for each rule in each stream.
    """

    method: CountedAlerts
    steps: Steps

    def __call__(self, rows: Sequence[Alert]) -> list[Alert]:
        """Return the alerts, given noisy counts of all windows: `undecided` rows."""
        if not rows:
            return []
        plan, steps = self.method.plan, self.steps
        place = {rule.name: number for number, rule in enumerate(plan.rules)}
        rows = sorted(rows, key=lambda row: (row.window_start.micros, row.stream, place[row.rule]))
        cells = len(plan.streams), len(plan.rules)
        windows = rows[:: math.prod(cells)]
        counts = np.array([row.estimate for row in rows], np.int64).reshape(len(windows), -1)
        means, smoothed = self._smoothed(counts, np.array([row.window_start.micros for row in windows]))
        signs, thresholds = (np.array([getattr(rule, of) for rule in plan.rules]) for of in ("sign", "threshold"))
        gaps = np.round(signs * (smoothed[0].reshape(-1, *cells) - thresholds), DIGITS)
        hits, since = self._hits(gaps >= 0, [steps.ending(row.window_end) for row in windows])
        Metrics.counter("privstream", PUBLISHED).inc(len(hits))
        met, rules = smoothed[:, hits], hits % len(plan.rules)
        reach = np.maximum(met[2] - met[0], met[0] - met[1])
        stddevs = np.maximum(reach, 0.1**DIGITS) / NORMAL  # they are rounded
        own, passed = means[hits], gaps.ravel()[hits]
        bounds = np.floor(10 * self.method.smoothed_bounds(passed, stddevs)) / 10
        columns = (hits, rules, own, *met, passed, np.round(stddevs, 2), bounds, since)
        return [
            rows[row]._replace(
                estimate=mean,
                gap=gap,
                gap_stddev=stddev,
                gap_lower_bound=at_least(bound, plan.rules[rule]),
                since=steps.bounds(first)[0],
                status=STARTED if steps.bounds(first)[0] == rows[row].window_start else CONTINUES,
                smoothed=number,
                smoothed_lower=lower,
                smoothed_upper=upper,
            )
            for row, rule, mean, number, lower, upper, gap, stddev, bound, first in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    def _smoothed(self, counts: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the means that rules are about, and the smoothed ones with their intervals, flat: (n,) and (3, n)."""
        own, common = self.method.stddevs_apart
        lengths = np.tile([rule.windows for rule in self.method.plan.rules], len(self.method.plan.streams))
        means, found = counts.astype(np.float64), np.empty((3, *counts.shape))
        for windows in np.unique(lengths).tolist():
            some = lengths == windows
            totals = np.concatenate([np.zeros((windows, int(some.sum()))), np.cumsum(counts[:, some], axis=0)])
            means[:, some] = (totals[windows:] - totals[:-windows]) / windows
            smooth = SmoothFinished(self.steps.period, own, windows=windows)
            level, lower, upper = smooth.of_series(counts)[..., some] / windows
            moved = self.method.moved(windows)
            held = np.maximum(np.clip(level, means[:, some] - moved, means[:, some] + moved), 0.0)
            down, up = (
                np.hypot(side, NORMAL * common) + np.abs(held - level) for side in (level - lower, upper - level)
            )
            found[..., some] = held, np.maximum(held - down, 0.0), held + up
        return means.ravel(), np.round(found, DIGITS).reshape(3, -1)

    def _hits(self, met: np.ndarray, steps: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return which tests give alerts, as places in a flat array, and since which step each has done so.

        Args:
            met: which rules are met, bool (windows, streams, rules).
            steps: of the windows.
        """
        nothing = np.full(met.shape[1:], NEVER, np.int64)
        lengths = np.array([rule.windows for rule in self.method.plan.rules])
        state, hits, since = Runs((), nothing, nothing), [], []
        for window, step in enumerate(steps):
            if self.steps.number(step) == 1:  # of a run or a period
                state = Runs((), nothing, nothing)
            full = lengths <= self.steps.number(step)
            alerts = np.nonzero(met[window] & full & state.awake(step, self.method.plan.quiet))
            state = state.alerted(alerts[0], alerts[1], step)
            hits.append(np.ravel_multi_index((np.full_like(alerts[0], window), *alerts), met.shape))
            since.append(state.since[alerts])
        return np.concatenate(hits), np.concatenate(since)
