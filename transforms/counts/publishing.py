"""The last stage of counts per key: how many people each key has in, noisy counts out."""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys, FoundState
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.digits import meaningful
from privstream.transforms.batches import (
    CountBatch,
    InStreams,
    Keyed,
    Names,
    StepKey,
    digest,
    group_of,
    sealed_batch,
    sealed_key,
    string_buffers,
)
from privstream.transforms.counts.contributions import StreamCounts, joined, unsealed_counts
from privstream.transforms.counts.finished import RISE, LargestCounts, listed, shown_columns, unsmoothed_columns
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.events.domain import Domain, PublicKeys
from privstream.transforms.events.private_transform import ALL, ApplyDoFn, Shared
from privstream.transforms.timing.clocked import STEP, AtWindowEnds, Follow, SingleSteps, WithClock, stepped
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps

SHARD_DIGITS = 4
MOST_PARTS = 64  # in which texts are kept
WINDOW = ("window_start", "window_end")
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
        at_least: rows with a smaller shown number are left out; None for none.
        rising: whether rows are left out that did not surely rise.
        in_columns: whether rows are published as tables, which `SmoothFinished.in_columns` finishes.
        always: the keys that are published in every window, beside those that are found; None for none.
        row_type: what rows are: `KeyCount`, `KeyRise` or `KeySum`.
    """

    row_type: Any
    steps: Steps
    mechanism: KeyedCounts
    noise: NoiseSource
    domain: Domain | None
    choose: LargestCounts | None = None
    at_least: int | None = None
    rising: bool = False
    in_columns: bool = False
    always: PublicKeys | None = None

    counter: ClassVar[str] = "counts_published"

    @property
    def follow(self) -> Follow | None:
        """How rows depend on those of the window before, if they do."""
        return None

    def count(
        self, step: int, held: KeysOfStreams, numbers: np.ndarray, counted: CountBatch, state: KeyedState
    ) -> tuple[KeyedState, KeyedRows]:
        """Run one step of one shard of keys of a group of streams; `numbers` are those of the keys that are counted."""
        number = self.steps.number(step)
        given = KeyedStep(
            step=number,
            keys=numbers.astype(np.uint64),
            counts=counted.counts,
            people=_present(counted.new) if self.mechanism.needs_people else None,
            sums=None if self.mechanism.max_value is None else _present(counted.sums),
            listed=_present(counted.new) if self.mechanism.lists(number) else None,
        )
        noise = RoutedNoise(self._sources(step), held.streams, held.pairs.codes, held.pairs.keys)
        return self.mechanism.step(state, given, noise)

    def _sources(self, step: int) -> SourcesByName:
        """Return the noise of each stream at a step."""
        renewals = int(self.steps.renewals(step))
        if renewals not in self._at_hand:
            self._at_hand.clear()
            noise = self.steps.renewed(self.noise, step)
            self._at_hand[renewals] = SourcesByName(partial(noise.derive, "stream"))
        return self._at_hand[renewals]

    @cached_property
    def _at_hand(self) -> dict[int, SourcesByName]:
        return {}

    def publish(self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names) -> list[Any]:
        """Return the rows of a step of one shard of keys that are published, or may be among those of all shards."""
        if self.at_least is not None:
            found = found.at_least(self.at_least)
        if self.rising:
            found = found.surely_rising()
        rows = list(self.rows(step, held, found, names))
        if self.choose is not None:
            return self.choose.among(rows)
        for earlier in found.earlier:
            rows += self.rows(step, held, earlier, names, back=found.step - earlier.step)
        Metrics.counter("privstream", self.counter).inc(len(rows))
        return rows

    def publish_table(self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names) -> bytes:
        """Return the rows of a step of one shard of keys as an Arrow stream of tables, times in microseconds.

        They are in the order of keys, which tells which of them somebody had first: they must be sorted.
        """
        batches = []
        for one in (found, *found.earlier):
            columns = self._columns(step, held, one, names, found.step - one.step)
            arrays = [_array(column, len(one.keys)) for column in columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, list(self.row_type._fields)))
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        Metrics.counter("privstream", self.counter).inc(sum(map(len, batches)))
        return stream.getvalue()

    def rows(self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names, *, back: int = 0) -> Iterator[Any]:
        """Make rows, with sums and means if there are any, of what is known about keys, all of which are named.

        They are published at a step, and are about the one so many steps before.
        """
        columns = (_values(column, len(found.keys)) for column in self._columns(step, held, found, names, back))
        return map(self.row_type, *columns)

    def _columns(self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names, back: int) -> list[Any]:
        """Return the fields of rows in their order: arrays, nan for none, or one value for all."""
        texts = dict(zip(("stream", "item"), self.texts(held, found.keys, names), strict=True))
        columns = dict.fromkeys(self.row_type._fields) | texts | unsmoothed_columns(found, self.mechanism.max_value)
        columns |= zip(WINDOW, self.steps.bounds(step - back), strict=True)
        if found.smoothed is not None:
            columns |= shown_columns(*found.smoothed)
        if found.rises is not None:
            columns |= zip(RISE, meaningful(*found.rises), strict=True)
        return [columns[name] for name in self.row_type._fields]

    def late(self, step: int, late: StreamCounts) -> Iterator[Any]:
        """Describe late counts by window, stream and key."""
        for stream, batch in late.each():
            for key, count in zip(batch.items.tolist(), batch.counts.tolist(), strict=True):
                name = batch.names[key] if self.domain is None else self.domain[key]
                yield late_letter(self.steps, step, "late counts", f"{name} ({count} contributions)", stream)

    def texts(self, held: KeysOfStreams, numbers: np.ndarray, names: Names) -> tuple[pa.Array, pa.Array]:
        """Return the streams and the texts of keys."""
        streams = pa.array(held.streams, pa.string()).take(pa.array(held.pairs.codes[numbers]))
        keys = held.pairs.keys[numbers]
        return streams, names.texts(keys) if self.domain is None else self.domain.texts.take(keys)


class KeysOfStreams(NamedTuple):
    """The streams of a group, and their keys that a mechanism knows by numbers."""

    streams: tuple[str, ...]
    pairs: Pairs


class PublishWindows(OrderedSteps, state="publish_windows"):
    """Per group of streams and shard of keys that are not public: publish the counts of each window by itself."""

    def __init__(self, *, timer_offset: int, publisher: KeyPublisher) -> None:
        super().__init__(steps=publisher.steps, timer_offset=timer_offset)
        self.publisher = publisher

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, StreamCounts]], state: None) -> Handled:
        """Publish one window."""
        counted = joined([batch for _, batch in batches])
        held = KeysOfStreams(counted.streams, Pairs(counted.codes, counted.batch.items))
        numbers, before = np.arange(len(counted.batch.items)), self.publisher.mechanism.initial_state()
        _, found = self.publisher.count(step, held, numbers, counted.batch, before)
        return Handled(None, None, self.publisher.publish(step, held, found, counted.batch.names))

    def unpack(self, record: bytes) -> StreamCounts:
        """Return the counts in a sealed record."""
        return unsealed_counts(record)

    def size_of(self, batch: StreamCounts) -> int:
        """Return how many contributions a late batch counts."""
        return int(batch.batch.counts.sum())

    def describe_late(self, key: StepKey, batch: StreamCounts) -> Iterator[Any]:
        """Describe late counts."""
        return self.publisher.late(key.step, batch)

    def decode(self, key: bytes, segments: list[bytes]) -> None:
        """Remember nothing."""

    def encode(self, state: None) -> list[bytes]:
        """Remember nothing."""
        return []


class RememberedKeys(Protocol):
    """What a shard of keys remembers: the mechanism's state, the keys by their numbers, and texts of keys."""

    @property
    def counts(self) -> Any:
        """The state of the mechanism."""

    @property
    def pairs(self) -> Pairs:
        """Its keys."""

    @property
    def columns(self) -> dict[str, Any]:
        """The texts, as columns of a snapshot."""

    def after(self, counts: Any, pairs: Pairs, names: Names) -> RememberedKeys:
        """Return what follows a step that came with these texts."""

    def named(self, found: KeyedRows) -> Names:
        """Return the texts of keys that are published."""


