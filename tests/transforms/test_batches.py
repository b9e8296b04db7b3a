"""Keys, names, lists of items and batches: their encoding, how they are cut and spread, and where they wait."""

import errno
import os
import pickle
import random
import threading

import numpy as np
import pyarrow as pa
import pytest
import tiny_runner
from counts_workloads import ONE_OF_EACH_CHAIN, expected, random_events, rows_in, transform
from event_forms import as_rows, run_bounded
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import spill
from privstream.transforms.batches import (
    MOST_SHARDS,
    NO_NAMES,
    CountBatch,
    EventBatch,
    HolderBatch,
    Names,
    StepKey,
    encode,
    shard_key,
)
from privstream.transforms.people.bounding import SplitEvents
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import EventFields
from privstream.transforms.spill import SMALLEST, SpillError, fetch, keep, spilled
from privstream.transforms.timing.steps import Steps

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TABLE = st.dictionaries(st.integers(0, 2**64 - 1), TEXT, max_size=8)


def names_of(table: dict[int, str]) -> Names:
    items = np.array(sorted(table), np.uint64)
    return Names.of(items, pa.array([table[item] for item in items.tolist()], pa.string()))


def table_of(names: Names) -> dict[int, str]:
    return {item: names[item] for item in names.items.tolist()}


@given(st.lists(TABLE, max_size=4), st.data())
def test_names_are_joined_selected_and_looked_up(tables, data):
    merged = {item: text for table in reversed(tables) for item, text in table.items()}
    names = Names.union([names_of(table) for table in tables])
    assert table_of(names) == merged
    assert np.all(names.items[1:] > names.items[:-1])
    some = sorted(data.draw(st.sets(st.sampled_from(sorted(merged))) if merged else st.just(set())))
    assert table_of(names.select(np.array(some, np.uint64))) == {item: merged[item] for item in some}
    for missing in {0, 5, 2**64 - 1} - set(merged):
        with pytest.raises(LookupError, match="an item has no name"):
            names[missing]


@st.composite
def batches(draw, kind):
    table = draw(TABLE)
    rows = draw(st.lists(st.sampled_from(sorted(table)), max_size=10)) if table else []
    users = np.array([draw(st.integers(0, 2**64 - 1)) for _ in rows], np.uint64)
    third = np.arange(len(rows), dtype=np.int64 if kind is EventBatch else np.uint16)
    return kind(users, np.array(rows, np.uint64), third, names_of(table))


def rows_of(batch):
    third = batch.times if isinstance(batch, EventBatch) else batch.ranks
    columns = batch.users.tolist(), [batch.names[item] for item in batch.items.tolist()], third.tolist()
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("kind", [EventBatch, HolderBatch])
@given(data=st.data())
def test_batches_survive_and_join(kind, data):
    one, other = data.draw(batches(kind)), data.draw(batches(kind))
    again = kind.read([encode(one)])
    assert rows_of(again) == rows_of(one)
    assert encode(again) == encode(one)
    both = {**table_of(other.names), **table_of(one.names)}
    joined = kind.join([one, other])
    assert table_of(joined.names) == both
    assert joined.items.tolist() == one.items.tolist() + other.items.tolist()
    with pytest.raises(SnapshotError):
        (EventBatch if kind is HolderBatch else HolderBatch).read([encode(one)])


NOISE = KeyedNoise(b"a key for tests, no secret")
SCHEMA = EventFields().schema


def parts_of(events, sizes, **options) -> dict[StepKey, list]:
    """Return the rows of each key, sorted, that come out when the events come in batches of these sizes."""
    domain = options.get("domain")
    split = SplitEvents(steps=Steps(size=8_000), noise=NOISE, shards=3, **options)
    found: dict[StepKey, list] = {}
    while events:
        size = sizes[0] if sizes else len(events)
        sizes, columns, events = sizes[1:], zip(*events[:size], strict=True), events[size:]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        keys = set()
        for key, (_, data) in tiny_runner.call_all(split, [pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)]):
            batch = EventBatch.read([data])
            texts = [
                batch.names[i] if domain is None or not split.positions else domain[i] for i in batch.items.tolist()
            ]
            found.setdefault(StepKey.from_bytes(key), []).extend(
                zip(batch.users.tolist(), texts, batch.times.tolist(), strict=True)
            )
            assert key not in keys
            keys.add(key)
    return {key: sorted(rows) for key, rows in found.items()}


EVENTS = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.sampled_from("abcd"), st.integers(-5_000, 40_000)), max_size=40
)


