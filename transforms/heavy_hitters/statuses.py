"""The status monitor of each stream: candidates in, items that are up out, with a counter per person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.status_monitor import StatusMonitor, StatusRows, UpItems
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import HolderBatch, Names, StepKey
from privstream.transforms.heavy_hitters.monitor_stage import MonitorStage
from privstream.transforms.rows import CONTINUES, STATUSES, HeavyHitter
from privstream.transforms.timing.ordered import Handled

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
    """Per stream: decide each step once, publish what is up or ends, and log what has changed.

    While anything is up every step is decided, with or without data: which ones are is as public as the statuses.
    """

    monitor: StatusMonitor
    hits = Metrics.counter("privstream", "hits_published")

    def follows(self, state: Statuses) -> bool:
        """Go on while anything is up."""
        return len(state.up) > 0

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Statuses) -> Handled:
        """Run one step of the mechanism."""
        held = HolderBatch.join([batch for _, batch in batches])
        holdings = Holdings(step=self.steps.alike(step), users=held.users, items=held.items, ranks=held.ranks)
        stream = key.decode()
        noise = self.steps.renewed(self.noise, step).derive("stream", stream)
        self.count_charged(step, holdings.active(state.counters, self.monitor.max_hits))
        found, up, charges = self.monitor.decide(state.counters, state.up, holdings, noise)
        names = Names.union([state.names, held.names])
        self.hits.inc(len(found.items))
        rows = list(self._rows(stream, step, found, names))
        change = self._change(state.up, up, names, charges)
        return Handled(state.after(change), change.to_bytes() if change else None, rows)

    def _rows(self, stream: str, step: int, found: StatusRows, names: Names) -> Iterator[HeavyHitter]:
        """Write the items that are up or end; a count that nobody was charged for is none."""
        start, end = self.steps.bounds(step)
        later = step - self.steps.alike(step)  # than the steps of the mechanism
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        for item, count, since, status in zip(*columns, strict=True):
            counted = count is not None and STATUSES[status] != CONTINUES
            yield HeavyHitter.in_time(
                *(stream, start, end),
                item=names[item] if self.domain is None else self.domain[item],
                count=count if counted else None,
                count_stddev=self.monitor.count_stddev,
                since=self.steps.bounds(since + later)[0],
                status=STATUSES[status],
                spread=self.monitor.count_error(OUTSIDE),
            )

    def _change(self, before: UpItems, after: UpItems, names: Names, charges: Charges) -> Change:
        """Return what a step changed."""
        started = after.without(before.items)
        known = names.select(started.items) if self.domain is None and len(started) else Names.none()
        return Change(charges, started, known, before.without(after.items).items)

    def decode(self, key: bytes, segments: list[bytes]) -> Statuses:
        """Add up the log."""
        state = Statuses(UserCounters(), UpItems.none(), Names.none())
        for segment in segments:
            state = state.after(Change.from_bytes(segment))
        return state

    def encode(self, state: Statuses) -> list[bytes]:
        """Write one entry per person, and what is up."""
        up = Change(Charges.none(), state.up, state.names, NOTHING)
        charges = state.counters.compact()
        parts = [charges.slice(i, i + SEGMENT) for i in range(0, len(charges), SEGMENT)]
        return [up.to_bytes(), *(Change(part, UpItems.none(), Names.none(), NOTHING).to_bytes() for part in parts)]
