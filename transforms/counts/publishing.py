"""The release of counts: per shard of keys, a table of noisy counts for each window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedRows, KeyedStep
from privstream.mechanisms.noise.sources import RowNoise
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.counts import released_columns
from privstream.transforms.batches import (
    CountBatch,
    StepKey,
    decode,
    encode,
    string_array,
    string_buffers,
    to_stream,
)
from privstream.transforms.counts.contributions import add_up
from privstream.transforms.reading.domain import Domain, PublicKeys
from privstream.transforms.timing.clock import STEP, on_clock, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped
from typing_extensions import override

REWRITTEN = 64  # steps after which a log is written anew
TIMES = ("window_start", "window_end")
NO_COUNTS = CountBatch.join([])
NO_TEXTS = pa.array([], pa.large_string())
NOTHING = np.zeros(0, np.int64)
"""A column that is missing where a step brought nothing."""


@dataclass(frozen=True, eq=False)
class Keys:
    """Distinct keys, uint64 (n,), each with a number, which it keeps; their order, and the keys in order."""

    keys: np.ndarray
    order: np.ndarray
    ordered: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray) -> Keys:
        """Number keys."""
        order = np.argsort(keys)
        return cls(keys, order, keys[order])

    def with_numbers(self, keys: np.ndarray) -> tuple[Keys, np.ndarray]:
        """Return also those of some keys, increasing, that are not here, and the numbers of all of these, int64."""
        places = np.searchsorted(self.ordered, keys)
        here = np.zeros(len(keys), bool)
        inside = places < len(self.keys)
        here[inside] = self.ordered[places[inside]] == keys[inside]
        numbers = np.empty(len(keys), np.int64)
        numbers[here] = self.order[places[here]]
        numbers[~here] = len(self.keys) + np.arange(len(keys) - here.sum())
        if here.all():
            return self, numbers
        order = np.insert(self.order, places[~here], numbers[~here])  # without sorting all of them
        ordered = np.insert(self.ordered, places[~here], keys[~here])
        return Keys(np.append(self.keys, keys[~here]), order, ordered), numbers


NO_KEYS = Keys.of(np.empty(0, np.uint64))


class KnownKeys(NamedTuple):
    """What a shard of keys remembers."""

    counts: Any  # state of the mechanism
    keys: Keys
    texts: pa.LargeStringArray = NO_TEXTS  # of these; none where keys are positions in a public list

    def only(self, counts: Any, numbers: np.ndarray) -> KnownKeys:
        """Return some keys, which get the numbers 0, 1, .. in this order, with another state of the mechanism."""
        return KnownKeys(counts, Keys.of(self.keys.keys[numbers]), self.texts.take(pa.array(numbers, pa.int64())))


class PublishCounts(StepFn, state="publish_counts"):
    """Per shard of keys, on a public clock: counts of a step in, a table out, which is the same for the same counts.

    The log has the whole state, and then what came in each step since: a state follows from these again. Keys that are
    not public and stay found are carried over to the periods that follow.
    """

    mechanism: Any  # counts keys by their numbers
    key_shards: int
    domain: Domain | None  # the public list of keys, which are then positions in it
    always: PublicKeys | None  # keys that are published in every window, beside those that are found
    row_type: Any  # whose columns tables have
    ended: bool  # whether tables come with step and shard, and rows count as published; else `ShowCounts` follows
    rows_published = Metrics.counter("privstream", "counts_published")

    @override
    def initial(self, key: bytes) -> KnownKeys:
        shard = StepKey.from_bytes(key).shard
        if self.domain is not None:
            keys = Keys.of(np.arange(shard, len(self.domain.texts), self.key_shards, dtype=np.uint64))
            return KnownKeys(self.mechanism.initial_state(np.arange(len(keys.keys), dtype=np.uint64)), keys)
        if self.always is None:
            return KnownKeys(self.mechanism.initial_state(), NO_KEYS)
        names = self.always.of_shard(shard, self.key_shards)
        counts = self.mechanism.initial_state(public=len(names.items))
        return KnownKeys(counts, Keys.of(names.items), names.words)

    @override
    def afresh(self, key: bytes, state: KnownKeys) -> KnownKeys:
        """Carry over the keys that were found, unless nothing but noise was published of them."""
        if not isinstance(self.mechanism, FoundKeys):
            return self.initial(key)
        return state.only(*self.mechanism.renewed(state.counts))

    @override
    def snapshot(self, state: KnownKeys) -> bytes:
        offsets, text = string_buffers(state.texts)
        counts = self.mechanism.snapshot(state.counts)
        columns = {"shards": self.key_shards, "counts": counts, "keys": state.keys.keys}
        return pack("known keys", 1, columns | {"offsets": offsets, "text": text})

    @override
    def restore(self, data: bytes) -> KnownKeys:
        """Decode all parts.

        Raises:
            SnapshotError: it was written by a run with other shards, in which other keys are.
        """
        found: dict[str, Any] = unpack("known keys", 1, data)
        if (shards := found["shards"]) != self.key_shards:
            raise SnapshotError(f"state must be of a run with as many shards, {self.key_shards}, got {shards}")
        texts = string_array(found["offsets"], found["text"])
        return KnownKeys(self.mechanism.restore(found["counts"]), Keys.of(found["keys"]), texts)

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> KnownKeys:
        """Restore the state, and count again what came since."""
        state: KnownKeys = super().decode(key, segments[:1])
        for segment in segments[1:]:
            (step,) = STEP.unpack_from(segment)
            state, _ = self._counted(step, decode(CountBatch, segment[STEP.size :]), state)
        return state

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: KnownKeys) -> Stepped:
        """Publish one window; at once where nothing has come and nothing is remembered."""
        counts = state.counts
        found_keys = isinstance(self.mechanism, FoundKeys)
        if found_keys and not (batches or counts.windows or len(counts.found) or counts.listed.any()):
            return Stepped(KnownKeys(replace(self.mechanism.initial_state(), step=counts.step + 1), NO_KEYS))
        counted = CountBatch.read(batches) if batches else NO_COUNTS
        counted = add_up(counted) if len(batches) > 1 else counted  # each is added up
        after, found = self._counted(step, counted, state)
        whole = (step + 1) % REWRITTEN == 0
        tables = []
        if len(found.keys):
            table = self._table(step, after, found)
            to, data = StepKey(step, StepKey.from_bytes(key).shard).to_bytes(), to_stream(table)
            tables = [(to, data) if self.ended else on_clock(step, data)]
            self.rows_published.inc(len(table) if self.ended else 0)

        def came() -> bytes:
            return stepped(step, batches[0] if len(batches) == 1 else encode(counted))

        return Stepped(after, tables, None if whole else came)

    def _counted(self, step: int, counted: CountBatch, state: KnownKeys) -> tuple[KnownKeys, KeyedRows]:
        """Return the state after a step, and what is published about it.

        Every now and then, when is public, keys that have no effect any more are forgotten.
        """
        mechanism, number = self.mechanism, self.steps.number(step)
        if isinstance(mechanism, FoundKeys) and state.counts.step and state.counts.step % mechanism.kept == 0:
            state = state.only(*mechanism.compact(state.counts))
        keys, numbers = state.keys.with_numbers(counted.items)
        given = KeyedStep(
            step=number,
            keys=numbers.astype(np.uint64),
            counts=counted.counts,
            sums=None if mechanism.max_value is None else NOTHING if counted.sums is None else counted.sums,
            listed=(NOTHING if counted.new is None else counted.new) if mechanism.lists(number) else None,
        )
        counts, found = mechanism.step(state.counts, given, RowNoise(self.noise_of(step), keys.keys))
        texts, fresh = state.texts, keys.keys[len(state.keys.keys) :]
        if len(fresh) and self.domain is None:
            texts = pa.concat_arrays([texts, counted.names.texts(fresh)])
        return KnownKeys(counts, keys, texts), found

    def _table(self, step: int, state: KnownKeys, found: KeyedRows) -> pa.Table:
        """Return the rows of a step of one shard of keys, times in microseconds.

        They are in the order of keys, which tells which of them somebody had first: they must be sorted.
        """
        tables, names = [], list(self.row_type._fields)
        for one in (found, *found.earlier):
            number = len(one.keys)
            answers = np.array([one.counts] if one.sums is None else [one.counts, one.sums])
            margins = np.array(one.of_each("count_margin", "sum_margin"))
            columns = dict.fromkeys(names, pa.nulls(number))
            columns |= released_columns(answers, margins, self.mechanism.max_value)
            if self.domain is None:
                columns["item"] = state.texts.take(pa.array(one.keys))
            else:
                columns["item"] = self.domain.texts.take(state.keys.keys[one.keys]).cast(pa.large_string())
            for name, moment in zip(TIMES, self.steps.bounds_micros(step - (found.step - one.step)), strict=True):
                columns[name] = np.full(number, moment)
            tables.append(pa.table([pa.array(columns[name], from_pandas=True) for name in names], names))
        return pa.concat_tables(tables)
