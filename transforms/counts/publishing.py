"""The last stage of counts per key: how many people each key has in, noisy counts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import CountBatch, Keyed, Names, StepKey, decode, encode, sealed_key, unseal
from privstream.transforms.counts.largest import LargestCounts
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_letter
from privstream.transforms.rows import KeyCount, KeySum
from privstream.transforms.timing.clocked import ClockedSteps
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.public_clock import stepped
from privstream.transforms.timing.steps import Steps

SHARD_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class KeyPublisher:
    """How the counts of a step become rows; shared by both kinds of last stage.

    Attributes:
        steps: the windows.
        mechanism: of all streams together.
        noise: of the run.
        domain: the public list of keys, which are then positions in it, or None.
        choose: of the rows of a window that are published, those that may be among all shards; None for all.
    """

    steps: Steps
    mechanism: KeyedCounts
    noise: NoiseSource
    domain: Domain | None
    choose: LargestCounts | None = None

    def publish(
        self, stream: str, step: int, counted: CountBatch, state: KeyedState, names: Names
    ) -> tuple[KeyedState, list[KeyCount | KeySum]]:
        """Run one step of one shard of keys; `names` has all keys that may be published."""
        number = step + 1 - (self.steps.first or 0)
        given = KeyedStep(
            step=number,
            keys=counted.items,
            counts=counted.counts,
            people=_present(counted.new) if self.mechanism.needs_people else None,
            sums=None if self.mechanism.max_value is None else _present(counted.sums),
        )
        state, found = self.mechanism.step(state, given, self.noise.derive("stream", stream))
        rows = list(self._rows(stream, step, found, names))
        if self.choose is not None:
            return state, self.choose.of_stream(rows)
        Metrics.counter("privstream", "counts_published").inc(len(rows))
        return state, rows

    def _rows(self, stream: str, step: int, found: KeyedRows, names: Names) -> Iterator[KeyCount | KeySum]:
        """Return rows with names, with sums and means if there are any."""
        start, end = self.steps.bounds(step)
        counts = (
            KeyCount(stream, start, end, self._name(key, names), count, found.count_stddev, found.count_bound)
            for key, count in zip(found.keys.tolist(), found.counts.tolist(), strict=True)
        )
        if found.sums is None or found.means is None or found.mean_bounds is None:
            yield from counts
            return
        values = (column.tolist() for column in (found.sums, found.means, found.mean_bounds))
        for row, added, mean, bound in zip(counts, *values, strict=True):
            yield KeySum._make((*row, added, found.sum_stddev, mean, bound))

    def late(self, stream: str, step: int, batch: CountBatch) -> Iterator[Any]:
        """Describe late counts by window and key."""
        for key, count in zip(batch.items.tolist(), batch.counts.tolist(), strict=True):
            record = f"{self._name(key, batch.names)} ({count} contributions)"
            yield late_letter(self.steps, step, "late counts", record, stream)

    def _name(self, key: int, names: Names) -> str:
        return names[key] if self.domain is None else self.domain[key]


class PublishWindows(OrderedSteps, state="publish_windows"):
    """Per stream and shard of keys that are not public: publish the counts of each window by itself."""

    batch_type = CountBatch

    def __init__(self, *, timer_offset: int, publisher: KeyPublisher) -> None:
        super().__init__(steps=publisher.steps, timer_offset=timer_offset)
        self.publisher = publisher

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, Any]], state: None) -> Handled:
        """Publish one window."""
        counted = CountBatch.join([batch for _, batch in batches])
        stream, before = StepKey.from_bytes(key).stream, self.publisher.mechanism.initial_state()
        _, rows = self.publisher.publish(stream, step, counted, before, counted.names)
        return Handled(None, None, rows)

    def describe_late(self, key: StepKey, batch: CountBatch) -> Iterator[Any]:
        """Describe late counts."""
        return self.publisher.late(key.stream, key.step, batch)

    def decode(self, key: bytes, segments: list[bytes]) -> None:
        """Remember nothing."""

    def encode(self, state: None) -> list[bytes]:
        """Remember nothing."""
        return []


@dataclass(frozen=True, eq=False)
class NamedState:
    """What a shard of keys remembers: the mechanism's state, and the names of all its keys."""

    counts: KeyedState
    names: Names


class PublishCounts(ClockedSteps, state="publish_counts"):
    """Per stream and shard of keys, on a public clock: publish counts that span windows, or those of public keys."""

    def __init__(self, *, timer_offset: int, publisher: KeyPublisher, key_shards: int) -> None:
        super().__init__(steps=publisher.steps, timer_offset=timer_offset)
        self.publisher = publisher
        self.key_shards = key_shards

    def initial(self, key: bytes) -> NamedState:
        """Count nothing yet; of a public list, the keys of this shard."""
        keys, domain = None, self.publisher.domain
        if domain is not None:
            keys = np.arange(int(key[:SHARD_DIGITS], 16), len(domain), self.key_shards, dtype=np.uint64)
        return NamedState(self.publisher.mechanism.initial_state(keys), Names.none())

    def snapshot(self, state: NamedState) -> bytes:
        """Encode both parts."""
        names = encode(CountBatch(np.empty(0, np.uint64), np.empty(0, np.int64), state.names))
        return pack("named counts", 1, {"counts": self.publisher.mechanism.snapshot(state.counts), "names": names})

    def restore(self, data: bytes) -> NamedState:
        """Decode both parts."""
        found: dict[str, Any] = unpack("named counts", 1, data)
        counts = self.publisher.mechanism.restore(found["counts"])
        return NamedState(counts, decode(CountBatch, found["names"]).names)

    def advance(
        self, key: bytes, step: int, batches: list[bytes], state: NamedState
    ) -> tuple[NamedState, Iterable[KeyCount | KeySum]]:
        """Publish one window."""
        counted = CountBatch.join([decode(CountBatch, batch) for batch in batches])
        names = Names.union([state.names, counted.names]) if len(counted.names.items) else state.names
        counts, rows = self.publisher.publish(key[SHARD_DIGITS:].decode(), step, counted, state.counts, names)
        return NamedState(counts, names), rows

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count and describe late counts."""
        counted = decode(CountBatch, batch)
        self.late.inc(int(counted.counts.sum()))
        yield from self.publisher.late(key[SHARD_DIGITS:].decode(), step, counted)


def _present(column: np.ndarray | None) -> np.ndarray:
    """Return a column of a step, which is missing where the step brought nothing."""
    return np.zeros(0, np.int64) if column is None else column


def clock_name(stream: str, shard: int) -> str:
    """Return the name under which a clock handles a shard of keys of a stream."""
    return f"{shard:0{SHARD_DIGITS}x}{stream}"


def on_clock(element: Keyed) -> Keyed:
    """Turn a sealed batch under its stream and shard into what a clock takes."""
    key, record = element
    to = StepKey.from_bytes(key)
    batch = encode(unseal(CountBatch, record))
    return clock_name(to.stream, to.shard).encode(), stepped(sealed_key(record).step, batch)
