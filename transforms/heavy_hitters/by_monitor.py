"""Heavy hitters by a threshold monitor, which tests each item in each window, and charges people for reports alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Holdings, UserCounters
from privstream.mechanisms.monitor.threshold_monitor import ItemMonitor, ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    StepKey,
    decode,
    digest,
    encode,
    first_of_run,
    named,
    rows_of,
    seal_parts,
)
from privstream.transforms.heavy_hitters.parameters import HeavyHittersParameters, with_streaks
from privstream.transforms.people.bounding import ChargesInOrder, LimitCounter
from privstream.transforms.reading.dead_letters import late_events
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import STARTED, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clocked import ONE_KEY, AtWindowEnds
from privstream.transforms.timing.on_time import StepBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps
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


class EmitEmptySteps(beam.DoFn):
    """An empty batch for each step in which an item is a hit even if nobody has it.

    All of them are sent at once, and go through all stages as events do: timers in the monitor that set timers would be
    simpler, but not every runner holds the watermark for them.

    Args:
        shard: a shard that no person has.
    """

    def __init__(self, *, monitor: ItemMonitor[Any], steps: Steps, noise: NoiseSource, shard: int) -> None:
        self.monitor = monitor
        self.steps = steps
        self.noise = noise
        self.shard = shard

    @override
    def process(self, _: bytes) -> Iterator[KeyedBatch]:
        nobody = encode(EventBatch.join([]))
        for step in self.empty_steps():
            yield StepKey(step, self.shard).to_bytes(), (digest(nobody), nobody)

    def empty_steps(self) -> Iterator[int]:
        """Find these steps."""
        if self.steps.first is None or self.steps.end is None:
            raise ValueError("start, and end or windows, must be given to test a domain in every window")
        step = self.steps.first
        while step < self.steps.end:
            end = min(self.steps.end, self.steps.last_of_period(step) + 1)
            later = step - self.steps.in_first_period(step)  # than the steps of the mechanism
            found = self.monitor.next_absent_hit(step - later, end - later, self.steps.renewed(self.noise, step))
            if found is not None:
                yield found + later
            step = end if found is None else found + later + 1


class MonitorStage(OrderedSteps):
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
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.monitor = monitor
        self.noise = noise
        self.domain = domain
        self.limited = LimitCounter("charged")

    def count_charged(self, step: int, active: np.ndarray) -> None:
        """Count who has an item that may be reported, and who of them has no charges left and no longer counts."""
        self.limited.add(len(active), len(active) - int(active.sum()))

    @override
    def describe_late(self, key: StepKey, batch: Any) -> Iterator[Any]:
        return late_events(self.steps, key, batch, self.domain)


class PruneItems(StepBatches, state="prune_items"):
    """Per step and shard of items: keep the items that may still be hits.

    This changes no answer. The monitor counts only people who have charges left, so its count is at most the one taken
    here, and both compare with the same hidden threshold.
    """

    def __init__(self, *, monitor: ThresholdMonitor, steps: Steps, noise: NoiseSource, timer_offset: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.monitor = monitor
        self.noise = noise
        self.tested = Metrics.counter("privstream", "items_tested")
        self.kept = Metrics.counter("privstream", "items_near_heavy")

    @override
    def act(self, key: StepKey, records: list[bytes]) -> Iterator[Keyed]:
        found = ItemCounts.of(HolderBatch.join([decode(HolderBatch, data) for data in records]))
        alike, noise = self.steps.in_first_period(key.step), self.steps.renewed(self.noise, key.step)
        near = self.monitor.could_exceed(alike, found.items, found.counts, noise)
        self.tested.inc(len(near))
        self.kept.inc(int(near.sum()))
        if near.any() or not len(found.items):  # a step without events is decided too
            for part in seal_parts(key, found.having(near)):
                yield ONE_KEY.encode(), part


class DecideHits(ChargesInOrder, MonitorStage, state="decide_hits"):
    """Decide each step once, publish its hits, and log who was charged."""

    monitor: ThresholdMonitor
    hits = Metrics.counter("privstream", "hits_published")

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: UserCounters) -> Handled:
        held = HolderBatch.join([batch for _, batch in batches])
        alike, source = self.steps.in_first_period(step), self.steps.renewed(self.noise, step)
        holdings = Holdings(step=alike, users=held.users, items=held.items, ranks=held.ranks)
        self.count_charged(step, holdings.active(state, self.monitor.max_hits))
        hits, charges = self.monitor.decide(state, holdings, source)
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
        segment = charges.to_bytes() if len(charges) else None
        return Handled(state.add(charges), segment, rows)


def with_interval(count: int | None, spread: int) -> tuple[float | None, float | None, float | None]:
    """Return a count and its interval of 95%, or nothing where there is no count."""
    return (None, None, None) if count is None else (float(count), max(0.0, count - spread), max(0.0, count + spread))


def with_empty_steps(asked: HeavyHittersParameters, batches: PCollection[Any]) -> PCollection[Any]:
    """Add the steps of a public list of items that must be decided even if nobody has one."""
    if asked.tested_domain is None:
        return batches
    emit = EmitEmptySteps(monitor=asked.monitor, steps=asked.steps, noise=asked.noise, shard=asked.shards)
    once = batches.pipeline | "Once" >> beam.Impulse()
    empty = once | "EmitEmptySteps" >> beam.ParDo(emit).with_output_types(KeyedBatch)
    return cast(PCollection[Any], (batches, empty) | "WithEmptySteps" >> beam.Flatten())


def publish_by_monitor(
    asked: HeavyHittersParameters, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    _ = asked.monitor.calibrated  # once, at launch; workers receive it
    common: dict[str, Any] = {"monitor": asked.monitor, "steps": asked.steps, "noise": asked.noise}
    candidates = apply_dofn(held, PruneItems(**common, timer_offset=timer_offset), Keyed)
    decide = DecideHits(**common, timer_offset=timer_offset + 1, domain=asked.tested_domain)
    rows = apply_dofn(candidates, decide, HeavyHitter)
    at_ends = AtWindowEnds(asked.steps, HeavyHitter, timer_offset=timer_offset + 2, follow=with_streaks)
    return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
