"""Heavy hitters by a threshold monitor, which tests each item in each window, and charges people for reports alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Holdings, UserCounters
from privstream.mechanisms.monitor.item_monitors import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    HolderBatch,
    Keyed,
    decode,
    first_of_run,
    in_parts,
    named,
    rows_of,
)
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters, with_streaks
from privstream.transforms.people.bounding import ChargesInOrder, LimitCounter
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import STARTED, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from privstream.transforms.timing.steps import Steps
from privstream.transforms.timing.window_ends import AtWindowEnds
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class ItemCounts:
    """The items that people have, increasing.

    Attributes:
        held: who has what.
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
        """Return who has some of the items, given by a mask."""
        return named(rows_of(self.held, np.sort(self.order[np.repeat(kept, self.counts)])))


class MonitorStage(StepFn):
    """Steps of a monitor, of all items or of a shard of them, in order.

    Args:
        monitor: the mechanism.
        steps: the public windows.
        noise: of the run.
        timer_offset: how many stages have decided a step before this one does.
        domain: the public list of items, if there is one.
    """

    def __init__(
        self, *, monitor: Any, steps: Steps, noise: NoiseSource, timer_offset: int, domain: Domain | None = None
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, noise=noise)
        self.monitor = monitor
        self.domain = domain
        self.limited = LimitCounter("charged")

    def count_charged(self, step: int, active: np.ndarray) -> None:
        """Count who has an item that may be reported, and who of them has no charges left and no longer counts."""
        self.limited.add(len(active), len(active) - int(active.sum()))

    def holdings(self, step: int, held: HolderBatch) -> Holdings:
        """Return who has what in a step, as the monitor numbers it."""
        return Holdings(step=self.steps.in_first_period(step), users=held.users, items=held.items, ranks=held.ranks)


def joined(batches: list[bytes]) -> HolderBatch:
    """Return who has what in all batches."""
    return HolderBatch.join([decode(HolderBatch, batch) for batch in batches])


class PruneItems(MonitorStage, state="prune_items"):
    """Per shard of items: keep the items that may still be hits. No state outlives a step.

    This changes no answer. The monitor counts only people who have charges left, so its count is at most the one taken
    here, and both compare with the same hidden threshold.
    """

    monitor: ThresholdMonitor
    tested = Metrics.counter("privstream", "items_tested")
    kept = Metrics.counter("privstream", "items_near_heavy")

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
        found, noise = ItemCounts.of(joined(batches)), self.noise_of(step)
        near = self.monitor.could_exceed(self.steps.in_first_period(step), found.items, found.counts, noise)
        self.tested.inc(len(near))
        self.kept.inc(int(near.sum()))
        return Stepped(None, [on_clock(step, part) for part in in_parts(found.having(near))], unchanged)


class DecideHits(ChargesInOrder, MonitorStage, state="decide_hits"):
    """Decide each step once, publish its hits, and log who was charged."""

    monitor: ThresholdMonitor
    hits = Metrics.counter("privstream", "hits_published")

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: UserCounters) -> Stepped:
        held = joined(batches)
        holdings = self.holdings(step, held)
        self.count_charged(step, holdings.active(state, self.monitor.max_hits))
        hits, charges = self.monitor.decide(state, holdings, self.noise_of(step))
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


def publish_by_monitor(
    asked: HeavyHittersParameters, held: PCollection[Any], apply_dofn: ApplyDoFn, *, shards: Iterable[bytes]
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    _ = asked.monitor.calibrated  # once, at launch; workers receive it
    common: dict[str, Any] = {"monitor": asked.monitor, "steps": asked.steps, "noise": asked.noise}
    clocked = held | "ItemClocks" >> WithClock(asked.steps, shards)
    near = apply_dofn(clocked, PruneItems(**common, timer_offset=1), Keyed)
    decide = DecideHits(**common, timer_offset=2, domain=asked.tested_domain)
    rows = apply_dofn(near | "WithClock" >> WithClock(asked.steps), decide, HeavyHitter)
    at_ends = AtWindowEnds(asked.steps, HeavyHitter, timer_offset=3, follow=with_streaks)
    return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
