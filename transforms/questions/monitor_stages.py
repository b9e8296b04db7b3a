"""Heavy hitters and alerts by tests of numbers in each window: a monitor, which charges people, or sparse vector."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.mechanism import SEGMENT, Charges, UserCounters, pack, unpack
from privstream.mechanisms.monitor.monitor import (
    CONTINUES,
    NONE_UP,
    STARTED,
    Holdings,
    StatusRows,
    ThresholdMonitor,
    UpItems,
)
from privstream.mechanisms.selection.sparse_vector import Progress, SparseVector
from privstream.transforms.batches import NO_NAMES, HolderBatch, Names
from privstream.transforms.counters import count_dropped
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow, add_counts
from privstream.transforms.questions.by_counts import AlertRule, AlertsParameters, HeavyHittersParameters
from privstream.transforms.questions.running_stages import RunningAnswers
from privstream.transforms.row_types import STATUSES, interval
from privstream.transforms.rows import Alert
from privstream.transforms.timing.step_fn import NEVER, StepFn, Stepped, unchanged
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class Statuses:
    """How often each person has been charged; which items are up, and their names if there is no public list."""

    counters: UserCounters = field(default_factory=UserCounters)
    up: UpItems = NONE_UP
    names: Names = field(default=NO_NAMES)


def with_streaks(found: StatusRows, before: UpItems) -> StatusRows:
    """Let hits go on that were there in the step before."""
    again = np.isin(found.items, before.items)
    since = found.since.copy()
    since[again] = before.since[np.isin(before.items, found.items)]
    return replace(found, since=since, status=np.where(again, CONTINUES, STARTED).astype(np.uint8))


class DecideSteps(StepFn, state="decide_steps"):
    """Decide each step once, publish hits, or what is up or ends, and log who was charged and what is up.

    An entry of the log has charges, and what was reported, which is public.
    """

    monitor: ThresholdMonitor
    row_type: Any
    listed: Any = None
    """Public items, or what rows say of rules, by their number."""
    counter = "hits_published"

    @override
    def initial(self, key: bytes) -> Statuses:
        return Statuses()

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Statuses) -> Stepped:
        held, number = HolderBatch.read(batches), self.steps.in_first_period(step)
        holdings = Holdings(step=number, users=held.users, items=held.items, ranks=held.ranks)
        active = holdings.active(state.counters, self.monitor.max_hits)
        count_dropped("charged", len(active), int(np.count_nonzero(~active)))
        by_status = self.monitor.calibration == "status"
        up = state.up if by_status else NONE_UP
        found, charges, up = self.monitor.decide(state.counters, holdings, self.steps.renewed(self.noise, step), up)
        if not by_status:
            found = with_streaks(found, state.up)
            up = UpItems(found.items, found.since)
        names = held.names if not len(state.up) else Names.union([state.names, held.names])
        rows = list(self._rows(step, found, names if self.listed is None else self.listed, by_status))
        self.published.inc(len(rows))
        if not len(charges.keys) and np.array_equal(up.items, state.up.items):
            return Stepped(state, rows, unchanged)
        kept = names.select(up.items) if self.listed is None and len(up) else NO_NAMES
        after = Statuses(state.counters.add(charges), up, kept)
        return Stepped(after, rows, lambda: _entry(charges, after))

    def _rows(self, step: int, found: StatusRows, listed: Any, by_status: bool) -> Iterator[Any]:
        """Yield the rows of a step; nothing is paid for the count of what stays up."""
        window, before = self.steps.bounds(step), step - self.steps.in_first_period(step)
        spread = self.monitor.count_error(OUTSIDE)
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        for item, count, since, status in zip(*columns, strict=True):
            what = listed[item] if isinstance(listed[item], tuple) else (listed[item],)
            hidden = count is None or (by_status and status == CONTINUES)
            number = (None, None, None) if hidden else (float(count), *interval(float(count), spread))
            yield self.row_type(*window, *what, *number, self.steps.bounds(since + before)[0], STATUSES[status])

    @override
    def decode(self, segments: list[bytes]) -> Statuses:
        found: list[dict[str, Any]] = [unpack("statuses", 1, segment) for segment in segments]
        last = found[-1]
        names = Names(*(last[f"names.{name}"] for name in ("items", "offsets", "text")))
        counters = UserCounters.of(Charges.from_bytes(one["charges"]) for one in found)
        return Statuses(counters, UpItems(last["items"], last["since"]), names)

    @override
    def encode(self, state: Statuses) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges.keys)), SEGMENT)
        return [_entry(charges.slice(start, start + SEGMENT), state) for start in starts]


def _entry(charges: Charges, state: Statuses) -> bytes:
    """Encode one entry of the log."""
    names = {f"names.{name}": column for name, column in vars(state.names).items()}
    return pack("statuses", 1, {"charges": charges.to_bytes(), **vars(state.up), **names})


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _limits(self) -> tuple[BoundPerWindow]:
        return (BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=self.max_per_window),)

    @override
    def _last(self) -> DecideSteps:
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        given: dict[str, Any] = {"monitor": self.monitor, "noise": self.noise, "listed": self.domain}
        return DecideSteps(steps=self.steps, timer_offset=1, row_type=self.row_type, counter=self.counter, **given)


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
        signs, thresholds = np.array([rule.condition[:2] for rule in self.listed]).T
        counts = signs * add_counts(batches, len(self.listed))
        after, answers = self.mechanism.step(
            state.progress, counts, self.steps.renewed(self.noise, step), thresholds=signs * thresholds
        )
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
        sign, threshold, *_ = rule.condition
        bound = threshold + sign * math.floor(least * 10.0**digits) / 10.0**digits
        ends = (max(0.0, bound), None) if sign > 0 else (None, bound)
        estimate = round(threshold + sign * gap, digits)
        status = STATUSES[STARTED if since == step else CONTINUES]
        return rule.name, float(threshold), estimate, *ends, self.steps.bounds(since)[0], status


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
        listed = [(rule.name, float(rule.condition.threshold)) for rule in self.rules]
        return DecideSteps(**last, monitor=self.monitor, listed=listed, row_type=self.row_type, counter=self.counter)
