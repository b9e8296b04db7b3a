"""The last stage of counts per key: how many people each key has in, noisy counts out."""

from __future__ import annotations

import io
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys, FoundState
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedState, KeyedStep
from privstream.mechanisms.noise.row_noise import RowNoise
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import (
    CountBatch,
    Names,
    StepKey,
    decode,
    encode,
    string_buffers,
)
from privstream.transforms.counts.contributions import add_up
from privstream.transforms.counts.finished import unsmoothed_columns
from privstream.transforms.reading.domain import Domain, PublicKeys
from privstream.transforms.timing.clock import STEP, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped

MOST_PARTS = 64  # in which texts are kept
WINDOW = ("window_start", "window_end")
REPLAYED = 64  # steps that are counted again at most when a state is restored


RememberedKeys = Any
"""What a shard of keys remembers: the mechanism's state, its keys, and texts: `NamedState` or `FoundNames`."""


class CountsOnClock(StepFn):
    """Per shard of keys, on a public clock: counts of a step in, a table out, which is the same for the same counts.

    The log has the whole state, and then what came in each step since: a state follows from these again.

    Attributes:
        mechanism: counts keys by their numbers.
        key_shards: how many shards of keys there are.
        domain: the public list of keys, which are then positions in it, or None.
        always: the keys that are published in every window, beside those that are found; None for none.
        row_type: what rows are: `KeyCount`, `KeyRise` or `KeySum`.
        counted: whether rows of tables are counted as published; else a view of them is.
    """

    kind = "named counts"  # of snapshots
    mechanism: Any
    key_shards: int
    domain: Domain | None
    always: PublicKeys | None
    row_type: Any
    counted: bool
    rows_published = Metrics.counter("privstream", "counts_published")

    @abstractmethod
    def remembered(self, counts: Any, keys: Keys, columns: dict[str, np.ndarray]) -> RememberedKeys:
        """Return what a shard remembers, with texts out of a snapshot."""

    def snapshot(self, state: RememberedKeys) -> bytes:
        """Encode all parts."""
        counts = self.mechanism.snapshot(state.counts)
        of: dict[str, Any] = {"shards": self.key_shards, "counts": counts, "keys": state.keys.keys}
        return pack(self.kind, 1, of | state.columns)

    def restore(self, data: bytes) -> RememberedKeys:
        """Decode all parts.

        Raises:
            SnapshotError: it was written by a run with other shards, in which other keys are.
        """
        found: dict[str, Any] = unpack(self.kind, 1, data)
        if (shards := found.pop("shards")) != self.key_shards:
            raise SnapshotError(f"state must be of a run with as many shards, {self.key_shards}, got {shards}")
        counts = self.mechanism.restore(found.pop("counts"))
        return self.remembered(counts, Keys(found.pop("keys")), found)

    def decode(self, key: bytes, segments: list[bytes]) -> RememberedKeys:
        """Restore the state, and count again what came since."""
        state: RememberedKeys = super().decode(key, segments[:1])
        for segment in segments[1:]:
            (step,) = STEP.unpack_from(segment)
            state, _ = self._counted(step, decode(CountBatch, segment[STEP.size :]), state)
        return state

    def step(self, key: bytes, step: int, batches: list[bytes], state: RememberedKeys) -> Stepped:
        """Publish one window."""
        after, found = self._counted(step, _join(batches), state)
        whole = (step + 1) % REPLAYED == 0
        to = StepKey(step, StepKey.from_bytes(key).shard).to_bytes()
        tables = [(to, self._table(step, after, found))] if len(found.keys) else []
        return Stepped(after, tables, None if whole else lambda: stepped(step, _joined_bytes(batches)))

    def _counted(self, step: int, counted: CountBatch, state: RememberedKeys) -> tuple[RememberedKeys, KeyedRows]:
        """Return the state after a step, and what is published about it."""
        keys, numbers = state.keys.with_numbers(counted.items)
        number = self.steps.number(step)
        given = KeyedStep(
            step=number,
            keys=numbers.astype(np.uint64),
            counts=counted.counts,
            people=_present(counted.new) if self.mechanism.needs_people else None,
            sums=None if self.mechanism.max_value is None else _present(counted.sums),
            listed=_present(counted.new) if self.mechanism.lists(number) else None,
        )
        counts, found = self.mechanism.step(state.counts, given, RowNoise(self.noise_of(step), keys.keys))
        return state.after(counts, keys, counted.names), found

    def _table(self, step: int, state: RememberedKeys, found: KeyedRows) -> bytes:
        """Return the rows of a step of one shard of keys as an Arrow stream of tables, times in microseconds.

        They are in the order of keys, which tells which of them somebody had first: they must be sorted.
        """
        names, batches = state.named(found), []
        for one in (found, *found.earlier):
            columns = dict.fromkeys(self.row_type._fields) | unsmoothed_columns(one, self.mechanism.max_value)
            some = state.keys.keys[one.keys]
            texts = names.texts(some) if self.domain is None else self.domain.texts.take(some)
            columns["item"] = texts.cast(pa.large_string())
            columns |= zip(WINDOW, self.steps.bounds_micros(step - (found.step - one.step)), strict=True)
            arrays = []
            for name in self.row_type._fields:
                several = isinstance(column := columns[name], np.ndarray | pa.Array)
                arrays.append(pa.array(column, from_pandas=True) if several else pa.repeat(column, len(some)))
            batches.append(pa.RecordBatch.from_arrays(arrays, list(self.row_type._fields)))
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        if self.counted:
            self.rows_published.inc(sum(map(len, batches)))
        return stream.getvalue()


