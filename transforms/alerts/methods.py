"""The methods of alerts: what is tested, what each promises, and what it takes to be sure; needs no Beam."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from privstream.mechanisms.accuracy import Limit
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.keyed_counts.key_noise import ToeplitzNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.views.smoothing import WITHOUT_MODEL, steady_part
from privstream.transforms.alerts.rules import (
    AlertRule,
)
from privstream.transforms.events.coverage import charged_out
from scipy import special

BETTER = 0.75
"""A method without a number in each row must need so much less than one that has them."""

SHARES = special.expit(np.linspace(-14.0, 5.0, 58))
"""Probabilities of an alert, of numbers that are ever nearer to what gives one, or beyond it."""

UNSURE = 0.1
"""A number is too near to a threshold where its window is wrong more often."""

TENTH = -float(special.ndtri(UNSURE))
"""Standard deviations of a normal error that so many are beyond, to one side."""

BY_MODEL = (
    "Numbers are smoothed over the windows of the file before they decide, and bounds rest on a model: numbers stay "
    "near levels that move."
)
"""What is said of the alerts of a file."""

BY_NAME = "sparse_vector, which stops when its budget is spent, is taken by its name alone"


@dataclass(frozen=True, kw_only=True)
class AlertPlan:
    """What is tested, and with which budget: all of it is public.

    Attributes:
        rules: the rules, in their order.
        streams: the streams, in their order.
        mechanism: that of one run, for integers or real numbers.
        by_stream: whether each stream has runs of its own.
        by_rule: whether each rule has runs of its own.
        quiet: windows after an alert in which its rule is not tested in its stream.
        beta: failure probability of each lower bound.
    """

    rules: tuple[AlertRule, ...]
    streams: tuple[str, ...]
    mechanism: AdaptiveSparseVector
    by_stream: bool
    by_rule: bool
    quiet: int
    beta: float

    @property
    def groups(self) -> list[np.ndarray]:
        """The rules, by number, of each run of a key."""
        everything = np.arange(len(self.rules))
        return list(everything[:, None]) if self.by_rule else [everything]

    def streams_of(self, key: bytes) -> tuple[str, ...]:
        """Return the streams whose tests are made under a key."""
        return (key.decode(),) if self.by_stream else self.streams

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, as text."""
        return self.streams if self.by_stream else ("",)

    def enough(self, tail: float, windows: int) -> int:
        """Return the least threshold that sparse vector meets with such a probability in a test with nobody."""
        return self.mechanism.least_threshold(tail)

    def tests(self, windows: int) -> int:
        """Return how many tests one run makes in so many windows at most."""
        return windows * (1 if self.by_rule else len(self.rules)) * (1 if self.by_stream else len(self.streams))


