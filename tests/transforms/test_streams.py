"""Many streams under few keys: each has the rows that it has alone, costs what it changes, and counts its people."""

import itertools
import pickle
import random
from unittest import mock

import counts_workloads
import numpy as np
import pyarrow as pa
import pytest
import tiny_runner
from counts_chain import Chain, drive, drive_at_once
from counts_workloads import ITEMS, WINDOWS, expected
from event_forms import crowd_at
from every_runner import of_stream, one_job
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import KeyedNoise, PrfNoise
from privstream.transforms import (
    ContinualHistogram,
    Domain,
    KeyedCounts,
    NumericQuantiles,
    SetCardinality,
    ThresholdFlags,
    batches,
)
from privstream.transforms.batches import (
    GROUPS,
    EventBatch,
    HolderBatch,
    InStreams,
    Names,
    StepKey,
    encode,
    group_of,
    seal_parts,
    unseal,
)
from privstream.transforms.counts import publishing
from privstream.transforms.events import private_transform
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.timing import keyed_state
from privstream.transforms.timing.steps import Steps
from tiny_runner import END
from workloads import KEY, SECOND, START

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
    several = PrfNoise.side_by_side(sources, starts).derive("x", 3)
    parts = [(source.derive("x", 3), slice(a, b)) for source, a, b in zip(sources, starts, starts[1:], strict=False)]
    alone = np.concatenate([source.words(labels[part]) for source, part in parts])
    assert several.words(labels).tolist() == alone.tolist()
    bound = np.concatenate([source.bind(labels[part], values[part]) for source, part in parts])
    assert several.bind(labels, values).tolist() == bound.tolist()
    with pytest.raises(ValueError, match="labels must be an array"):
        several.words(np.append(labels, np.uint64(7)))
    with pytest.raises(TypeError, match="sources must be derived from a key"):
        PrfNoise.side_by_side([*sources, object()], [*starts, starts[-1]])
    for wrong in (starts[:-1], [*starts, starts[-1]], [1, *starts[1:]]):
        with pytest.raises(ValueError, match="starts must begin with 0"):
            PrfNoise.side_by_side(sources, wrong)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(several)


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
    made, given = counts("found"), events(6, n=100)
    monkeypatch.setattr(batches, "MOST_ROWS", 2)
    assert sorted(drive(made, given, random.Random(1), crashes=0.2).rows) == expected(made, given) != []


@pytest.mark.parametrize("runner", ["FnApiRunner", "PrismRunner", "FlinkRunner"])
def test_streams_have_several_groups_where_a_job_may_be_restored(runner):
    groups = 1 if runner == "FnApiRunner" else GROUPS
    fns = tiny_runner.dofns_of(counts("start"), runner)
    assert fns["SplitEvents"].groups == fns["CountContributions"].groups == groups
    assert len(fns["PublishCounts"].groups) == groups


def test_streams_cost_no_keys_of_their_own():
    split = SplitEvents(steps=STEPS, noise=NOISE, shards=3, groups=GROUPS)
    schema = EventFields(streams=True).schema()
    rows = [{"user": f"u{n}", "item": "a", "time": n % 2000, "stream": f"s{n}"} for n in range(5000)]
    columns = {field.name: pa.array([row[field.name] for row in rows]).cast(field.type) for field in schema}
    batch = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
    found = tiny_runner.call_all(split, [batch])
    assert len(found) <= GROUPS * 3 * 2
    streams = [s for _, (_, data) in found for s in InStreams.from_bytes(EventBatch, data).streams]
    assert sorted(streams) == sorted(f"s{n}" for n in range(5000))


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
    assert [group_of(name, 64) for name in (long, short)] == [batches._group(name, 64) for name in (long, short)]
    assert batches._short_group.cache_info().currsize <= before + 1


STREAMS = ("0", "3", "\0", "a\nb", "ä", "a" * 500, "../x", '{"stream": 1}', *(f"s{i}" for i in range(8)), "never seen")
SPANS = ("found", "window, public", "start", "start, public")
SHARED = some_quick("name", SPANS, "found", "start")


