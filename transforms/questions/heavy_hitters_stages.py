"""Heavy hitters by a monitor, which tests each item in each window, and charges people for reports or changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.monitor import (
    CONTINUES,
    NONE_UP,
    STARTED,
    Holdings,
    StatusRows,
    ThresholdMonitor,
    UpItems,
)
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT, Charges, UserCounters
from privstream.transforms.batches import HolderBatch, Names
from privstream.transforms.counters import count_dropped
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow
from privstream.transforms.questions.heavy_hitters import HeavyHittersParameters
from privstream.transforms.row_types import STATUSES, interval
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class Statuses:
    """How often each person has been charged; which items are up, and their names if there is no public list."""

    counters: UserCounters = field(default_factory=UserCounters)
    up: UpItems = NONE_UP
    names: Names = field(default_factory=Names.none)


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
        found, charges, up = self.monitor.decide(state.counters, holdings, self.noise_of(step), up)
        if not by_status:
            found = with_streaks(found, state.up)
            up = UpItems(found.items, found.since)
        names = held.names if not len(state.up) else Names.union([state.names, held.names])
        rows = list(self._rows(step, found, names if self.listed is None else self.listed, by_status))
        self.published.inc(len(rows))
        if not len(charges) and np.array_equal(up.items, state.up.items):
            return Stepped(state, rows, unchanged)
        kept = names.select(up.items) if self.listed is None and len(up) else Names.none()
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
    def decode(self, key: bytes, segments: list[bytes]) -> Statuses:
        if not segments:
            return self.initial(key)
        found: list[dict[str, Any]] = [unpack("statuses", 1, segment) for segment in segments]
        last = found[-1]
        names = Names.unpacked(last)
        counters = UserCounters.of(Charges.from_bytes(one["charges"]) for one in found)
        return Statuses(counters, UpItems(last["items"], last["since"]), names)

    @override
    def encode(self, state: Statuses) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges)), SEGMENT)
        return [_entry(charges.slice(start, start + SEGMENT), state) for start in starts]


def _entry(charges: Charges, state: Statuses) -> bytes:
    """Encode one entry of the log."""
    return pack("statuses", 1, {"charges": charges.to_bytes(), **vars(state.up), **state.names.packed()})


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _limits(self) -> tuple[BoundPerWindow]:
        return (BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=self.max_per_window),)

    @override
    def _last(self) -> DecideSteps:
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        given: dict[str, Any] = {"monitor": self.monitor, "noise": self.noise, "listed": self.domain}
        return DecideSteps(steps=self.steps, timer_offset=1, row_type=self.row_type, counter=self.counter, **given)
