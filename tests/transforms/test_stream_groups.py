"""Many streams under few keys: every stream is answered as it would be alone, and costs its rows."""

import random
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import slow_reference
import tiny_runner
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.routed import SideBySide
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import ShiftingHeavyHitters, batches
from privstream.transforms.batches import (
    GROUPS,
    EventBatch,
    HolderBatch,
    InStreams,
    Names,
    StepKey,
    encode,
    group_of,
    seal_encoded,
    seal_parts,
    unseal,
)
from privstream.transforms.events.bounding import BoundAcrossWindows
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.split import SplitEvents
from privstream.transforms.timing.steps import Steps
from workloads import COMMON, KEY, SECOND, START, random_events, transform

HOSTILE = ("", "0", "\0", "a\nb", "ä", "a" * 5000, "../x", '{"stream": 1}', "\U0010ffff")
NOISE = KeyedNoise(KEY)
STEPS = Steps(size=1000, period=1000)
ROWS = st.lists(st.tuples(st.sampled_from(HOSTILE), st.integers(1, 9), st.integers(1, 5)), max_size=30)


def held(rows) -> HolderBatch:
    users, items = np.array(rows, np.uint64).reshape(-1, 2).T
    distinct = np.unique(items)
    names = Names.of(distinct, pa.array([f"item {item}" for item in distinct.tolist()], pa.string()))
    return HolderBatch(users, items, np.zeros(len(users), np.uint16), names)


def together(rows) -> InStreams[HolderBatch]:
    streams = sorted({stream for stream, _, _ in rows})
    codes = np.array([streams.index(stream) for stream, _, _ in rows], np.int64)
    return InStreams.sort(streams, codes, held([row[1:] for row in rows]))


def rows_in(found: InStreams[HolderBatch]) -> list:
    return sorted(
        (stream, user, batch.names[item])
        for stream, batch in found.each()
        for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True)
    )