class CountsOnClock(SingleSteps):
    """Per group of streams and shard of keys, on a public clock: counts of a step in, rows out.

    The log has the whole state, and then what came in each step since: a state follows from these again.
    """

    kind = "named counts of streams"  # of snapshots

    def __init__(
        self, *, timer_offset: int, publisher: KeyPublisher, key_shards: int, groups: Mapping[str, tuple[str, ...]]
    ) -> None:
        super().__init__(steps=publisher.steps, timer_offset=timer_offset)
        self.publisher = publisher
        self.key_shards = key_shards
        self.of_streams = digest(json.dumps(sorted(chain.from_iterable(groups.values()))).encode())
        self.groups = groups

    @abstractmethod
    def remembered(self, counts: Any, pairs: Pairs, columns: dict[str, np.ndarray]) -> RememberedKeys:
        """Return what a shard remembers, with texts out of a snapshot."""

    def snapshot(self, state: RememberedKeys) -> bytes:
        """Encode all parts."""
        pairs = {"codes": state.pairs.codes.astype(np.uint32), "keys": state.pairs.keys}
        counts = self.publisher.mechanism.snapshot(state.counts)
        of: dict[str, Any] = {"streams": self.of_streams, "shards": self.key_shards}
        return pack(self.kind, 1, of | {"counts": counts} | pairs | state.columns)

    def restore(self, data: bytes) -> RememberedKeys:
        """Decode all parts.

        Raises:
            SnapshotError: it was written by a run with other streams, which numbers stand for, or with other shards, in
                which other keys are.
        """
        found: dict[str, Any] = unpack(self.kind, 1, data)
        if found.pop("streams") != self.of_streams:
            raise SnapshotError("state must be of a run with the same streams")
        if (shards := found.pop("shards")) != self.key_shards:
            raise SnapshotError(f"state must be of a run with as many shards, {self.key_shards}, got {shards}")
        counts = self.publisher.mechanism.restore(found.pop("counts"))
        pairs = Pairs(found.pop("codes").astype(np.int64), found.pop("keys"))
        return self.remembered(counts, pairs, found)

    def changes(self, first: int, last: int, batches: dict[int, list[bytes]], state: RememberedKeys) -> list[bytes]:
        """Return what came in these steps; nothing, for the whole state to be written, at the end of a block."""
        if first // REPLAYED != (last + 1) // REPLAYED:
            return []
        return [stepped(step, _joined_bytes(batches.get(step, []))) for step in sorted({*batches, last})]

    def decode(self, key: bytes, segments: list[bytes]) -> RememberedKeys:
        """Restore the state, and count again what came since."""
        state: RememberedKeys = super().decode(key, segments[:1])
        for segment in segments[1:]:
            last, counted = self.step_of(segment), InStreams.from_bytes(CountBatch, segment[STEP.size :])
            for step in range(self.steps.first_of_period(last) + state.counts.step, last):
                state, _ = self._counted(key, step, _join([]), state)
            state, _ = self._counted(key, last, counted, state)
        return state

    def advance(
        self, key: bytes, step: int, batches: list[bytes], state: RememberedKeys
    ) -> tuple[RememberedKeys, Iterable[Any]]:
        """Publish one window."""
        state, found = self._counted(key, step, _join(batches), state)
        if not len(found.keys):
            return state, []
        held = KeysOfStreams(self._streams(key), state.pairs)
        if self.publisher.in_columns:
            place = StepKey(key[SHARD_DIGITS:].decode(), step, int(key[:SHARD_DIGITS], 16))
            return state, [(place.to_bytes(), self.publisher.publish_table(step, held, found, state.named(found)))]
        rows = self.publisher.publish(step, held, found, state.named(found))
        # Unless keys are public, their numbers tell which of them somebody had first: rows must not be in that order.
        return state, rows if self.publisher.domain is not None else sorted(rows, key=attrgetter("stream", "item"))

    def _streams(self, key: bytes) -> tuple[str, ...]:
        """Return the streams of a key."""
        group = key[SHARD_DIGITS:].decode()
        if group not in self.groups:
            raise SnapshotError("state of counts must be of a run with the same groups of streams")
        return self.groups[group]

    def _counted(
        self, key: bytes, step: int, counted: StreamCounts, state: RememberedKeys
    ) -> tuple[RememberedKeys, KeyedRows]:
        """Return the state after a step, and what is published about it."""
        streams = self._streams(key)
        place = {stream: code for code, stream in enumerate(streams)}
        codes = np.array([place.get(stream, -1) for stream in counted.streams], np.int64)[counted.codes]
        numbers = state.pairs.numbers(codes, counted.batch.items)
        unknown = np.flatnonzero(numbers < 0)
        numbers[unknown] = len(state.pairs.keys) + np.arange(len(unknown))
        pairs = state.pairs.with_more(codes[unknown], counted.batch.items[unknown])
        held = KeysOfStreams(streams, pairs)
        counts, found = self.publisher.count(step, held, numbers, counted.batch, state.counts)
        return state.after(counts, pairs, counted.batch.names), found

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count and describe late counts."""
        counted = InStreams.from_bytes(CountBatch, batch)
        self.late.inc(int(counted.batch.counts.sum()))
        yield from self.publisher.late(step, counted)


@dataclass(frozen=True, eq=False)
class NamedState:
    """`RememberedKeys` with the texts of those that may be published.

    A key that waits for more people needs no text: when it is considered at last, new contributions bring it.
    """

    counts: KeyedState
    pairs: Pairs
    names: Names

    @property
    def columns(self) -> dict[str, Any]:
        """The texts."""
        return {f"names_{name}": column for name, column in vars(self.names).items()}

    def after(self, counts: KeyedState, pairs: Pairs, names: Names) -> NamedState:
        """Return what follows a step that came with these texts."""
        considered = np.setdiff1d(counts.counted.keys, self.counts.counted.keys, assume_unique=True)
        if not len(names.items) or not len(considered):
            return NamedState(counts, pairs, self.names)
        return NamedState(counts, pairs, Names.union([self.names, names.select(np.unique(pairs.keys[considered]))]))

    def named(self, found: KeyedRows) -> Names:
        """Return all texts."""
        return self.names


class PublishCounts(CountsOnClock, state="publish_counts"):
    """Publish counts that span windows, or of public keys."""

    def initial(self, key: bytes) -> NamedState:
        """Count nothing yet; of a public list, the keys of this shard in each stream."""
        streams, domain = self._streams(key), self.publisher.domain
        if domain is None:
            return NamedState(self.publisher.mechanism.initial_state(), Pairs.none(), Names.none())
        keys = np.arange(int(key[:SHARD_DIGITS], 16), len(domain), self.key_shards, dtype=np.uint64)
        pairs = Pairs(np.repeat(np.arange(len(streams)), len(keys)), np.tile(keys, len(streams)))
        numbers = np.arange(len(pairs.keys), dtype=np.uint64)
        return NamedState(self.publisher.mechanism.initial_state(numbers), pairs, Names.none())

    def remembered(self, counts: Any, pairs: Pairs, columns: dict[str, np.ndarray]) -> NamedState:
        """Return the state."""
        return NamedState(counts, pairs, Names(*columns.values()))


@dataclass(frozen=True, eq=False)
class FoundNames:
    """`RememberedKeys` with the texts of all keys by their numbers, in the parts in which they came."""

    counts: FoundState
    pairs: Pairs
    texts: tuple[pa.LargeStringArray, ...] = ()

    @property
    def columns(self) -> dict[str, Any]:
        """The texts."""
        offsets, text = string_buffers(self._taken(np.arange(len(self.pairs.keys))))
        return {"offsets": offsets, "text": text}

    def after(self, counts: FoundState, pairs: Pairs, names: Names) -> FoundNames:
        """Return what follows a step that came with these texts."""
        more = pairs.keys[len(self.pairs.keys) :]
        texts = (*self.texts, names.texts(more)) if len(more) else self.texts
        if len(texts) > MOST_PARTS:
            texts = (pa.concat_arrays(texts),)
        return FoundNames(counts, pairs, texts)

    def named(self, found: KeyedRows) -> Names:
        """Return the texts of keys that are published."""
        keys, first = np.unique(self.pairs.keys[found.keys], return_index=True)
        return Names.of(keys, self._taken(found.keys[first]))

    def only(self, counts: FoundState, numbers: np.ndarray) -> FoundNames:
        """Return some keys, which get the numbers 0, 1, .. in this order, with another state of the mechanism."""
        pairs = Pairs(self.pairs.codes[numbers], self.pairs.keys[numbers])
        return FoundNames(counts, pairs, (self._taken(numbers),))

    def _taken(self, numbers: np.ndarray) -> pa.LargeStringArray:
        texts = pa.chunked_array(self.texts, pa.large_string()).take(pa.array(numbers, pa.int64()))
        return pa.concat_arrays([pa.array([], pa.large_string()), *texts.chunks])


class PublishFound(CountsOnClock, state="publish_found"):
    """Publish counts of windows, of keys that are not public and stay found; also in the periods that follow."""

    kind = "found keys of streams"

    def initial(self, key: bytes) -> FoundNames:
        """Know the keys of the public list alone, in each stream."""
        if self.publisher.always is None:
            return FoundNames(self.mechanism.initial_state(), Pairs.none())
        names = self.publisher.always.of_shard(int(key[:SHARD_DIGITS], 16), self.key_shards)
        number = len(self._streams(key))
        pairs = Pairs(np.repeat(np.arange(number), len(names.items)), np.tile(names.items, number))
        counts = self.mechanism.initial_state(public=len(pairs.keys))
        return FoundNames(counts, pairs, (names.to_arrow(),) * number)

    @property
    def mechanism(self) -> FoundKeys:
        """That of the publisher."""
        assert isinstance(self.publisher.mechanism, FoundKeys)
        return self.publisher.mechanism

    def afresh(self, key: bytes, state: FoundNames) -> FoundNames:
        """Carry over the keys that were found, unless nothing but noise was published of them."""
        return state.only(*self.mechanism.renewed(state.counts))

    def advance(
        self, key: bytes, step: int, batches: list[bytes], state: RememberedKeys
    ) -> tuple[RememberedKeys, Iterable[Any]]:
        """Publish one window; at once where nothing has come and nothing is remembered."""
        if batches or state.counts.windows or len(state.counts.found) or state.counts.listed.any():
            return super().advance(key, step, batches, state)
        counts = replace(self.mechanism.initial_state(), step=state.counts.step + 1)
        return FoundNames(counts, Pairs.none()), []

    def remembered(self, counts: Any, pairs: Pairs, columns: dict[str, np.ndarray]) -> FoundNames:
        """Return the state."""
        names = Names(np.arange(len(pairs.keys), dtype=np.uint64), columns["offsets"], columns["text"])
        return FoundNames(counts, pairs, (names.to_arrow(),))

    def _counted(
        self, key: bytes, step: int, counted: StreamCounts, state: RememberedKeys
    ) -> tuple[RememberedKeys, KeyedRows]:
        """Forget, every now and then, keys that have no effect any more: when is public."""
        if state.counts.step and state.counts.step % self.mechanism.kept == 0:
            assert isinstance(state, FoundNames)
            state = state.only(*self.mechanism.compact(state.counts))
        return super()._counted(key, step, counted, state)


def _array(column: Any, number: int) -> pa.Array:
    """Return a column of so many rows, or one value for all, as Arrow has it; times in microseconds."""
    if isinstance(column, np.ndarray):
        return pa.array(np.ascontiguousarray(column), from_pandas=True)
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column.cast(pa.large_string())
    return pa.repeat(column.micros if isinstance(column, Timestamp) else column, number)


def _values(column: Any, number: int) -> list[Any]:
    """Return a column of so many rows, or one value for all, as rows have it."""
    if isinstance(column, np.ndarray):
        return listed(column)
    return column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else [column] * number


NO_COUNTS: StreamCounts = InStreams.empty(CountBatch, ())


def _join(batches: list[bytes]) -> StreamCounts:
    parts = [InStreams.from_bytes(CountBatch, batch) for batch in batches]
    return joined(parts) if len(parts) > 1 else parts[0] if parts else NO_COUNTS  # each is added up


def _joined_bytes(batches: list[bytes]) -> bytes:
    return batches[0] if len(batches) == 1 else _join(batches).to_bytes()  # one that is whole stays as it came


def _present(column: np.ndarray | None) -> np.ndarray:
    """Return a column of a step, which is missing where the step brought nothing."""
    return np.zeros(0, np.int64) if column is None else column


def in_groups(streams: tuple[str, ...], groups: int) -> dict[str, tuple[str, ...]]:
    """Return the streams, increasing, of each group that has any, in the order of groups."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for stream in sorted(streams):
        found[group_of(stream, groups)].append(stream)
    return {group: tuple(found[group]) for group in sorted(found)}