@dataclass(frozen=True, eq=False)
class NamedState:
    """What a shard remembers, with the texts of those keys that may be published.

    A key that waits for more people needs no text: when it is considered at last, new contributions bring it.
    """

    counts: KeyedState
    keys: Keys
    names: Names

    @property
    def columns(self) -> dict[str, Any]:
        """The texts."""
        return {f"names_{name}": column for name, column in vars(self.names).items()}

    def after(self, counts: KeyedState, keys: Keys, names: Names) -> NamedState:
        """Return what follows a step that came with these texts."""
        considered = np.setdiff1d(counts.counted.keys, self.counts.counted.keys, assume_unique=True)
        if not len(names.items) or not len(considered):
            return NamedState(counts, keys, self.names)
        return NamedState(counts, keys, Names.union([self.names, names.select(np.sort(keys.keys[considered]))]))

    def named(self, found: KeyedRows) -> Names:
        """Return all texts."""
        return self.names


class PublishCounts(CountsOnClock, state="publish_counts"):
    """Publish counts that span windows, or of public keys."""

    def initial(self, key: bytes) -> NamedState:
        """Count nothing yet; of a public list, the keys of this shard."""
        domain = self.domain
        if domain is None:
            return NamedState(self.mechanism.initial_state(), Keys.none(), Names.none())
        keys = Keys(np.arange(StepKey.from_bytes(key).shard, len(domain.texts), self.key_shards, dtype=np.uint64))
        numbers = np.arange(len(keys.keys), dtype=np.uint64)
        return NamedState(self.mechanism.initial_state(numbers), keys, Names.none())

    def remembered(self, counts: Any, keys: Keys, columns: dict[str, np.ndarray]) -> NamedState:
        """Return the state."""
        return NamedState(counts, keys, Names(*columns.values()))


@dataclass(frozen=True, eq=False)
class FoundNames:
    """What a shard remembers, with the texts of all keys by their numbers, in the parts in which they came."""

    counts: FoundState
    keys: Keys
    texts: tuple[pa.LargeStringArray, ...] = ()

    @property
    def columns(self) -> dict[str, Any]:
        """The texts."""
        offsets, text = string_buffers(self._taken(np.arange(len(self.keys.keys))))
        return {"offsets": offsets, "text": text}

    def after(self, counts: FoundState, keys: Keys, names: Names) -> FoundNames:
        """Return what follows a step that came with these texts."""
        more = keys.keys[len(self.keys.keys) :]
        texts = (*self.texts, names.texts(more)) if len(more) else self.texts
        if len(texts) > MOST_PARTS:
            texts = (pa.concat_arrays(texts),)
        return FoundNames(counts, keys, texts)

    def named(self, found: KeyedRows) -> Names:
        """Return the texts of keys that are published."""
        keys, first = np.unique(self.keys.keys[found.keys], return_index=True)
        return Names.of(keys, self._taken(found.keys[first]))

    def only(self, counts: FoundState, numbers: np.ndarray) -> FoundNames:
        """Return some keys, which get the numbers 0, 1, .. in this order, with another state of the mechanism."""
        return FoundNames(counts, Keys(self.keys.keys[numbers]), (self._taken(numbers),))

    def _taken(self, numbers: np.ndarray) -> pa.LargeStringArray:
        texts = pa.chunked_array(self.texts, pa.large_string()).take(pa.array(numbers, pa.int64()))
        return pa.concat_arrays([pa.array([], pa.large_string()), *texts.chunks])


