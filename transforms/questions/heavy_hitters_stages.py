"""Heavy hitters by a monitor, which tests each item in each window, and charges people for reports or changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.item_monitors import StatusRows, ThresholdMonitor, UpItems
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import HolderBatch, Keyed, Names
from privstream.transforms.counts.counted import with_streaks
from privstream.transforms.counts.transform import AtWindowEnds, CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow, ChargesInOrder, LimitCounter, SplitEvents
from privstream.transforms.questions.heavy_hitters import HeavyHittersParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CONTINUES, STARTED, STATUSES, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override


class Told(NamedTuple):
    """What a monitor says of an item, or a rule, in a window."""

    item: int
    number: tuple[float | None, float | None, float | None]
    since: Timestamp
    status: str


class MonitorStage(StepFn):
    """Steps of a monitor, in order."""

    monitor: Any
    limited = LimitCounter("charged")

    def holdings(self, step: int, held: HolderBatch, used: UserCounters) -> Holdings:
        """Return persons and items of a step, as the monitor numbers them, and count those with charges left."""
        number = self.steps.in_first_period(step)
        found = Holdings(step=number, users=held.users, items=held.items, ranks=held.ranks)
        active = found.active(used, self.monitor.max_hits)
        self.limited.add(len(active), len(active) - int(active.sum()))
        return found

    def numbered(self, count: int | None) -> tuple[float | None, float | None, float | None]:
        """Return a count and its interval of 95%, or nothing where there is no count."""
        if count is None:
            return None, None, None
        lower, upper = interval(float(count), self.monitor.count_error(OUTSIDE))
        return float(count), lower, upper


class StatusStage(MonitorStage):
    """Steps after which something is up. Entries of the log have charges, and what is up after them, which is public.

    A state has `counters` of who was charged, and whatever else a subclass writes.
    """

    def told(self, step: int, found: StatusRows) -> Iterator[Told]:
        """Yield what is up or ends; a count that nobody was charged for is none."""
        later = step - self.steps.in_first_period(step)  # than the steps of the mechanism
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        for item, count, since, status in zip(*columns, strict=True):
            counted = count if STATUSES[status] != CONTINUES else None
            yield Told(item, self.numbered(counted), self.steps.bounds(since + later)[0], STATUSES[status])

    @abstractmethod
    def written(self, state: Any) -> dict[str, Any]:
        """Return what a state has beside the counters, as plain values."""

    @abstractmethod
    def read(self, counters: UserCounters, fields: dict[str, Any]) -> Any:
        """Return the state of which this was written."""

    def entry(self, charges: Charges, state: Any) -> bytes:
        """Encode one entry of the log."""
        return pack("statuses", 1, {"charges": charges.to_bytes(), **self.written(state)})

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Any:
        if not segments:
            return self.initial(key)
        found: list[dict[str, Any]] = [unpack("statuses", 1, segment) for segment in segments]
        return self.read(UserCounters.of(Charges.from_bytes(one["charges"]) for one in found), found[-1])

    @override
    def encode(self, state: Any) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges)), SEGMENT)
        return [self.entry(charges.slice(start, start + SEGMENT), state) for start in starts]


class DecideHits(ChargesInOrder, MonitorStage, state="decide_hits"):
    """Decide each step once, publish its hits, and log who was charged."""

    monitor: ThresholdMonitor
    domain: Domain | None = None
    """The public list, if items are numbered by it."""
    counter = "hits_published"

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        held = HolderBatch.read(batches)
        hits, charges, _ = self.monitor.decide(state, self.holdings(step, held, state), self.noise_of(step))
        self.published.inc(len(hits.items))
        start, end = self.steps.bounds(step)
        names = held.names if self.domain is None else self.domain
        counts = hits.counts.tolist() or [None] * len(hits.items)
        rows = [
            HeavyHitter(start, end, names[item], *self.numbered(count), start, STARTED)
            for item, count in zip(hits.items.tolist(), counts, strict=True)
        ]
        return Stepped(state.add(charges), rows, charges.to_bytes if len(charges) else unchanged)


@dataclass(frozen=True, eq=False)
class Statuses:
    """How often each person has been charged; which items are up, and their names if there is no public list."""

    counters: UserCounters
    up: UpItems
    names: Names


class DecideStatuses(StatusStage, state="decide_statuses"):
    """Decide each step once, publish what is up or ends, and log who was charged and what is up."""

    monitor: ThresholdMonitor
    domain: Domain | None = None
    counter = "hits_published"

    @override
    def initial(self, key: bytes) -> Statuses:
        return Statuses(UserCounters(), UpItems.none(), Names.none())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Statuses) -> Stepped:
        held = HolderBatch.read(batches)
        holdings = self.holdings(step, held, state.counters)
        found, charges, up = self.monitor.decide(state.counters, holdings, self.noise_of(step), state.up)
        names = Names.union([state.names, held.names])
        listed = names if self.domain is None else self.domain
        start, end = self.steps.bounds(step)
        rows = [
            HeavyHitter(start, end, listed[one.item], *one.number, one.since, one.status)
            for one in self.told(step, found)
        ]
        self.published.inc(len(rows))
        if not len(charges) and np.array_equal(up.items, state.up.items):
            return Stepped(state, rows, unchanged)
        kept = names.select(up.items) if self.domain is None and len(up) else Names.none()
        after = Statuses(state.counters.add(charges), up, kept)
        return Stepped(after, rows, lambda: self.entry(charges, after))

    @override
    def written(self, state: Statuses) -> dict[str, Any]:
        return {**vars(state.up), **{f"names.{name}": column for name, column in vars(state.names).items()}}

    @override
    def read(self, counters: UserCounters, fields: dict[str, Any]) -> Statuses:
        names = Names(*(fields[f"names.{name}"] for name in ("items", "offsets", "text")))
        return Statuses(counters, UpItems(fields["items"], fields["since"]), names)


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by, domain=self.domain, positions=self.tested_domain is not None)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        bound = BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=self.max_per_window)
        return apply_dofn(closed, bound, Keyed)

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        given: dict[str, Any] = {"monitor": self.monitor, "steps": self.steps, "noise": self.noise}
        by_status = self.method == "status"
        decide = (DecideStatuses if by_status else DecideHits)(**given, domain=self.tested_domain, timer_offset=1)
        clocked = held | "WithClock" >> WithClock(self.steps)
        rows = apply_dofn(clocked, decide, HeavyHitter)
        if by_status:
            return rows
        at_ends = AtWindowEnds(self.steps, HeavyHitter, timer_offset=2, follow=with_streaks)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
