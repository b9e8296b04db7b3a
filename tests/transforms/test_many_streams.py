"""Many streams under few keys, up to the last stage: each has the rows that it has alone, and costs what it changes."""

import itertools
import random

import counts_workloads
import numpy as np
import pytest
import slow_reference
import tiny_runner
from counts_chain import Chain, drive, drive_at_once
from counts_workloads import ITEMS, WINDOWS, expected
from event_forms import crowd_at
from every_runner import of_stream, one_job
from grids import some_quick
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.snapshots import pack
from privstream.transforms import KeyedCounts, ShiftingHeavyHitters, batches
from privstream.transforms.batches import GROUPS, CountBatch, HolderBatch, InStreams, Names, StepKey, seal
from privstream.transforms.counts import publishing
from privstream.transforms.heavy_hitters.by_status import by_shard
from privstream.transforms.timing import keyed_state
from tiny_runner import END
from workloads import COMMON, KEY, SECOND, START

STREAMS = ("0", "3", "\0", "a\nb", "ä", "a" * 500, "../x", '{"stream": 1}', *(f"s{i}" for i in range(8)), "never seen")
SPANS = ("window", "window, public", "trailing, people", "start", "start, public")
SHARED = some_quick("name", SPANS, "window", "start")


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


@SHARED
def test_each_stream_is_counted_as_it_would_be_alone(name, monkeypatch):
    monkeypatch.setattr(keyed_state, "LEAST_COMPACTION", 2000)
    monkeypatch.setattr(keyed_state, "CACHED_KEYS", 2)
    monkeypatch.setattr(publishing, "REPLAYED", 3)
    made, given = counts(name), events(1)
    rows = expected(made, given)
    assert len({row.stream for row in rows}) > (3 if "people" not in name else 0)
    assert sorted(drive(made, given, random.Random(3), crashes=0.1, workers=2).rows) == rows


@pytest.mark.parametrize("name", ["start", "trailing"])
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
    streams = {batches.group_of(stream) for stream in ("s", "t")}
    assert len(streams) == 1 and len(orders) == 1
    assert len(orders.pop()) == 8


@SHARED
@pytest.mark.parametrize("groups", [1, 64])
def test_the_number_of_groups_changes_no_count(name, groups, monkeypatch):
    made, given = counts(name), events(2)
    monkeypatch.setattr(batches, "GROUPS", groups)
    caches = (batches._short_group, tiny_runner.dofns_of)
    for cache in caches:
        cache.cache_clear()
    try:
        rows = sorted(drive_at_once(made, given, random.Random(1)).rows)
    finally:
        for cache in caches:
            cache.cache_clear()
    assert rows == expected(made, given)


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


@one_job("late counts", ["window", "start"], runners=["prism"])
def test_a_crowd_that_is_late_in_one_stream_touches_no_count_of_others(name):
    made = counts(name)
    given = [event for event in events(5, n=500) if event[2] < (START + 10) * SECOND]
    crowd = [(f"late {i}", "a", START * SECOND + i, "s7" if i % 2 else "never seen") for i in range(60)]
    results = yield of_stream(crowd_at(START + 11, crowd, given), made)
    assert sorted(results.elements("rows")) == expected(made, given)
    assert results.elements("rows")
    assert len(results.elements("dead")) == len(crowd)


def hitters(method, **changes) -> ShiftingHeavyHitters:
    given = {"noise": KeyedNoise(KEY), "streams_per_person": 2, "streams": STREAMS, "max_hits": 3, "method": method}
    return ShiftingHeavyHitters(**{**COMMON, **given, "count_share": 0.0, **changes})


