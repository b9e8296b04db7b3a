"""Heavy hitters by the status monitor: items that are up stay so, and people are charged for changes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.monitor.item_monitors import StatusMonitor, StatusRows, UpItems
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import Keyed, Names, in_parts
from privstream.transforms.heavy_hitters.by_monitor import ItemCounts, MonitorStage, joined, with_interval
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters
from privstream.transforms.rows import CONTINUES, STATUSES, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import Stepped, unchanged
from typing_extensions import override

NOTHING = np.empty(0, np.uint64)


class PruneDownItems(MonitorStage, state="prune_down_items"):
    """Per shard of items: keep the items that may be up, or may go up. It remembers which may be up.

    This changes no answer. The monitor counts only people who have charges left, so its counts are at most those taken
    here, and both compare with the same hidden thresholds: what is up there may be up here. Everybody with such an item
    is kept, since its end charges them, however few they are.
    """

    monitor: StatusMonitor
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")

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
        found = ItemCounts.of(joined(batches))
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

    monitor: StatusMonitor
    hits = Metrics.counter("privstream", "hits_published")

    @override
    def initial(self, key: bytes) -> Statuses:
        return Statuses(UserCounters(), UpItems.none(), Names.none())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Statuses) -> Stepped:
        held = joined(batches)
        holdings = self.holdings(step, held)
        self.count_charged(step, holdings.active(state.counters, self.monitor.max_hits))
        found, up, charges = self.monitor.decide(state.counters, state.up, holdings, self.noise_of(step))
        names = Names.union([state.names, held.names])
        self.hits.inc(len(found.items))
        rows = list(self._rows(step, found, names))
        change = self._change(state.up, up, names, charges)
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

    def _change(self, before: UpItems, after: UpItems, names: Names, charges: Charges) -> Change:
        """Return what a step changed."""
        started = after.without(before.items)
        known = names.select(started.items) if self.domain is None and len(started) else Names.none()
        return Change(charges, started, known, before.without(after.items).items)

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


def publish_by_status(
    asked: HeavyHittersParameters, held: PCollection[Any], apply_dofn: ApplyDoFn, *, shards: Iterable[bytes]
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    _ = asked.monitor.calibrated  # once, at launch; workers receive it
    common: dict[str, Any] = {
        "monitor": asked.monitor,
        "steps": asked.steps,
        "noise": asked.noise,
        "domain": asked.tested_domain,
    }
    clocked = held | "ItemClocks" >> WithClock(asked.steps, shards)
    candidates = apply_dofn(clocked, PruneDownItems(**common, timer_offset=1), Keyed)
    decide = DecideStatuses(**common, timer_offset=2)
    return apply_dofn(candidates | "WithClock" >> WithClock(asked.steps), decide, HeavyHitter)