def counts(name, **changes) -> KeyedCounts:
    streams = {"streams": STREAMS, "epsilon": 200.0, "shards": 2, "start": START}
    return counts_workloads.transform(name, **{**streams, **changes})


def events(seed, n=500):
    """One stream has half of the events."""
    chance, found = random.Random(seed), []
    for _ in range(n):
        time = START + chance.randrange(10 * WINDOWS)
        stream = chance.choice(STREAMS[:-1]) if chance.random() < 0.5 else "s7"
        found.append((f"user {chance.randrange(100)}", chance.choice(ITEMS[:2]), time * SECOND, stream))
    return found


@pytest.mark.slow
@SHARED
def test_each_stream_is_counted_as_it_would_be_alone(name, monkeypatch):
    monkeypatch.setattr(keyed_state, "LEAST_COMPACTION", 2000)
    monkeypatch.setattr(keyed_state, "CACHED_KEYS", 2)
    monkeypatch.setattr(publishing, "REPLAYED", 3)
    made, given = counts(name), events(1)
    rows = expected(made, given)
    assert len({row.stream for row in rows}) > 2
    assert sorted(drive(made, given, random.Random(3), crashes=0.1, workers=2).rows) == rows


@pytest.mark.parametrize("name", ["start"])
def test_the_order_of_rows_says_nothing_of_who_was_first(name):
    """One event, in a window of which nothing is published, would move its item before or behind the others."""
    made = counts(name, max_contributions=20, shards=1, streams=("s", "t"), epsilon=200.0)
    crowd = [
        (f"u{person}", item, (START + 31) * SECOND, stream)
        for person, (item, stream) in itertools.product(range(60), itertools.product("abcd", ("s", "t")))
    ]
    orders = set()
    for item, stream in itertools.product("abcd", ("s", "t")):
        early = ("one", item, (START + 11) * SECOND, stream)
        rows = drive_at_once(made, [early, *crowd], random.Random(1)).rows
        assert not [row for row in rows if int(row.window_end) <= START + 30]
        orders.add(tuple((row.stream, row.item) for row in rows if int(row.window_end) == START + 40))
    streams = {group_of(stream, GROUPS) for stream in ("s", "t")}
    assert len(streams) == 1 and len(orders) == 1
    assert len(orders.pop()) == 8


@SHARED
@pytest.mark.parametrize("groups", [1, 64])
def test_the_number_of_groups_changes_no_count(name, groups, monkeypatch):
    made, given = counts(name), events(2)
    monkeypatch.setattr(private_transform, "GROUPS", groups)
    chain = drive_at_once(made, given, random.Random(1))
    assert chain.split.groups == groups
    assert sorted(chain.rows) == expected(made, given)


@SHARED
def test_late_events_of_some_streams_change_nothing_in_others(name):
    made = counts(name)
    given = [event for event in events(3) if event[2] < (START + 20) * SECOND]
    rest = [event for event in events(4) if event[2] >= (START + 40) * SECOND]
    late = [(f"late {i}", "a", (START + i % 20) * SECOND, stream) for i, stream in enumerate(STREAMS[::3])]
    chain = Chain(made, random.Random(5), crashes=0.1, workers=2)
    chain.arrive(given)
    chain.advance((START + 25) * SECOND)
    chain.arrive([*late, *rest])
    chain.advance(END)
    assert sorted(chain.rows) == expected(made, given + rest)
    places = sorted(letter.position.split("stream ", 1)[1] for letter in chain.dead_letters())
    assert places == sorted(STREAMS[::3])


@one_job("late counts", ["start"], runners=["prism"])
def test_a_crowd_that_is_late_in_one_stream_touches_no_count_of_others(name):
    made = counts(name)
    given = [event for event in events(5, n=500) if event[2] < (START + 10) * SECOND]
    crowd = [(f"late {i}", "a", START * SECOND + i, "s7" if i % 2 else "never seen") for i in range(60)]
    results = yield of_stream(crowd_at(START + 11, crowd, given), made)
    assert sorted(results.elements("rows")) == expected(made, given)
    assert results.elements("rows")
    assert len(results.elements("dead")) == len(crowd)


