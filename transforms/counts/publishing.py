"""The last stage of counts per key: how many people each key has in, noisy counts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import CountBatch, Keyed, Names, StepKey, decode, encode, sealed_batch, sealed_key
from privstream.transforms.counts.largest import LargestCounts
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.rows import KeyCount, KeySum
from privstream.transforms.timing.clocked import SingleSteps
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.public_clock import STEP, WithClock, stepped
from privstream.transforms.timing.steps import Steps
from privstream.transforms.timing.window_ends import AtWindowEnds, Follow

SHARD_DIGITS = 4
REPLAYED = 64  # steps that are counted again at most when a state is restored


@dataclass(frozen=True, kw_only=True)
class KeyPublisher:
    """How the counts of a step become rows; shared by both kinds of last stage. A subclass writes other rows.

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

    counter: ClassVar[str] = "counts_published"

    @property
    def row_type(self) -> type:
        """What rows are."""
        return KeyCount if self.mechanism.max_value is None else KeySum

    @property
    def follow(self) -> Follow | None:
        """How rows depend on those of the window before, if they do."""
        return None

    def count(self, stream: str, step: int, counted: CountBatch, state: KeyedState) -> tuple[KeyedState, KeyedRows]:
        """Run one step of one shard of keys."""
        given = KeyedStep(
            step=self.steps.number(step),
            keys=counted.items,
            counts=counted.counts,
            people=_present(counted.new) if self.mechanism.needs_people else None,
            sums=None if self.mechanism.max_value is None else _present(counted.sums),
        )
        noise = self.steps.renewed(self.noise, step).derive("stream", stream)
        return self.mechanism.step(state, given, noise)

    def publish(self, stream: str, step: int, found: KeyedRows, names: Names) -> list[Any]:
        """Return the rows of a step of one shard of keys that are published, or may be among those of all shards."""
        rows = list(self.rows(stream, step, found, names))
        if self.choose is not None:
            return self.choose.of_stream(rows)
        Metrics.counter("privstream", self.counter).inc(len(rows))
        return rows

    def rows(self, stream: str, step: int, found: KeyedRows, names: Names) -> Iterator[Any]:
        """Make rows, with sums and means if there are any, of what is known about keys, all of which are named."""
        start, end = self.steps.bounds(step)
        counts = (
            KeyCount(stream, start, end, item, count, found.count_stddev, found.count_bound)
            for item, count in zip(self.texts(found.keys, names), found.counts.tolist(), strict=True)
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
            name = batch.names[key] if self.domain is None else self.domain[key]
            yield late_letter(self.steps, step, "late counts", f"{name} ({count} contributions)", stream)

    def texts(self, keys: np.ndarray, names: Names) -> list[str]:
        """Return the texts of keys."""
        texts = names.select(keys).to_arrow() if self.domain is None else self.domain.texts.take(keys)
        found: list[str] = texts.to_pylist()
        return found


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
        _, found = self.publisher.count(stream, step, counted, before)
        rows = self.publisher.publish(stream, step, found, counted.names)
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
    """What a shard of keys remembers: the mechanism's state, and the names of the keys that may be published.

    A key that waits for more people needs no name: when it is considered at last, new contributions bring it.
    """

    counts: KeyedState
    names: Names

    def after(self, counts: KeyedState, names: Names) -> NamedState:
        """Return what follows a step that came with these names."""
        keys = counts.counted.keys
        if not len(names.items) or np.array_equal(keys, self.names.items):
            return NamedState(counts, self.names)
        return NamedState(counts, Names.union([self.names, names]).select(keys))


class PublishCounts(SingleSteps, state="publish_counts"):
    """Per stream and shard of keys, on a public clock: publish counts that span windows, or those of public keys.

    The log has the whole state, and then what came in each step since: a state follows from these again.
    """

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
        columns = {f"names_{name}": column for name, column in vars(state.names).items()}
        return pack("named counts", 1, {"counts": self.publisher.mechanism.snapshot(state.counts)} | columns)

    def restore(self, data: bytes) -> NamedState:
        """Decode both parts."""
        found: dict[str, Any] = unpack("named counts", 1, data)
        counts = self.publisher.mechanism.restore(found.pop("counts"))
        return NamedState(counts, Names(*found.values()))

    def changes(self, first: int, last: int, batches: dict[int, list[bytes]], state: NamedState) -> list[bytes]:
        """Return what came in these steps; nothing, for the whole state to be written, at the end of a block."""
        if first // REPLAYED != (last + 1) // REPLAYED:
            return []
        return [stepped(step, encode(_join(batches.get(step, [])))) for step in sorted({*batches, last})]

    def decode(self, key: bytes, segments: list[bytes]) -> NamedState:
        """Restore the state, and count again what came since."""
        state: NamedState = super().decode(key, segments[:1])
        for segment in segments[1:]:
            last, counted = self.step_of(segment), decode(CountBatch, segment[STEP.size :])
            for step in range(self.steps.first_alike(last) + state.counts.step, last):
                state, _ = self._counted(key, step, _join([]), state)
            state, _ = self._counted(key, last, counted, state)
        return state

    def advance(
        self, key: bytes, step: int, batches: list[bytes], state: NamedState
    ) -> tuple[NamedState, Iterable[Any]]:
        """Publish one window."""
        state, found = self._counted(key, step, _join(batches), state)
        return state, self.publisher.publish(_stream(key), step, found, state.names)

    def _counted(self, key: bytes, step: int, counted: CountBatch, state: NamedState) -> tuple[NamedState, KeyedRows]:
        """Return the state after a step, and what is published about it."""
        counts, found = self.publisher.count(_stream(key), step, counted, state.counts)
        return state.after(counts, counted.names), found

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count and describe late counts."""
        counted = decode(CountBatch, batch)
        self.late.inc(int(counted.counts.sum()))
        yield from self.publisher.late(_stream(key), step, counted)


def _join(batches: list[bytes]) -> CountBatch:
    return CountBatch.join([decode(CountBatch, batch) for batch in batches])


def _stream(key: bytes) -> str:
    return key[SHARD_DIGITS:].decode()


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
    return clock_name(to.stream, to.shard).encode(), stepped(sealed_key(record).step, sealed_batch(record))


def publish_counts(
    counted: PCollection[Any],
    apply_dofn: ApplyDoFn,
    publisher: KeyPublisher,
    *,
    clocked: bool,
    streams: tuple[str, ...] | None,
    key_shards: int,
    timer_offset: int,
) -> PCollection[Any]:
    """Add the last stages: from counts of people, by stream and shard of keys, to rows.

    Args:
        counted: sealed batches under their stream and shard of keys.
        apply_dofn: adds a stage.
        publisher: writes the rows.
        clocked: whether every window is published, and not only those in which somebody has a key.
        streams: public names of the streams; without them there is one, or, unless `clocked`, any.
        key_shards: shards of keys.
        timer_offset: that of the first stage here.
    """
    if clocked:
        clocks = tuple(clock_name(stream, shard) for stream in streams or ("",) for shard in range(key_shards))
        records = counted | "OnClock" >> beam.Map(on_clock).with_output_types(Keyed)
        counted = records | "WithClock" >> WithClock(publisher.steps, clocks, apart=False)
        last: beam.DoFn = PublishCounts(timer_offset=timer_offset, publisher=publisher, key_shards=key_shards)
    else:
        last = PublishWindows(timer_offset=timer_offset, publisher=publisher)
    rows = apply_dofn(counted, last, publisher.row_type)
    if clocked and publisher.choose is None and publisher.follow is None:
        return rows
    at_ends = AtWindowEnds(
        publisher.steps,
        publisher.row_type,
        timer_offset=timer_offset + 1,
        choose=publisher.choose or list,
        follow=publisher.follow,
    )
    return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