class PublishFound(CountsOnClock, state="publish_found"):
    """Publish counts of windows, of keys that are not public and stay found; also in the periods that follow."""

    kind = "found keys"
    mechanism: FoundKeys

    def initial(self, key: bytes) -> FoundNames:
        """Know the keys of the public list alone."""
        if self.always is None:
            return FoundNames(self.mechanism.initial_state(), Keys.none())
        names = self.always.of_shard(StepKey.from_bytes(key).shard, self.key_shards)
        return FoundNames(self.mechanism.initial_state(public=len(names.items)), Keys(names.items), (names.to_arrow(),))

    def afresh(self, key: bytes, state: FoundNames) -> FoundNames:
        """Carry over the keys that were found, unless nothing but noise was published of them."""
        return state.only(*self.mechanism.renewed(state.counts))

    def step(self, key: bytes, step: int, batches: list[bytes], state: RememberedKeys) -> Stepped:
        """Publish one window; at once where nothing has come and nothing is remembered."""
        if batches or state.counts.windows or len(state.counts.found) or state.counts.listed.any():
            return super().step(key, step, batches, state)
        counts = replace(self.mechanism.initial_state(), step=state.counts.step + 1)
        return Stepped(FoundNames(counts, Keys.none()))

    def remembered(self, counts: Any, keys: Keys, columns: dict[str, np.ndarray]) -> FoundNames:
        """Return the state."""
        names = Names(np.arange(len(keys.keys), dtype=np.uint64), columns["offsets"], columns["text"])
        return FoundNames(counts, keys, (names.to_arrow(),))

    def _counted(self, step: int, counted: CountBatch, state: RememberedKeys) -> tuple[RememberedKeys, KeyedRows]:
        """Forget, every now and then, keys that have no effect any more: when is public."""
        if state.counts.step and state.counts.step % self.mechanism.kept == 0:
            assert isinstance(state, FoundNames)
            state = state.only(*self.mechanism.compact(state.counts))
        return super()._counted(step, counted, state)


NO_COUNTS = CountBatch.join([])


def _join(batches: list[bytes]) -> CountBatch:
    found = CountBatch.read(batches) if batches else NO_COUNTS
    return add_up(found) if len(batches) > 1 else found  # each is added up


def _joined_bytes(batches: list[bytes]) -> bytes:
    return batches[0] if len(batches) == 1 else encode(_join(batches))  # one that is whole stays as it came


def _present(column: np.ndarray | None) -> np.ndarray:
    """Return a column of a step, which is missing where the step brought nothing."""
    return np.zeros(0, np.int64) if column is None else column


@dataclass(frozen=True, eq=False)
class Keys:
    """Distinct keys, each with a number, which it keeps: those that come later come behind.

    Attributes:
        keys: uint64, shape (n,).
    """

    keys: np.ndarray

    @classmethod
    def none(cls) -> Keys:
        """Return no keys."""
        return cls(np.empty(0, np.uint64))

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.keys)

    @cached_property
    def _sorted(self) -> np.ndarray:
        return np.asarray(self.keys[self._order])

    def with_numbers(self, keys: np.ndarray) -> tuple[Keys, np.ndarray]:
        """Return also those of some keys, increasing, that are not here, and the numbers of all of these, int64."""
        places = np.searchsorted(self._sorted, keys)
        here = np.zeros(len(keys), bool)
        inside = places < len(self.keys)
        here[inside] = self._sorted[places[inside]] == keys[inside]
        numbers = np.empty(len(keys), np.int64)
        numbers[here] = self._order[places[here]]
        numbers[~here] = len(self.keys) + np.arange(len(keys) - here.sum())
        if here.all():
            return self, numbers
        more = Keys(np.append(self.keys, keys[~here]))
        vars(more)["_order"] = np.insert(self._order, places[~here], numbers[~here])  # without sorting all of them
        vars(more)["_sorted"] = np.insert(self._sorted, places[~here], keys[~here])
        return more, numbers