@dataclass(frozen=True, kw_only=True)
class CountedAlerts:
    """A method of `SparseVectorAlerts`. All noise is paid for before the run: no alert costs anything.

    Attributes:
        plan: the rules, the streams and what was asked of the tests.
        counts: of people for each rule, of all streams and windows together.
        smoothed_over: windows of a file over which numbers are smoothed before they decide; 0 where each window is
            decided by its own number.
    """

    plan: AlertPlan
    counts: KeyedCounts
    smoothed_over: int = 0

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
        own = self._tail_bound(self.plan.beta / (2 * tests), windows) / windows
        return own + (self.moved(windows) if self.smoothed_over else 0.0)

    def moved(self, windows: int = 1) -> float:
        """Return by how much smoothing moves a mean over so many windows at most, whatever its model says."""
        return WITHOUT_MODEL * self.stddevs_apart[0] / math.sqrt(windows)

    def steady_stddev(self, windows: int = 1) -> float:
        """Return the standard deviation of the error of a smoothed mean over so many windows, of a number that stays
        what it is."""
        own, common = self.stddevs_apart
        return math.hypot(own * steady_part(self.smoothed_over), common)

    def distance(self, duration: int, tests: int) -> float:
        """Return how far numbers that give alerts for so many windows are from numbers that give none: see `choice`.

        At the threshold itself noise gives an alert in half of all windows, however long a number lasts.
        """
        return float(self._tail_bound(self.plan.beta / tests, 1) + 1)

    @property
    def stddevs_apart(self) -> tuple[float, float]:
        """Standard deviations of the noise of a count by itself, and of that which all counts have in common."""
        return _stddevs(self.counts)

    def stddev(self, windows: int = 1) -> float:
        """Return the standard deviation of the noise on a mean over so many windows."""
        return _stddev(self.counts, windows)

    @property
    def typical_stddev(self) -> float:
        """The geometric mean of the standard deviations of all rules."""
        rules = self.plan.rules
        return math.exp(math.fsum(math.log(self.stddev(rule.windows)) for rule in rules) / len(rules))

    def noisy(self, key: bytes, step: int, values: np.ndarray, noise: NoiseSource) -> np.ndarray:
        """Return the counts of one window of a key, int64 (n,), with noise; `noise` is that of the run."""
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
        """Return the least threshold that a mean of noise over so many windows meets with such a probability.

        A smoothed one meets it where it is so far off, or where that of the window itself is so far off that smoothing
        must leave it there.
        """
        own = self._tail_bound(tail, windows) + 1
        if not self.smoothed_over:
            return -(-own // windows)
        steady = -float(special.ndtri(tail)) * self.steady_stddev(windows)
        return math.ceil(max(steady, own / windows - self.moved(windows)))

    @property
    def near(self) -> str:
        """How near to a threshold one cannot tell, as a sentence."""
        parts = []
        for windows in self._lengths:
            own = (self._tail_bound(UNSURE, windows) + 1) / windows
            steady = TENTH * self.steady_stddev(windows) if self.smoothed_over else None
            parts.append((windows, own + self.moved(windows) * bool(self.smoothed_over), steady))
        return near_in_words(parts, " people")

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
        return f"{'; '.join(parts)}. {f'{BY_MODEL} ' * bool(self.smoothed_over)}{self.near}"

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

    def lower_bounds(self, gaps: np.ndarray, windows: int) -> np.ndarray:
        """Return what gaps of alerts, summed over so many windows, are at least without noise, float64; -inf for
        nothing.

        Of the alerts of any number of people at most the plan's beta have a wrong bound: docs/proofs/alerts.md, section
        5.

        Args:
            gaps: sums by which noisy counts pass the threshold, whole numbers >= 0, shape (n,).
            windows: of a sum.
        """
        return selected_bounds(gaps, *_reaches(self.counts, self.plan.beta, windows))

    def smoothed_bounds(self, gaps: np.ndarray, stddevs: np.ndarray) -> np.ndarray:
        """Return the same of smoothed numbers whose errors have these standard deviations, as the model says."""
        beyond, within = -special.ndtri(self.plan.beta * SHARES), -special.ndtri(SHARES)
        found: np.ndarray = stddevs * selected_bounds(gaps / stddevs, beyond, within)
        return found

    def _tail_bound(self, tail: float, windows: int) -> int:
        noise = self.counts.law.noises[0]
        assert isinstance(noise, ToeplitzNoise)
        return noise.summed(windows).tail_bound(windows, tail)


def near_in_words(parts: Sequence[tuple[int, float, float | None]], unit: str = "") -> str:
    """Say how near to a threshold more than one window in ten is decided wrongly.

    Args:
        unit: of numbers, after a space.
        parts: for each number of windows that a mean is over: this number; how many people for a window that differs
            from all others; and for numbers that stay what they are, or None if that makes no difference.
    """
    (_, alone, still), *others = sorted(parts)
    differs = "" if still is None else f" ({math.ceil(alone):,} where a window differs from the others)"
    number = math.ceil(alone if still is None else still)
    told = f"Within {number:,}{unit} of a threshold{differs} more than one window in ten is decided wrongly"
    for windows, alone, still in others:
        both = f"{math.ceil(alone):,}" if still is None else f"{math.ceil(still):,} ({math.ceil(alone):,})"
        told += f"; of means over {windows:,} windows, within {both}"
    return f"{told}."


def selected_bounds(gaps: np.ndarray, beyond: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Return bounds on gaps of alerts, float64 (n,), -inf for none: docs/proofs/alerts.md, section 5.

    Args:
        gaps: by how much noisy numbers pass their threshold, >= 0, shape (n,).
        beyond: what noise reaches with at most beta times each of some probabilities, shape (p,).
        within: what it reaches with at least each probability itself, shape (p,).
    """
    missed = beyond - np.asarray(gaps)[:, None]  # a number that misses its threshold by so much has such a gap rarely
    found: np.ndarray = -np.where(missed <= within, missed, np.inf).min(axis=1)
    return found


@lru_cache(maxsize=256)
def _reaches(counts: KeyedCounts, beta: float, windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what sums of noise over so many windows are beyond and within, as `selected_bounds` takes them.

    Of several Laplace noises, one is so large, and the sum of the others at least 0, with half the probability.
    """
    noise = counts.law.noises[0]
    if not noise.is_laplace:
        stddev = _stddev(counts, windows) * windows
        return windows - stddev * special.ndtri(beta * SHARES), -stddev * special.ndtri(SHARES)
    assert isinstance(noise, ToeplitzNoise)
    added, half = noise.summed(windows), 1 if windows == 1 else 2
    beyond = [added.tail_bound(windows, beta * share) + 1 for share in SHARES.tolist()]
    within = [
        -added.tail_bound(windows, 1 - share) if share >= 0.5 else noise.tail_bound(1, half * share)
        for share in SHARES.tolist()
    ]
    return np.array(beyond), np.array(within)


def _stddevs(counts: KeyedCounts) -> tuple[float, float]:
    """Return standard deviations of the noise of a count by itself, and of that which all counts have in common."""
    return counts.stddev(1), 0.0


def _stddev(counts: KeyedCounts, windows: int) -> float:
    """Return the standard deviation of the noise of a mean of so many counts."""
    own, common = _stddevs(counts)
    return math.sqrt(own**2 / windows + common**2)


def why_stopped(changes: int) -> str:
    """Say after how many starts and ends of alerts rules are no longer tested that would be met for want of people."""
    many = "start or end of an alert" if changes == 1 else "starts and ends of alerts"
    return (
        f"Starts and ends charge people, who in the end no longer count: after {changes:,} {many}, of all rules "
        "together, those with at_most are no longer tested (stopped)."
    )


@dataclass(frozen=True, kw_only=True)
class StatusAlerts:
    """A method of `SparseVectorAlerts`: each stream has a monitor of its rules.

    Attributes:
        plan: the rules, the streams and what was asked of the tests.
        monitor: of one stream.
        windows: of the run, or of a period; None for no end.
    """

    plan: AlertPlan
    monitor: RuleMonitor
    windows: int | None

    proof: ClassVar[str] = "docs/proofs/status_monitor.md, section 6"

    def claim(self, tests: int) -> str:
        """Say what is true of so many tests together, but with the plan's beta."""
        margin = self.monitor.margin_in(tests)
        return (
            f"an alert starts where a number of people passes its threshold by more than {margin:,}, and nowhere where "
            f"the number misses it by more; it ends where the number misses until (without one, the threshold) by "
            f"more than {margin:,}, and nowhere where the number passes that by more.{' ' * bool(self.note)}{self.note}"
        )

    @property
    def charges(self) -> tuple[Limit, ...]:
        """The limit by which people who were charged no longer count."""
        if self.windows is not None and self.monitor.max_hits >= self.windows * len(self.plan.rules):
            return ()
        return (charged_out(self.monitor.max_hits, "for starts and ends of alerts"),)

    @property
    def note(self) -> str:
        """What is to be said of rules that stop."""
        changes = self.monitor.changes_for_few
        return why_stopped(changes) if changes is not None and self.charges else ""

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        return self.monitor.guarantee

    def margin(self, tests: int, windows: int = 1) -> float:
        """Return by how much counts must pass a threshold in so many tests together, but with the plan's beta."""
        return float(self.monitor.margin_in(tests))

    def distance(self, duration: int, tests: int) -> float:
        """Return how far numbers that give alerts for so many windows are from numbers that give none: see `choice`.

        An alert must have started within the first half of the windows. It then stays, as long as numbers pass the
        threshold: where they miss it, alerts end sooner than they start.
        """
        return self.monitor.distance(tests, first=duration // 2 + 1)

    def enough(self, tail: float, windows: int) -> int:
        """Return the least threshold at which an alert starts with such a probability in a window with nobody."""
        return self.monitor.start_beyond(tail)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on counts of changes."""
        return self.monitor.count_stddev

    @property
    def stddevs(self) -> list[float]:
        """The same as a list, as of methods with several."""
        return [self.stddev]


def choose_lasting(
    makers: Mapping[str, Callable[[], CountedAlerts | StatusAlerts | None]], plan: AlertPlan
) -> tuple[str, CountedAlerts | StatusAlerts]:
    """Return the method that "auto" takes, by its name: "counts" or "status".

    Compared is how far apart two kinds of numbers must be, between which a threshold lies: usual ones, which with
    probability 1 - beta give no alert in the whole run, and those that last d windows and with probability one half
    give an alert in at least half of them; as the mean of its logarithm over d = 1, 4, 16, .. up to all windows. Status
    has numbers only where an alert starts or ends, so it must be a quarter better. A rule with at_most stops when
    people may be used up: then status is not taken, unless a rule has `until`, which asks for it. All this depends on
    public parameters alone.

    Args:
        makers: what makes each method; raises a ValueError where its parameters do not allow it.
        plan: what is tested.

    Raises:
        ValueError: neither can answer.
    """
    found: dict[str, CountedAlerts | StatusAlerts] = {}
    reasons = []
    ends = any(rule.until is not None for rule in plan.rules)
    for name in ("status", "counts") if ends else ("counts", "status"):
        try:
            method = makers[name]()
        except ValueError as reason:
            reasons.append(str(reason))
            continue
        if isinstance(method, StatusAlerts) and method.monitor.changes_for_few and not ends:
            reasons.append("with a rule that has at_most, status is taken by its name alone")
        elif method is not None:
            found[name] = method
    if not found:
        raise ValueError("; ".join([*reasons, BY_NAME]))
    if len(found) == 1:
        return found.popitem()
    return min(found.items(), key=lambda item: _needed(item[1], plan))


def _needed(method: CountedAlerts | StatusAlerts, plan: AlertPlan) -> float:
    """Return the mean of logarithms by which methods are compared."""
    windows = method.windows or 1
    tests = plan.tests(windows)
    durations = [4**power for power in range(windows.bit_length()) if 4**power <= windows]
    logs = [math.log(max(1.0, method.distance(duration, tests))) for duration in durations]
    return math.fsum(logs) / len(logs) - (math.log(BETTER) if isinstance(method, StatusAlerts) else 0.0)
