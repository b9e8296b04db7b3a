"""Alerts by noisy counts: every count gets noise in every window, and is compared with the threshold of its rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.key_noise import ToeplitzNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.threshold_tests import AlertPlan, Runs, TestCounts
from privstream.transforms.rows import CONTINUES, STARTED, Alert
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

SHARED = "shared"
"""What a state has that is of a run whose counts have noise in common."""


@dataclass(frozen=True, kw_only=True)
class CountedAlerts:
    """A method of `SparseVectorAlerts`. All noise is paid for before the run: no alert costs anything.

    Attributes:
        plan: the rules, the streams and what was asked of the tests.
        counts: of people for each rule, of all streams and windows together.
    """

    plan: AlertPlan
    counts: KeyedCounts | SharedCounts

    proof: ClassVar[str] = "docs/proofs/alerts.md, section 6"

    @property
    def windows(self) -> int | None:
        """Windows of the run, or of a period."""
        return self.counts.horizon

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        return self.counts.guarantee

    def margin(self, tests: int, windows: int = 1) -> float:
        """Return by how much means over so many windows are off at most in all tests, but with the plan's beta."""
        return self._tail_bound(self.plan.beta / (2 * tests), windows) / windows

    def distance(self, duration: int, tests: int) -> float:
        """Return how far numbers that give alerts for so many windows are from numbers that give none: see `choice`.

        At the threshold itself noise gives an alert in half of all windows, however long a number lasts.
        """
        return float(self._tail_bound(self.plan.beta / tests, 1) + 1)

    def stddev(self, windows: int = 1) -> float:
        """Return the standard deviation of the noise on a mean over so many windows."""
        if isinstance(self.counts, SharedCounts):
            return self.counts.stddev(windows)
        return self.counts.stddev(1) / math.sqrt(windows)

    @property
    def typical_stddev(self) -> float:
        """The geometric mean of the standard deviations of all rules."""
        rules = self.plan.rules
        return math.exp(math.fsum(math.log(self.stddev(rule.windows)) for rule in rules) / len(rules))

    def noisy(self, key: bytes, step: int, values: np.ndarray, noise: NoiseSource) -> np.ndarray:
        """Return the counts of one window of a key, int64 (n,), with noise; `noise` is that of the run."""
        if isinstance(self.counts, SharedCounts):
            return self.counts.release(key, step, values, noise)
        keys = np.arange(len(values), dtype=np.uint64)
        given = KeyedStep(step=1, keys=keys, counts=values)
        _, rows = self.counts.step(self.counts.initial_state(keys), given, noise.derive("counts", key, step))
        return rows.counts

    @property
    def stddevs(self) -> list[float]:
        """Standard deviations of the noise on the numbers of alerts, one for each number of windows of a rule."""
        return [self.stddev(windows) for windows in self._lengths]

    @property
    def _lengths(self) -> list[int]:
        """Numbers of windows that rules are about."""
        return sorted({rule.windows for rule in self.plan.rules})

    def enough(self, tail: float, windows: int) -> int:
        """Return the least threshold that a mean of noise over so many windows meets with such a probability."""
        return -(-(self._tail_bound(tail, windows) + 1) // windows)

    def claim(self, tests: int) -> str:
        """Say what is true of so many tests together, but with the plan's beta."""
        parts = []
        for windows in self._lengths:
            of = "" if windows == 1 else f", as a mean over {windows} windows in a row (of rules about {windows}),"
            margin = math.ceil(self.margin(tests, windows))
            parts.append(
                f"every number of people{of} that passes its threshold by more than {margin:,} gives an alert, and "
                "none that misses it by more does"
            )
        return f"{'; '.join(parts)}."

    def not_tested(self, *, renewed: bool) -> str:
        """Say in which windows rules are not tested, as sentences; `renewed`: whether everything starts afresh."""
        told, quiet = "", self.plan.quiet
        if self._lengths[-1] > 1:
            period = "run or period" if renewed else "run"
            told = f" A rule about n windows is tested from the n-th of the {period} on: its mean has none before it."
        if quiet:
            until = ", or until everything starts afresh" if renewed else ""
            told += (
                f" A rule is not tested in the {quiet:,} windows after an alert of it in the same stream{until}; a "
                "mean over several windows has their numbers all the same."
            )
        return told

    def lower_bound(self, windows: int) -> int:
        """Return by how much, with the plan's beta in one test, noise makes a gap summed over them too large."""
        return self._tail_bound(min(1.0 - 1e-9, 2 * self.plan.beta) / 2, windows)

    def _tail_bound(self, tail: float, windows: int) -> int:
        if isinstance(self.counts, SharedCounts):
            return self.counts.sum_tail_bound(windows, tail)
        noise = self.counts.law.noises[0]
        assert isinstance(noise, ToeplitzNoise)
        return noise.summed(windows).tail_bound(windows, tail)


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