def clock_name(group: str, shard: int) -> str:
    """Return the name under which a clock handles a shard of keys of a group of streams."""
    return f"{shard:0{SHARD_DIGITS}x}{group}"


def on_clock(element: Keyed) -> Keyed:
    """Turn a sealed batch under its group of streams and shard into what a clock takes."""
    key, record = element
    to = StepKey.from_bytes(key)
    return clock_name(to.stream, to.shard).encode(), stepped(sealed_key(record).step, sealed_batch(record))


def clock_names(groups: Iterable[str], key_shards: int, shared: Shared = ALL) -> tuple[str, ...]:
    """Return the names of all clocks, or of those that a process has."""
    return tuple(clock_name(group, shard) for group in groups for shard in shared.of(key_shards))


def publish_counts(
    counted: PCollection[Any],
    apply_dofn: ApplyDoFn,
    publisher: KeyPublisher,
    *,
    clocked: bool,
    streams: tuple[str, ...] | None,
    groups: int,
    key_shards: int,
    timer_offset: int,
    shared: Shared = ALL,
) -> PCollection[Any]:
    """Add the last stages: from counts of people, by group of streams and shard of keys, to rows.

    Args:
        counted: sealed batches under their group of streams and shard of keys.
        apply_dofn: adds a stage.
        publisher: writes the rows.
        clocked: whether every window is published, and not only those in which somebody has a key.
        streams: public names of the streams; without them there is one, or, unless `clocked`, any.
        groups: of streams.
        key_shards: shards of keys.
        timer_offset: that of the first stage here.
        shared: which of these shards are handled here: clocks of others are not started.
    """
    if clocked:
        found = in_groups(streams or ("",), groups)
        names = clock_names(found, key_shards, shared)
        records = counted | "OnClock" >> beam.Map(on_clock).with_output_types(Keyed)
        counted = records | "WithClock" >> WithClock(publisher.steps, names, apart=False)
        stage = PublishFound if isinstance(publisher.mechanism, FoundKeys) else PublishCounts
        last: beam.DoFn = stage(timer_offset=timer_offset, publisher=publisher, key_shards=key_shards, groups=found)
    else:
        last = PublishWindows(timer_offset=timer_offset, publisher=publisher)
    rows = apply_dofn(counted, last, Keyed if publisher.in_columns else publisher.row_type)
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


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct pairs of a stream and a key, each with a number, which it keeps: those that come later come behind.

    Attributes:
        codes: int64, shape (n,): the stream of each pair, by its place in a list.
        keys: uint64, shape (n,): its key in that stream.
    """

    codes: np.ndarray
    keys: np.ndarray

    @classmethod
    def none(cls) -> Pairs:
        """Return no pairs."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64))

    @cached_property
    def _order(self) -> np.ndarray:
        """The pairs in the order of streams, and of keys in each."""
        return np.lexsort((self.keys, self.codes))

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.codes[self._order], self.keys[self._order]

    def numbers(self, codes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of pairs, int64; -1 for those that are not here."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        place = np.minimum(self._places(codes, keys), len(self.keys) - 1)
        sorted_codes, sorted_keys = self._sorted
        here = (sorted_codes[place] == codes) & (sorted_keys[place] == keys)
        return np.where(here, self._order[place], -1)

    def with_more(self, codes: np.ndarray, keys: np.ndarray) -> Pairs:
        """Return also pairs, in the order of streams and keys, that are not here."""
        if not len(keys):
            return self
        more = Pairs(np.append(self.codes, codes), np.append(self.keys, keys))
        places, numbers = self._places(codes, keys), len(self.keys) + np.arange(len(keys))
        sorted_codes, sorted_keys = self._sorted
        vars(more)["_order"] = np.insert(self._order, places, numbers)  # without sorting all of them again
        vars(more)["_sorted"] = np.insert(sorted_codes, places, codes), np.insert(sorted_keys, places, keys)
        return more

    def _places(self, codes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return how many pairs come before each of some pairs: a binary search among the keys of its stream."""
        sorted_codes, sorted_keys = self._sorted
        if len(codes) and codes.min() == codes.max():
            first, last = np.searchsorted(sorted_codes, [codes[0], codes[0] + 1])
            return np.asarray(first + np.searchsorted(sorted_keys[first:last], keys))
        low, high = (np.searchsorted(sorted_codes, codes, side) for side in ("left", "right"))
        while np.any(open_ := low < high):
            middle = (low + high) // 2
            before = open_ & (sorted_keys[np.minimum(middle, len(sorted_keys) - 1)] < keys)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return np.asarray(low)