def crowds(made, windows=4):
    """Crowds for one item in some streams, which lasts or comes back, and few people in the others."""
    chance, found = random.Random(6), []
    need = int(made.answer.detection_threshold(1)) + 20
    for number, stream in enumerate(STREAMS[:-1]):
        for window in range(windows):
            size = need if number % 3 == 0 and (window + number // 3) % 3 else 3
            for person in range(size):
                time = START * SECOND + window * made.steps.size + chance.randrange(made.steps.size)
                found.append((f"u{number}-{window}-{person}", f"item {person % 2 if size == 3 else 0}", time, stream))
    return found


@pytest.mark.parametrize("method", ["status", "counts"])
def test_each_stream_has_the_heavy_hitters_that_it_has_alone(method, monkeypatch):
    monkeypatch.setattr(keyed_state, "LEAST_COMPACTION", 500)
    monkeypatch.setattr(keyed_state, "CACHED_KEYS", 2)
    made = hitters(method)
    given = crowds(made)
    rows = slow_reference.heavy_hitters(made, given)
    assert len({row.stream for row in rows}) > 3
    chain = tiny_runner.run_chain(made, given, random.Random(2), crashes=0.1, workers=2)
    assert sorted(chain.rows) == rows
    late = [(f"late {n}", "item 0", START * SECOND + n, stream) for n, stream in enumerate(STREAMS)]
    chain.arrive(late)
    chain.advance(END)
    assert sorted(chain.rows) == rows
    assert len(chain.dead_letters()) == len(late) * made.steps.overlap


@one_job("late hitters", ["status", "counts"], runners=["prism"])
def test_a_crowd_that_is_late_in_one_stream_is_no_heavy_hitter_of_others(method):
    made = hitters(method)
    given = crowds(made, windows=1)
    crowd = [(f"late {i}", "item 0", START * SECOND + i, STREAMS[1 + i % 2]) for i in range(60)]
    after = made.steps.bounds(made.steps.first)[1].micros / SECOND + 1
    results = yield of_stream(crowd_at(after, crowd, given), made)
    assert sorted(results.elements("rows")) == slow_reference.heavy_hitters(made, given)
    assert results.elements("rows")


@pytest.mark.parametrize("name", SPANS)
def test_streams_have_no_keys_of_their_own_in_the_last_stage(name):
    made = counts(name)
    chain = drive_at_once(made, events(7), random.Random(1))
    assert len({key for key, _ in chain.counted}) <= GROUPS * made.shards
    assert len({key for key, _ in chain.stages[-1].cells.states}) <= GROUPS * made.shards


def of_group(number, group="3"):
    """Return so many names of streams of a group."""
    names = (f"n{i}" for i in itertools.count())
    return list(itertools.islice((name for name in names if batches.group_of(name) == group), number))


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


def test_items_that_may_be_up_in_one_stream_are_not_written_again_for_another():
    made, (large, *small) = hitters("status", shards=1, end=START + 1000, horizon=None), of_group(20)
    stage = tiny_runner.Stage(tiny_runner.dofns_of(made)["PruneDownItems"], random.Random(0))
    many, written = int(made.answer.detection_threshold(1)) + 50, []
    first = made.steps.first
    for step, stream in enumerate([large, *small]):
        items = np.repeat(np.arange(500 if stream == large else 1, dtype=np.uint64), many)
        held = HolderBatch(np.arange(len(items), dtype=np.uint64), items, np.zeros(len(items), np.uint16), Names.none())
        stage.feed([by_shard((StepKey("3", first + step, 0).to_bytes(), InStreams.of(stream, held).to_bytes()))])
        waiting = stage.cells.added
        stage.advance(made.steps.decision_time(first + step, 9).micros)
        written.append(stage.cells.added - waiting)
    assert written[0] > 500 * 8
    assert max(written[1:]) < 1500


def sealed(group):
    """Return counts under a stream's own key, as an earlier version sent them."""
    batch = CountBatch(np.ones(1, np.uint64), np.ones(1, np.int64), Names.none())
    key = StepKey(group, START // 10, 0)
    return key._replace(step=0).to_bytes(), seal(key, batch)


def test_records_and_state_of_an_earlier_version_are_refused():
    windows, clocked = (tiny_runner.dofns_of(counts(name)) for name in ("window", "start"))
    _, record = sealed("s7")
    with pytest.raises(SnapshotError):
        windows["PublishWindows"].unpack(record)
    publish = clocked["PublishCounts"]
    with pytest.raises(SnapshotError, match="state of counts must be kept by groups of streams"):
        publish.decode(b"0000s7", [])
    with pytest.raises(SnapshotError, match="kind must be 'named counts of streams', got 'named counts'"):
        publish.decode(b"00003", [pack("named counts", 1, {})])
    prune = tiny_runner.dofns_of(hitters("status"))["PruneDownItems"]
    with pytest.raises(SnapshotError, match="kind must be 'may be up in streams', got 'may be up'"):
        prune.decode(b"", [pack("may be up", 1, {"step": 1, "items": np.empty(0, np.uint64)})])
    with pytest.raises(SnapshotError):
        prune.unpack(record)


def test_state_that_was_written_for_other_streams_is_refused():
    publish = tiny_runner.dofns_of(counts("start"))["PublishCounts"]
    other = tiny_runner.dofns_of(counts("start", streams=STREAMS[:-2]))["PublishCounts"]
    key = f"0000{batches.group_of(STREAMS[0])}".encode()
    written = publish.encode(publish.initial(key))
    assert publish.decode(key, written).pairs.keys.tolist() == []
    with pytest.raises(SnapshotError, match="state must be of a run with the same streams"):
        other.decode(key, written)
