"""Heavy hitters by a monitor, which tests each item in each window, and charges people for reports or changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.item_monitors import StatusRows, ThresholdMonitor, UpItems
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import (
    HolderBatch,
    Keyed,
    Names,
    first_of_run,
    in_parts,
    named,
    rows_of,
)
from privstream.transforms.counts.transform import AtWindowEnds, CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow, ChargesInOrder, LimitCounter, SplitEvents
from privstream.transforms.questions.heavy_hitters import HeavyHittersParameters, with_streaks
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import CONTINUES, STARTED, STATUSES, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class ItemCounts:
    """The items that people have, increasing.

    Attributes:
        held: persons and their items.
        order: its rows, in the order of items.
        items: uint64, shape (n,): distinct.
        counts: int64, shape (n,): how many rows each of them has.
    """

    held: HolderBatch
    order: np.ndarray
    items: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, held: HolderBatch) -> ItemCounts:
        """Count."""
        order = np.argsort(held.items, kind="stable")
        first = np.flatnonzero(first_of_run(held.items[order]))
        return cls(held, order, held.items[order][first], np.diff(np.append(first, len(order))))

    def having(self, kept: np.ndarray) -> HolderBatch:
        """Return the persons that have some of the items, given by a mask."""
        return named(rows_of(self.held, np.sort(self.order[np.repeat(kept, self.counts)])))


class MonitorStage(StepFn):
    """Steps of a monitor, of all items or of a shard of them, in order; `domain` is the public list, if any."""

    monitor: Any
    domain: Domain | None = None
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")
    hits = Metrics.counter("privstream", "hits_published")
    limited = LimitCounter("charged")

    def holdings(self, step: int, held: HolderBatch, used: UserCounters) -> Holdings:
        """Return persons and items of a step, as the monitor numbers them, and count those with charges left."""
        number = self.steps.in_first_period(step)
        found = Holdings(step=number, users=held.users, items=held.items, ranks=held.ranks)
        active = found.active(used, self.monitor.max_hits)
        self.limited.add(len(active), len(active) - int(active.sum()))
        return found


class PruneItems(MonitorStage, state="prune_items"):
    """Per shard of items: keep the items that may still be hits. No state outlives a step.

    This changes no answer. The monitor counts only people who have charges left, so its count is at most the one taken
    here, and both compare with the same hidden threshold.
    """

    monitor: ThresholdMonitor

    @override
    def initial(self, key: bytes) -> None:
        return None

    @override
    def encode(self, state: None) -> list[bytes]:
        return []

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: None) -> Stepped:
        if not batches:
            return Stepped(None, (), unchanged)
        found, noise = ItemCounts.of(HolderBatch.read(batches)), self.noise_of(step)
        near = self.monitor.could_exceed(self.steps.in_first_period(step), found.items, found.counts, noise)
        self.tested.inc(len(near))
        self.kept.inc(int(near.sum()))
        return Stepped(None, [on_clock(step, part) for part in in_parts(found.having(near))], unchanged)


class DecideHits(ChargesInOrder, MonitorStage, state="decide_hits"):
    """Decide each step once, publish its hits, and log who was charged."""

    monitor: ThresholdMonitor

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        held = HolderBatch.read(batches)
        hits, charges, _ = self.monitor.decide(state, self.holdings(step, held, state), self.noise_of(step))
        self.hits.inc(len(hits.items))
        start, end = self.steps.bounds(step)
        counts = hits.counts.tolist() or [None] * len(hits.items)
        spread = self.monitor.count_error(OUTSIDE)
        rows = [
            HeavyHitter(
                *(start, end),
                held.names[item] if self.domain is None else self.domain[item],
                *with_interval(count, spread),
                start,
                STARTED,
            )
            for item, count in zip(hits.items.tolist(), counts, strict=True)
        ]
        return Stepped(state.add(charges), rows, charges.to_bytes if len(charges) else unchanged)


def with_interval(count: int | None, spread: int) -> tuple[float | None, float | None, float | None]:
    """Return a count and its interval of 95%, or nothing where there is no count."""
    return (None, None, None) if count is None else (float(count), max(0.0, count - spread), max(0.0, count + spread))


NOTHING = np.empty(0, np.uint64)


class PruneDownItems(MonitorStage, state="prune_down_items"):
    """Per shard of items: keep the items that may be up, or may go up. It remembers which may be up.

    This changes no answer. The monitor counts only people who have charges left, so its counts are at most those taken
    here, and both compare with the same hidden thresholds: what is up there may be up here. Everybody with such an item
    is kept, since its end charges them, however few they are.
    """

    monitor: ThresholdMonitor

    @override
    def initial(self, key: bytes) -> np.ndarray:
        return NOTHING

    @override
    def snapshot(self, state: np.ndarray) -> bytes:
        return pack("may be up", 2, {"items": state})

    @override
    def restore(self, data: bytes) -> np.ndarray:
        return np.asarray(unpack("may be up", 2, data)["items"])

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: np.ndarray) -> Stepped:
        found = ItemCounts.of(HolderBatch.read(batches))
        alike, noise = self.steps.in_first_period(step), self.noise_of(step)
        after = self.monitor.may_be_up(alike, state, found.items, found.counts, noise)
        kept = np.isin(found.items, np.union1d(state, after))
        self.tested.inc(len(kept))
        self.kept.inc(int(kept.sum()))
        parts = [on_clock(step, part) for part in in_parts(found.having(kept))]
        return Stepped(after, parts, unchanged if np.array_equal(state, after) else None)


@dataclass(frozen=True, eq=False)
class Change:
    """What a step changed, for the log: who was charged, what went up, with its name, and what went down."""

    charges: Charges
    started: UpItems
    names: Names
    ended: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        names = {f"names.{name}": column for name, column in vars(self.names).items()}
        started = {"started": self.started.items, "since": self.started.since}
        return pack("statuses", 1, {"charges": self.charges.to_bytes(), **started, "ended": self.ended, **names})

    @classmethod
    def from_bytes(cls, data: bytes) -> Change:
        """Decode what `to_bytes` wrote."""
        found: dict[str, Any] = unpack("statuses", 1, data)
        names = Names(*(found[f"names.{name}"] for name in ("items", "offsets", "text")))
        charges = Charges.from_bytes(found["charges"])
        return cls(charges, UpItems(found["started"], found["since"]), names, found["ended"])

    def __bool__(self) -> bool:
        return len(self.charges) + len(self.started) + len(self.ended) > 0


@dataclass(frozen=True, eq=False)
class Statuses:
    """How often each person has been charged; which items are up, and their names if there is no public list."""

    counters: UserCounters
    up: UpItems
    names: Names

    def after(self, change: Change) -> Statuses:
        """Return what follows a change."""
        if not change:
            return self
        counters = self.counters.add(change.charges)
        up = self.up.without(change.ended).joined(change.started)
        names = Names.union([self.names, change.names])
        return Statuses(counters, up, names.select(up.items) if len(names.items) and len(up) else Names.none())


class DecideStatuses(MonitorStage, state="decide_statuses"):
    """Decide each step once, publish what is up or ends, and log what has changed."""

    monitor: ThresholdMonitor

    @override
    def initial(self, key: bytes) -> Statuses:
        return Statuses(UserCounters(), UpItems.none(), Names.none())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Statuses) -> Stepped:
        held = HolderBatch.read(batches)
        holdings = self.holdings(step, held, state.counters)
        found, charges, up = self.monitor.decide(state.counters, holdings, self.noise_of(step), state.up)
        names = Names.union([state.names, held.names])
        self.hits.inc(len(found.items))
        rows = list(self._rows(step, found, names))
        started = up.without(state.up.items)
        known = names.select(started.items) if self.domain is None and len(started) else Names.none()
        change = Change(charges, started, known, state.up.without(up.items).items)
        return Stepped(state.after(change), rows, change.to_bytes if change else unchanged)

    def _rows(self, step: int, found: StatusRows, names: Names) -> Iterator[HeavyHitter]:
        """Write the items that are up or end; a count that nobody was charged for is none."""
        start, end = self.steps.bounds(step)
        later = step - self.steps.in_first_period(step)  # than the steps of the mechanism
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        for item, count, since, status in zip(*columns, strict=True):
            counted = count is not None and STATUSES[status] != CONTINUES
            yield HeavyHitter(
                *(start, end),
                names[item] if self.domain is None else self.domain[item],
                *with_interval(count if counted else None, self.monitor.count_error(OUTSIDE)),
                self.steps.bounds(since + later)[0],
                STATUSES[status],
            )

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Statuses:
        state = self.initial(key)
        for segment in segments:
            state = state.after(Change.from_bytes(segment))
        return state

    @override
    def encode(self, state: Statuses) -> list[bytes]:
        up = Change(Charges.none(), state.up, state.names, NOTHING)
        charges = state.counters.compact()
        parts = [charges.slice(i, i + SEGMENT) for i in range(0, len(charges), SEGMENT)]
        return [up.to_bytes(), *(Change(part, UpItems.none(), Names.none(), NOTHING).to_bytes() for part in parts)]


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by, domain=self.domain, positions=self.tested_domain is not None)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        bound = BoundPerWindow(
            steps=self.steps, noise=self.noise, items_per_step=self.max_per_window, item_shards=self.shards
        )
        return apply_dofn(closed, bound, Keyed)

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        common: dict[str, Any] = {"monitor": self.monitor, "steps": self.steps, "noise": self.noise}
        common["domain"] = self.tested_domain
        by_status = self.method == "status"
        prune, decide = (PruneDownItems, DecideStatuses) if by_status else (PruneItems, DecideHits)
        clocked = held | "ItemClocks" >> WithClock(self.steps, self.item_shards)
        near = apply_dofn(clocked, prune(**common, timer_offset=1), Keyed)
        rows = apply_dofn(near | "WithClock" >> WithClock(self.steps), decide(**common, timer_offset=2), HeavyHitter)
        if by_status:
            return rows
        at_ends = AtWindowEnds(self.steps, HeavyHitter, timer_offset=3, follow=with_streaks)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