@given(EVENTS, st.lists(st.integers(1, 10), max_size=10), st.booleans(), st.randoms())
def test_boundaries_of_batches_do_not_matter(events, sizes, positions, chance):
    options = {"domain": Domain(["a", "b", "d"]), "positions": positions}
    shuffled = list(events)
    chance.shuffle(shuffled)
    for chosen in ({}, options):
        assert parts_of(shuffled, sizes, **chosen) == parts_of(events, [], **chosen)


@given(EVENTS)
def test_every_event_goes_to_its_window_and_one_shard_of_people(events):
    found = parts_of(events, [])
    hashed = {u: int(NOISE.derive("user hash").hash_bytes(*_arrow(u))[0]) for u in "uvwxyz"}
    expected: dict[StepKey, list] = {}
    for user, item, time in events:
        if time < 0:
            continue  # before the run
        key = StepKey(time // 8_000, hashed[user] % 3)
        expected.setdefault(key, []).append((hashed[user], item, time))
    assert found == {key: sorted(rows) for key, rows in expected.items()}


def _arrow(text):
    return np.frombuffer(text.encode(), np.uint8), np.array([0, len(text)], np.int64)


def test_names_differ() -> None:
    """No two shards are under one key."""
    assert len({shard_key(shard) for shard in range(MOST_SHARDS)}) == MOST_SHARDS


LARGE = bytes(range(256)) * (SMALLEST // 128)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_large_batches_come_back_and_small_ones_stay():
    with spilled():
        references = [keep(LARGE + bytes([i])) for i in range(5)]
        assert all(len(reference) < 50 for reference in references)
        assert [fetch(reference) for reference in reversed(references)] == [LARGE + bytes([i]) for i in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("part", [0, 0.003, 0.5, 0.9999])
def test_a_batch_that_has_changed_on_disk_is_refused(part):
    made = [CountBatch(np.arange(n, dtype=np.uint64), np.arange(n), NO_NAMES) for n in (1000, 2000)]
    with spilled():
        first, second = map(encode, made)
        start, length = spill.size_of(first), spill.size_of(second)
        file, place = spill._Waiting.files[0].fileno(), start + int(part * length)
        os.pwrite(file, bytes([os.pread(file, 1, place)[0] ^ 1]), place)
        with pytest.raises((SpillError, SnapshotError), match=r"as they were written|its checksum"):
            CountBatch.read([second])
        assert CountBatch.read([first]).counts.tolist() == list(range(1000))


def test_the_file_has_no_name_and_other_users_cannot_open_it(folder):
    with spilled():
        keep(LARGE)
        assert list(folder.iterdir()) == []


def test_runs_that_overlap_share_a_file_until_the_last_one_ends():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with spilled():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with spilled():
        thread.start()
        assert entered.wait(10)
        reference = keep(LARGE)
        leave.set()
        thread.join()
        assert fetch(reference) == LARGE
    with pytest.raises(SpillError, match="in the run that wrote them"):
        fetch(reference)


def test_a_full_disk_is_one_clear_line(monkeypatch, folder):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spill.os, "pwrite", full)
    with (
        spilled(),
        pytest.raises(SpillError, match=f"cannot write waiting events in {folder}: No space left on device"),
    ):
        keep(LARGE)


@some_quick("name", ONE_OF_EACH_CHAIN, ONE_OF_EACH_CHAIN[0])
def test_rows_are_the_same(name, monkeypatch):
    monkeypatch.setattr(spill, "SMALLEST", 1)
    events = random_events(name, random.Random(3))
    made = transform(name)
    with spilled():
        results = run_bounded("fn_api", as_rows(events), made)
        assert spill._Waiting.size > 10_000
    assert sorted(rows_in(made, results.elements("rows"))) == expected(made, events)


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=6)


def items_of(domain: Domain) -> list[str]:
    return [domain[place] for place in range(len(domain))]


@given(st.sets(LINE, min_size=1, max_size=8), st.lists(LINE, max_size=8))
def test_positions_are_places_in_sorted_order(items, others):
    domain = Domain(items)
    assert items_of(domain) == sorted(items)
    assert items_of(pickle.loads(pickle.dumps(domain))) == sorted(items)
    texts = [*items, *others]
    assert (domain.codes(pa.record_batch({"item": texts})) >= 0).tolist() == [text in items for text in texts]
    assert [domain[place] for place in domain.codes(pa.record_batch({"item": sorted(items)})).tolist()] == sorted(items)