@given(ROWS, ROWS, st.data())
def test_streams_keep_their_rows_whatever_their_names_are(first, second, data):
    joined = InStreams.join(HolderBatch, [together(first), together(second), InStreams.empty(HolderBatch, ["nobody"])])
    joined = InStreams.from_bytes(HolderBatch, joined.to_bytes())
    assert rows_in(joined) == sorted((stream, user, f"item {item}") for stream, user, item in first + second)
    assert joined.without_rows == ["nobody"]
    rows = sorted(data.draw(st.sets(st.integers(0, len(joined.users) - 1)))) if len(joined.users) else []
    kept = joined.take(np.array(rows, np.int64))
    assert kept.users.tolist() == joined.users[rows].tolist()
    assert kept.streams == tuple(sorted({joined.streams[joined.codes[row]] for row in rows}))
    people = joined.people()
    pairs = list(zip(joined.codes.tolist(), joined.users.tolist(), strict=True))
    assert len(set(people.tolist())) == len(set(pairs)) == len(set(zip(people.tolist(), pairs, strict=True)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_noise_side_by_side_is_that_of_each_source(sizes):
    sources = [NOISE.derive("stream", number) for number in range(len(sizes))]
    starts = [0, *np.cumsum(sizes).tolist()]
    labels, values = np.arange(starts[-1], dtype=np.uint64), np.arange(starts[-1])
    several = SideBySide(sources, starts).derive("x", 3)
    parts = [(source.derive("x", 3), slice(a, b)) for source, a, b in zip(sources, starts, starts[1:], strict=False)]
    alone = np.concatenate([source.words(labels[part]) for source, part in parts])
    assert several.words(labels).tolist() == alone.tolist()
    bound = np.concatenate([source.bind(labels[part], values[part]) for source, part in parts])
    assert several.bind(labels, values).tolist() == bound.tolist()
    with pytest.raises(ValueError, match="labels must be an array"):
        several.words(np.append(labels, np.uint64(7)))


def test_a_record_of_a_version_with_a_key_for_each_stream_is_refused():
    for batch in (held([(1, 2)]), EventBatch.join([])):
        with pytest.raises(SnapshotError):
            InStreams.from_bytes(type(batch), encode(batch))


@given(ROWS, st.integers(1, 5))
def test_parts_of_a_batch_are_small_and_lose_nothing(rows, most):
    batch = held([row[1:] for row in rows])
    with mock.patch.object(batches, "MOST_ROWS", most):
        parts = [unseal(HolderBatch, part) for part in seal_parts(StepKey("s", 1, 2), batch)]
    assert len(parts) == max(1, -(-len(batch.users) // most))
    assert all(len(part.users) <= most for part in parts)
    joined = HolderBatch.join(parts)
    for name in ("users", "items"):
        assert getattr(joined, name).tolist() == getattr(batch, name).tolist()
    assert [joined.names[item] for item in joined.items] == [batch.names[item] for item in batch.items]


def test_the_size_of_parts_changes_no_row(monkeypatch):
    made, events = transform("public streams"), random_events("public streams", random.Random(5))
    expected = slow_reference.heavy_hitters(made, events)
    monkeypatch.setattr(batches, "MOST_ROWS", 2)
    chain = tiny_runner.run_chain(made, events, random.Random(1), crashes=0.2)
    assert expected
    assert sorted(chain.rows) == expected


@pytest.mark.parametrize(
    "name", ["public streams", "known domain, streams", "status, streams", "counts, known domain, streams"]
)
@pytest.mark.parametrize("groups", [1, 64])
def test_the_number_of_groups_changes_no_row(name, groups, monkeypatch):
    made, events = transform(name), random_events(name, random.Random(5))
    expected = slow_reference.heavy_hitters(made, events)
    monkeypatch.setattr(batches, "GROUPS", groups)
    caches = (batches._short_group, tiny_runner.dofns_of)
    for cache in caches:
        cache.cache_clear()
    try:
        chain = tiny_runner.run_chain(made, events, random.Random(1), crashes=0.2)
    finally:
        for cache in caches:
            cache.cache_clear()
    assert expected
    assert sorted(chain.rows) == expected


def many_streams() -> tuple[ShiftingHeavyHitters, list]:
    """Return events of a hundred streams, one of which has most of them."""
    made = ShiftingHeavyHitters(
        **{**COMMON, "noise": NOISE, "streams_per_person": 2, "max_hits": 3, "count_share": 0.1}
    )
    chance, events = random.Random(4), []
    for number in range(100):
        stream = HOSTILE[number] if number < len(HOSTILE) else f"s{number}"
        for person in range(900 if number == 3 else 12):
            time = START * SECOND + chance.randrange(3 * made.steps.size)
            events.append((f"u{number}-{person}", "a", time, stream))
    return made, events


def test_one_large_stream_and_many_small_ones_have_the_rows_of_the_reference():
    made, events = many_streams()
    expected = slow_reference.heavy_hitters(made, events)
    assert {row.stream for row in expected} >= {HOSTILE[3]}
    chain = tiny_runner.run_chain(made, events, random.Random(2), crashes=0.1)
    assert sorted(chain.rows) == expected
    late = [(f"late {n}", "a", START * SECOND + n, stream) for n, (*_, stream) in enumerate(events[::40])]
    chain.arrive(late)
    chain.advance(tiny_runner.END)
    assert sorted(chain.rows) == expected
    positions = [letter.position for letter in chain.dead_letters()]
    assert len(positions) == len(late) * made.steps.overlap
    assert all(any(f"stream {stream}" in position for position in positions) for *_, stream in late if stream)


def test_streams_cost_no_keys_of_their_own():
    split = SplitEvents(steps=STEPS, noise=NOISE, shards=3, together=True)
    schema = EventFields(streams=True).schema()
    rows = [{"user": f"u{n}", "item": "a", "time": n % 2000, "stream": f"s{n}"} for n in range(5000)]
    columns = {field.name: pa.array([row[field.name] for row in rows]).cast(field.type) for field in schema}
    batch = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
    found = tiny_runner.call_all(split, [batch])
    assert len(found) <= GROUPS * 3 * 2
    streams = [s for _, (_, data) in found for s in InStreams.from_bytes(EventBatch, data).streams]
    assert sorted(streams) == sorted(f"s{n}" for n in range(5000))


def test_what_is_written_is_in_proportion_to_what_changed_not_to_the_largest_stream():
    fn = BoundAcrossWindows(steps=STEPS, noise=NOISE, timer_offset=2, item_shards=2, streams=1)
    stage = tiny_runner.Stage(fn, random.Random(0))
    written = []
    for step, (stream, people) in enumerate([("large", 20_000), *((f"small {n}", 10) for n in range(20))]):
        rows = [(step << 32 | person, 3) for person in range(people)]
        record = seal_encoded(StepKey("0", step, 0), InStreams.of(stream, held(rows)).to_bytes())
        stage.feed([(b"key", record)])
        before = stage.cells.added
        stage.advance(STEPS.decision_time(step, 2).micros)
        written.append(stage.cells.added - before)
    assert written[0] > 20_000 * 10
    assert max(written[1:]) < 2_000


def test_a_stream_takes_along_the_texts_of_its_own_items_alone():
    """Otherwise one long text of one person would be sent once for each stream of its group."""
    streams, per_stream = 300, 5
    items = np.arange(streams * per_stream, dtype=np.uint64)
    texts = pa.array([f"item {item} {'x' * 100}" for item in items.tolist()])
    users = np.zeros(len(items), np.uint64)
    batch = HolderBatch(users, items, np.zeros(len(items), np.uint16), Names.of(items, texts))
    names = tuple(sorted(f"stream {number}" for number in range(streams)))
    together = InStreams(names, np.arange(0, len(items) + 1, per_stream), batch)
    alone = [encode(held) for _, held in together.each()]
    assert len(alone) == streams
    assert sum(map(len, alone)) < 4 * len(together.to_bytes()) + 600 * streams
    for _, held in together.each():
        assert held.names.items.tolist() == held.items.tolist()


def test_long_names_of_streams_are_not_kept_at_hand():
    before = batches._short_group.cache_info().currsize
    long, short = ("x" * (batches.SHORT + extra) for extra in (1, 0))
    assert [group_of(name) for name in (long, short)] == [batches._group(name) for name in (long, short)]
    assert batches._short_group.cache_info().currsize <= before + 1
