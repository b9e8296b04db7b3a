"""KeyedCounts: how many people have each item, and what their values add up to; and questions that are views of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedRows, KeyedStep
from privstream.mechanisms.mechanism import pack, unpack
from privstream.mechanisms.views.counts import RELEASED, ShownCounts
from privstream.transforms.batches import (
    CountBatch,
    Keyed,
    Names,
    StepKey,
    encode,
    from_stream,
    shard_key,
    string_buffers,
    to_stream,
)
from privstream.transforms.counts.contributions import (
    CLOCK,
    CountContributions,
    CountEvents,
    ReleaseDropped,
    SampleContributions,
    add_up,
)
from privstream.transforms.counts.keyed_counts import MOST_IN_WINDOW, CountedParameters, CountsParameters, Follow
from privstream.transforms.people.bounding import BoundPerWindow
from privstream.transforms.reading.domain import Domain, public_keys
from privstream.transforms.row_types import Time, types_of
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.step_fn import STEP, StepFn, Stepped, WithClock, on_clock, stepped, unchanged
from typing_extensions import override

REWRITTEN = 64  # steps after which a log is written anew
TIMES = ("window_start", "window_end")
NO_COUNTS = CountBatch.join([])
NO_KEYS = np.empty(0, np.uint64)
NO_TEXTS = pa.array([], pa.large_string())
NOTHING = np.zeros(0, np.int64)
"""A column that is missing where a step brought nothing."""


class KnownKeys(NamedTuple):
    """What a shard of keys remembers."""

    counts: Any  # state of the mechanism
    keys: np.ndarray  # distinct, uint64; the number of each is its place
    texts: pa.LargeStringArray = NO_TEXTS  # of these; none where keys are positions in a public list

    def only(self, counts: Any, numbers: np.ndarray) -> KnownKeys:
        """Return some keys, which get the numbers 0, 1, .. in this order, with another state of the mechanism."""
        return KnownKeys(counts, self.keys[numbers], self.texts.take(pa.array(numbers, pa.int64())))


class PublishCounts(StepFn, state="publish_counts"):
    """Per shard of keys, on a public clock: counts of a step in, a table out, which is the same for the same counts.

    The log has the whole state, and then what came in each step since: a state follows from these again. Keys that are
    not public and stay found are carried over to the periods that follow.
    """

    mechanism: Any  # counts keys by their numbers
    key_shards: int
    domain: Domain | None  # the public list of keys, which are then positions in it
    always: Names | None  # keys that are published in every window, in addition to those found
    released_type: Any  # whose columns tables have
    ended: bool  # whether tables come with step and shard, and rows count as published; else `ShowCounts` follows
    rows_published = Metrics.counter("privstream", "counts_published")

    @override
    def setup(self) -> None:
        """Make the tables that noise is drawn from, so that no window waits for them."""
        law = self.mechanism.law
        people = getattr(law, "people", None)
        for noise in (*law.noises, *(people.noises if people else ())):
            noise.law.draw(self.noise, 0)

    @override
    def initial(self, key: bytes) -> KnownKeys:
        shard = StepKey.from_bytes(key).shard
        if self.domain is not None:
            keys = np.arange(shard, len(self.domain.texts), self.key_shards, dtype=np.uint64)
            return KnownKeys(self.mechanism.initial_state(np.arange(len(keys), dtype=np.uint64)), keys)
        if self.always is None:
            return KnownKeys(self.mechanism.initial_state(), NO_KEYS)
        names = self.always.select(self.always.items[self.always.items % np.uint64(self.key_shards) == shard])
        counts = self.mechanism.initial_state(public=len(names.items))
        return KnownKeys(counts, names.items, names.to_arrow())

    @override
    def begin_period(self, key: bytes, state: KnownKeys) -> KnownKeys:
        """Carry over the keys that were found, unless nothing but noise was published of them."""
        if not isinstance(self.mechanism, FoundKeys):
            return self.initial(key)
        return state.only(*self.mechanism.renewed(state.counts))

    @override
    def snapshot(self, state: KnownKeys) -> bytes:
        offsets, text = string_buffers(state.texts)
        counts = self.mechanism.snapshot(state.counts)
        columns = {"shards": self.key_shards, "counts": counts, "keys": state.keys}
        return pack("known keys", 1, columns | {"offsets": offsets, "text": text})

    @override
    def restore(self, data: bytes) -> KnownKeys:
        """Decode all parts; refuse those of a run with other shards, in which other keys are."""
        found: dict[str, Any] = unpack("known keys", 1, data)
        if (shards := found["shards"]) != self.key_shards:
            raise SnapshotError(f"state must be of a run with as many shards, {self.key_shards}, got {shards}")
        numbers = np.arange(len(found["offsets"]) - 1, dtype=np.uint64)
        texts = Names(numbers, found["offsets"], found["text"]).to_arrow()
        return KnownKeys(self.mechanism.restore(found["counts"]), found["keys"], texts)

    @override
    def decode(self, segments: list[bytes]) -> KnownKeys:
        """Restore the state, and count again what came since."""
        state: KnownKeys = super().decode(segments)
        for segment in segments[1:]:
            (step,) = STEP.unpack_from(segment)
            state, _ = self._counted(step, CountBatch.read([segment[STEP.size :]]), state)
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
        known = pc.index_in(pa.array(counted.items), value_set=pa.array(state.keys))
        new = known.is_null().to_numpy(zero_copy_only=False)
        keys, numbers = np.append(state.keys, counted.items[new]), known.fill_null(0).to_numpy().astype(np.uint64)
        numbers[new] = np.arange(len(state.keys), len(keys))
        given = KeyedStep(
            step=number,
            keys=numbers,
            counts=counted.counts,
            sums=None if mechanism.max_value is None else NOTHING if counted.sums is None else counted.sums,
            listed=(NOTHING if counted.new is None else counted.new) if mechanism.bounds.listed else None,
            names=keys,
        )
        counts, found = mechanism.step(state.counts, given, self.steps.renewed(self.noise, step))
        texts, fresh = state.texts, keys[len(state.keys) :]
        if len(fresh) and self.domain is None:
            texts = pa.concat_arrays([texts, counted.names.texts(fresh)])
        return KnownKeys(counts, keys, texts), found

    def _table(self, step: int, state: KnownKeys, found: KeyedRows) -> pa.Table:
        """Return what is released of a step of one shard of keys, times in microseconds; views fill in the rest.

        They are in the order of keys, which tells which of them somebody had first: they must be sorted.
        """
        tables = []
        for one in (found, *found.earlier):
            columns: dict[str, Any] = dict(zip(RELEASED, one.answers, strict=False))
            if self.domain is None:
                columns["item"] = state.texts.take(pa.array(one.keys))
            else:
                columns["item"] = self.domain.texts.take(state.keys[one.keys]).cast(pa.large_string())
            for name, moment in zip(TIMES, self.steps.bounds_micros(step - (found.step - one.step)), strict=True):
                columns[name] = np.full(len(one.keys), moment)
            tables.append(pa.table({name: columns[name] for name in self.released_type._fields}))
        return pa.concat_tables(tables)


def rows_of(row_type: Any, table: pa.Table) -> list[Any]:
    """Return the rows of a table, whose times are in microseconds, as pipelines have them."""
    columns, moment = [], cache(lambda micros: Timestamp(micros=micros))
    for name, kind in types_of(row_type).items():
        column = table[name].to_pylist()
        columns.append(list(map(moment, column)) if kind is Time else column)
    return list(map(row_type, *columns))


class ShownBefore(NamedTuple):
    """What views look at. All of it is public."""

    released: dict[int, pa.Table]  # in the last windows with rows, by step, as far as numbers are made of it
    shown: pa.Table | None = None  # after the last of these


class ShowCounts(StepFn, state="show_counts"):
    """On one public clock: tables of all shards of keys in, rows that views make of the last ones out. No noise."""

    row_type: Any
    view: ShownCounts
    follow: Follow | None  # what is made of the counts of a window that are shown

    @override
    def initial(self, key: bytes) -> ShownBefore:
        return ShownBefore({})

    @override
    def begin_period(self, key: bytes, state: ShownBefore) -> ShownBefore:
        return state  # it is public, and items that stay found go on

    @override
    def encode(self, state: ShownBefore) -> list[bytes]:
        return [self._segment(step, table, state.shown) for step, table in state.released.items()]

    def _segment(self, step: int, released: pa.Table, shown: pa.Table | None) -> bytes:
        made = b"" if self.follow is None or shown is None else to_stream(shown)
        return pack("shown counts", 1, {"step": step, "released": to_stream(released), "shown": made})

    @override
    def decode(self, segments: list[bytes]) -> ShownBefore:
        released, shown = dict[int, pa.Table](), None
        for segment in segments:
            found: dict[str, Any] = unpack("shown counts", 1, segment)
            released[found["step"]] = from_stream(found["released"])
            shown = from_stream(found["shown"]) if found["shown"] else None
        return ShownBefore(released, shown)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: ShownBefore) -> Stepped:
        before = {when: table for when, table in state.released.items() if when > step - self.view.lookback}
        if not batches:
            return Stepped(ShownBefore(before, state.shown), (), unchanged)
        released, (start, _) = pa.concat_tables(map(from_stream, batches)), self.steps.bounds_micros(step)
        shown = self.view.newest([*before.values()], released, start)
        if self.follow is not None or self.view.top is not None:
            shown = shown.filter(pc.equal(shown["window_start"], start))
        shown = self.view.chosen(shown)
        if self.follow is not None:
            shown = self.follow(shown, state.shown)
        self.published.inc(len(shown))
        rows = rows_of(self.row_type, shown)
        if self.view.lookback == 1 and self.follow is None:
            return Stepped(state, rows, unchanged)
        return Stepped(
            ShownBefore({**before, step: released}, shown), rows, lambda: self._segment(step, released, shown)
        )


class KeyedCounts(CountsParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    then: tuple[type, Follow, str] | None = None
    """What is made of the counts that are shown: the type of its rows, how they are made, and their counter."""

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        *shared, last = super().segments
        return *shared, last._replace(gives=Keyed) if self.ended else last

    @override
    def _splitter(self, **given: Any) -> beam.DoFn:
        return super()._splitter(max_value=self.mechanism.max_value, **given)

    @override
    def _limits(self) -> Sequence[beam.DoFn]:
        _ = self.mechanism.law  # once, at launch; workers receive it
        if not self._by_person:
            return (CountEvents(steps=self.steps),)
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        bound, dropped = self.bound, self.dropped_share
        assert bound is not None
        in_window = BoundPerWindow(
            **common,
            items_per_step=min(bound.in_run if dropped is None else bound.in_run + dropped.clip, MOST_IN_WINDOW),
            by_people=True,
            in_parts=bound.sampled,
            ranked=False,
            distinct=bound.sampled and self._distinct,
        )
        count = (SampleContributions if bound.sampled else CountContributions)(
            **common,
            timer_offset=1,
            bound=bound,
            distinct=self._distinct,
            key_shards=self.shards,
            max_value=self.mechanism.max_value or 0,
            lists=self.mechanism if isinstance(self.mechanism, FoundKeys) and self.mechanism.listed else None,
            dropped=dropped,
        )
        return in_window, count

    @override
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        mechanism = self.mechanism
        if mechanism.windows > 1:  # sums of windows are a view
            mechanism = replace(mechanism, over="window")
        publish = PublishCounts(
            steps=self.steps,
            timer_offset=2,
            mechanism=mechanism,
            noise=self.counting_noise,
            key_shards=self.shards,
            domain=self.domain,
            always=None if self.public_items is None else public_keys(self.public_items, self.noise),
            released_type=self.released_type,
            ended=self.ended,
        )
        counts = self._without_sums(counted, apply_dofn)
        clocks = WithClock(self.steps, map(shard_key, self._shared.of(self.shards)))
        tables = apply_dofn(counts | "WithClock" >> clocks, publish, Keyed)
        if self.ended:
            return tables
        row_type, follow, counter = self.then or (self.row_type, None, self.counter)
        given = {"row_type": row_type, "view": self.shown, "follow": follow, "counter": counter}
        show = ShowCounts(steps=self.steps, timer_offset=3, **given)
        return apply_dofn(tables | "ShowClock" >> WithClock(self.steps), show, row_type)

    def _without_sums(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stage that releases what limits drop, in one process, and return the counts alone."""
        if (mechanism := self.dropped_share) is None:
            return counted
        if self._shared.number == 0:
            sums = counted | "Sums" >> beam.Filter(lambda element: element[0] == CLOCK).with_output_types(Keyed)
            given = {"mechanism": mechanism, "noise": self.counting_noise, "readings": self.shares_read}
            release = ReleaseDropped(steps=self.steps, timer_offset=2, **given)
            apply_dofn(sums | "SumsWithClock" >> WithClock(self.steps, (CLOCK,)), release, bytes)
        return cast(
            PCollection[Any],
            counted | "Counts" >> beam.Filter(lambda element: element[0] != CLOCK).with_output_types(Keyed),
        )


class CountedTransform(CountedParameters, PeopleTransform):
    """Counts and a view of them, or the stages of another method."""

    counts_type = KeyedCounts

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.counts is None:
            return super().segments
        counts = cast(KeyedCounts, copy.copy(self.counts))
        counts._shared, counts._names = self._shared, self._names
        counts.then = self.row_type, self.follow, self.counter
        return counts.segments