@pytest.mark.parametrize("name", SPANS)
def test_streams_have_no_keys_of_their_own_in_the_last_stage(name):
    made = counts(name)
    chain = drive_at_once(made, events(7), random.Random(1))
    assert len({key for key, _ in chain.counted}) <= GROUPS * made.shards
    assert len({key for key, _ in chain.stages[-1].cells.states}) <= GROUPS * made.shards


def of_group(number, group="3"):
    """Return so many names of streams of a group."""
    names = (f"n{i}" for i in itertools.count())
    return list(itertools.islice((name for name in names if group_of(name, GROUPS) == group), number))


def test_a_step_writes_what_it_changed_and_not_all_streams_of_a_group():
    streams = of_group(100)
    made = counts("start", streams=tuple(streams), shards=1, end=START + 10_000, max_contributions=8)
    chain = Chain(made, random.Random(1))
    chain.arrive([(f"user {s} {i}", f"key {i}", (START + 1) * SECOND, s) for s in streams for i in range(20)])
    chain.advance((START + 11) * SECOND)
    publish, written = chain.stages[-1], []
    whole = publish.cells.added
    for step in range(1, 40):
        before = publish.cells.added
        chain.arrive([(f"user {step}", f"key {step}", (START + 10 * step + 1) * SECOND, streams[step])])
        chain.advance((START + 10 * step + 11) * SECOND)
        written.append(publish.cells.added - before)
    assert whole > 100 * 20 * 40
    assert sorted(written)[-3] < 5000


def test_state_that_was_written_for_other_streams_is_refused():
    publish = tiny_runner.dofns_of(counts("start"))["PublishCounts"]
    other = tiny_runner.dofns_of(counts("start", streams=STREAMS[:-2]))["PublishCounts"]
    key = f"0000{group_of(STREAMS[0], GROUPS)}".encode()
    written = publish.encode(publish.initial(key))
    assert publish.decode(key, written).pairs.keys.tolist() == []
    with pytest.raises(SnapshotError, match="state must be of a run with the same streams"):
        other.decode(key, written)


RUN = {"epsilon": 1.0, "window": 60, "start": 0, "end": 600, "noise": KeyedNoise(b"a key for tests only")}
PETS = {"domain": Domain(["cat", "dog", "hen"])}
PEOPLE = {"unit": "person", "max_contributions": 3}
MADE = {
    "counts": (KeyedCounts, {"delta": 1e-6, "max_contributions": 2}),
    "quantiles": (NumericQuantiles, {"delta": 1e-6, "max_contributions": 2, "low": 0, "high": 9}),
    "histogram": (ContinualHistogram, PETS | PEOPLE),
    "flags": (ThresholdFlags, PETS | PEOPLE | {"thresholds": 10}),
    "cardinality": (SetCardinality, {"leave_values": ("out",), "max_updates": 100}),
}


def noise_of(made):
    """Return words that are drawn for a stream, by everything that enters their label."""
    source = made.counting_noise if isinstance(made, KeyedCounts) else made._noise()
    return source.derive("stream", "a").words(4)


@pytest.mark.parametrize("name", MADE)
def test_another_list_of_streams_draws_other_noise(name):
    """Limits are over all streams: with another list other people count in each, and equal noise would show who."""
    kind, arguments = MADE[name]
    drawn = [
        noise_of(kind(**RUN, **arguments, streams=streams)) for streams in (("a", "b"), ("a", "b", "c"), ("a", "c"))
    ]
    assert all(np.all(one != other) for i, one in enumerate(drawn) for other in drawn[:i])
    again = noise_of(kind(**RUN, **arguments, streams=("b", "a")))
    assert np.array_equal(again, drawn[0])  # the order says nothing
