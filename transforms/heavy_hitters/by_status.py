"""Heavy hitters by the status monitor: items that are up stay so, and people are charged for changes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.status_monitor import StatusMonitor, StatusRows, UpItems
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import (
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    seal_encoded,
    seal_parts,
)
from privstream.transforms.heavy_hitters.by_monitor import ItemCounts, MonitorStage, with_interval
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters
from privstream.transforms.people.bounding import HoldingsInOrder
from privstream.transforms.rows import CONTINUES, STATUSES, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clocked import ONE_KEY, AtWindowEnds
from privstream.transforms.timing.ordered import Handled
from typing_extensions import override

NO_ITEMS = np.empty(0, np.uint64)
NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class MayBeUp:
    """The items of a shard that may be up before a step, which is the one after the last in which somebody had one."""

    step: int
    items: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("may be up", 1, {"step": self.step, "items": self.items})

    @classmethod
    def from_bytes(cls, data: bytes) -> MayBeUp:
        """Decode what `to_bytes` wrote."""
        found: dict[str, Any] = unpack("may be up", 1, data)
        return cls(found["step"], found["items"])


class PruneDownItems(HoldingsInOrder, MonitorStage, state="prune_down_items"):
    """Per shard of items: keep the items that may be up, or may go up.

    This changes no answer. The monitor counts only people who have charges left, so its counts are at most those taken
    here, and both compare with the same hidden thresholds: what is up there may be up here. Everybody with such an item
    is kept, since its end charges them, however few they are.

    The log has, of each step in which something may be up, or no longer may, what may be up after it.
    """

    monitor: StatusMonitor
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: MayBeUp) -> Handled:
        found = ItemCounts.of(HolderBatch.join([batch for _, batch in batches]))
        alike, noise = self.steps.in_first_period(step), self.steps.renewed(self.noise, step)
        before = self._before(state, alike, noise)
        after = self.monitor.may_be_up(alike, before, found.items, found.counts, noise)
        kept = np.isin(found.items, np.union1d(before, after))
        self.tested.inc(len(kept))
        self.kept.inc(int(kept.sum()))
        following, outputs = MayBeUp(alike + 1, after), list[Keyed]()
        if kept.any() or not len(found.items):  # a step without events is decided too
            to = batches[0][0]
            outputs = [(ONE_KEY.encode(), part) for part in seal_parts(to, found.having(kept))]
        changed = len(before) or len(after)
        return Handled(following, following.to_bytes() if changed else None, outputs)

    def _before(self, state: MayBeUp, step: int, noise: NoiseSource) -> np.ndarray:
        """Return what may be up before a step, with items that went up while nobody here had anything."""
        items, at = state.items, self.monitor.next_absent_hit(state.step, step, noise)
        while at is not None:
            items = self.monitor.may_be_up(at, items, NO_ITEMS, NO_COUNTS, noise)
            at = self.monitor.next_absent_hit(at + 1, step, noise)
        return items

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> MayBeUp:
        return MayBeUp.from_bytes(segments[-1]) if segments else MayBeUp(self.steps.first or 0, NO_ITEMS)

    @override
    def encode(self, state: MayBeUp) -> list[bytes]:
        return [state.to_bytes()]


def by_shard(element: Keyed) -> Keyed:
    """Seal what people have in one step of one shard of items, under the shard."""
    key = StepKey.from_bytes(element[0])
    return key._replace(step=0).to_bytes(), seal_encoded(key, element[1])


NOTHING = np.empty(0, np.uint64)


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
    """Decide each step once, publish what is up or ends, and log what has changed.

    While anything is up every step is decided, with or without data: which ones are is as public as the statuses.
    """

    monitor: StatusMonitor
    hits = Metrics.counter("privstream", "hits_published")

    @override
    def follows(self, state: Statuses) -> bool:
        return len(state.up) > 0

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Statuses) -> Handled:
        held = HolderBatch.join([batch for _, batch in batches])
        holdings = Holdings(step=self.steps.in_first_period(step), users=held.users, items=held.items, ranks=held.ranks)
        noise = self.steps.renewed(self.noise, step)
        self.count_charged(step, holdings.active(state.counters, self.monitor.max_hits))
        found, up, charges = self.monitor.decide(state.counters, state.up, holdings, noise)
        names = Names.union([state.names, held.names])
        self.hits.inc(len(found.items))
        rows = list(self._rows(step, found, names))
        change = self._change(state.up, up, names, charges)
        return Handled(state.after(change), change.to_bytes() if change else None, rows)

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

    def _change(self, before: UpItems, after: UpItems, names: Names, charges: Charges) -> Change:
        """Return what a step changed."""
        started = after.without(before.items)
        known = names.select(started.items) if self.domain is None and len(started) else Names.none()
        return Change(charges, started, known, before.without(after.items).items)

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Statuses:
        state = Statuses(UserCounters(), UpItems.none(), Names.none())
        for segment in segments:
            state = state.after(Change.from_bytes(segment))
        return state

    @override
    def encode(self, state: Statuses) -> list[bytes]:
        up = Change(Charges.none(), state.up, state.names, NOTHING)
        charges = state.counters.compact()
        parts = [charges.slice(i, i + SEGMENT) for i in range(0, len(charges), SEGMENT)]
        return [up.to_bytes(), *(Change(part, UpItems.none(), Names.none(), NOTHING).to_bytes() for part in parts)]


def publish_by_status(
    asked: HeavyHittersParameters, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    _ = asked.monitor.calibrated  # once, at launch; workers receive it
    common: dict[str, Any] = {
        "monitor": asked.monitor,
        "steps": asked.steps,
        "noise": asked.noise,
        "domain": asked.tested_domain,
    }
    sealed = held | "ByShard" >> beam.Map(by_shard).with_output_types(Keyed)
    candidates = apply_dofn(sealed, PruneDownItems(**common, timer_offset=timer_offset), Keyed)
    rows = apply_dofn(candidates, DecideStatuses(**common, timer_offset=timer_offset + 1), HeavyHitter)
    at_ends = AtWindowEnds(asked.steps, HeavyHitter, timer_offset=timer_offset + 2)
    return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
