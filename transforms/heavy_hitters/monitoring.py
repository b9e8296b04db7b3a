"""The monitor of each stream: candidates in, heavy hitters out, with a counter per person."""

from __future__ import annotations

from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.transforms.batches import HolderBatch, StepKey
from privstream.transforms.heavy_hitters.monitor_stage import MonitorStage
from privstream.transforms.rows import STARTED, HeavyHitter
from privstream.transforms.timing.ordered import Handled


class MonitorStream(MonitorStage, state="monitor_stream"):
    """Per stream: decide each step once, publish its hits, and log who was charged."""

    monitor: ThresholdMonitor
    hits = Metrics.counter("privstream", "hits_published")

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: UserCounters) -> Handled:
        """Run one step of the mechanism."""
        held = HolderBatch.join([batch for _, batch in batches])
        alike, source = self.steps.alike(step), self.steps.renewed(self.noise, step)
        holdings = Holdings(step=alike, users=held.users, items=held.items, ranks=held.ranks)
        stream = key.decode()
        self.count_charged(step, holdings.active(state, self.monitor.max_hits))
        hits, charges = self.monitor.decide(state, holdings, source.derive("stream", stream))
        self.hits.inc(len(hits.items))
        start, end = self.steps.bounds(step)
        counts = hits.counts.tolist() or [None] * len(hits.items)
        rows = [
            HeavyHitter.in_time(
                *(stream, start, end),
                item=held.names[item] if self.domain is None else self.domain[item],
                count=count,
                count_stddev=self.monitor.count_stddev,
                since=start,
                status=STARTED,
                spread=self.monitor.count_error(OUTSIDE),
            )
            for item, count in zip(hits.items.tolist(), counts, strict=True)
        ]
        segment = charges.to_bytes() if len(charges) else None
        return Handled(state.add(charges), segment, rows)

    def decode(self, key: bytes, segments: list[bytes]) -> UserCounters:
        """Add up the log."""
        return UserCounters.of(Charges.from_bytes(segment) for segment in segments)

    def encode(self, state: UserCounters) -> list[bytes]:
        """Write one entry per person."""
        return state.compact().to_segments()
