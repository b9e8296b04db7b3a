"""Keys, names and batches survive their encoding."""

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import SnapshotError
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Names,
    StepKey,
    decode,
    encode,
    seal,
    sealed_key,
    string_buffers,
    unseal,
)
from privstream.transforms.timing.on_time import count_markers, digest, join_markers

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
KEYS = st.builds(StepKey, TEXT, st.integers(0, 2**62), st.integers(0, 2**32 - 1))
TABLE = st.dictionaries(st.integers(0, 2**64 - 1), TEXT, max_size=8)


def names_of(table: dict[int, str]) -> Names:
    items = np.array(sorted(table), np.uint64)
    return Names.of(items, pa.array([table[item] for item in items.tolist()], pa.string()))


def table_of(names: Names) -> dict[int, str]:
    return {item: names[item] for item in names.items.tolist()}


@given(KEYS, KEYS)
def test_keys_survive_and_differ(one, other):
    assert StepKey.from_bytes(one.to_bytes()) == one
    assert (one.to_bytes() == other.to_bytes()) == (one == other)


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
    again = decode(kind, encode(one))
    assert rows_of(again) == rows_of(one)
    assert encode(again) == encode(one)
    both = {**table_of(other.names), **table_of(one.names)}
    joined = kind.join([one, other])
    assert table_of(joined.names) == both
    assert joined.items.tolist() == one.items.tolist() + other.items.tolist()
    with pytest.raises(SnapshotError):
        decode(EventBatch if kind is HolderBatch else HolderBatch, encode(one))


@given(batches(HolderBatch), KEYS, st.data())
def test_sealed_batches_know_their_key(batch, key, data):
    record = seal(key, batch)
    assert sealed_key(record) == key
    assert rows_of(unseal(HolderBatch, record)) == rows_of(batch)
    picked = data.draw(st.lists(st.integers(0, len(batch.users) - 1), unique=True)) if len(batch.users) else []
    some = batch.take(np.array(picked, np.int64))
    assert rows_of(some) == [rows_of(batch)[i] for i in picked]
    assert set(some.names.items.tolist()) == set(some.items.tolist())


@given(st.lists(TEXT, max_size=6), st.integers(0, 6), st.sampled_from([pa.string(), pa.large_string()]))
def test_string_buffers_of_slices(texts, start, kind):
    offsets, data = string_buffers(pa.array(texts, kind).slice(start))
    found = [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)]
    assert found == texts[start:]
    assert offsets[0] == 0


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), max_size=4))
def test_markers_are_joined_and_counted(parts):
    joined = [join_markers((b"key", map(digest, part)))[1][0] for part in parts]
    assert count_markers(joined) == Counter(digest(data) for part in parts for data in part)
