"""Checked batches of events become the same batches of each step and shard, however they are cut."""

import random

import numpy as np
import pyarrow as pa
import pytest
import tiny_runner
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import EventBatch, StepKey, decode
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.split import SplitEvents
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
SCHEMA = EventFields().schema()


def parts_of(events, sizes, **options) -> dict[StepKey, list]:
    """Return the rows of each key, sorted, that come out when the events come in batches of these sizes."""
    domain = options.get("domain")
    split = SplitEvents(steps=Steps(size=8_000, period=3_000), noise=NOISE, shards=3, **options)
    found: dict[StepKey, list] = {}
    while events:
        size = sizes[0] if sizes else len(events)
        sizes, columns, events = sizes[1:], zip(*events[:size], strict=True), events[size:]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        keys = set()
        for key, (_, data) in tiny_runner.call_all(split, [pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)]):
            batch = decode(EventBatch, data)
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
    st.tuples(st.sampled_from("uvwxyz"), st.sampled_from("abcd"), st.integers(-5_000, 40_000), st.sampled_from("rst")),
    max_size=40,
)


@given(EVENTS, st.lists(st.integers(1, 10), max_size=10), st.booleans(), st.randoms())
def test_boundaries_of_batches_do_not_matter(events, sizes, positions, chance):
    options = {"domain": Domain(["a", "b", "d"]), "positions": positions, "streams": ("r", "s")}
    shuffled = list(events)
    chance.shuffle(shuffled)
    for chosen in ({}, options):
        assert parts_of(shuffled, sizes, **chosen) == parts_of(events, [], **chosen)


@given(EVENTS)
def test_every_event_goes_to_all_its_windows_and_one_shard_of_people(events):
    found = parts_of(events, [])
    hashed = {u: int(NOISE.derive("user hash").hash_bytes(*_arrow(u))[0]) for u in "uvwxyz"}
    expected: dict[StepKey, list] = {}
    for user, item, time, stream in events:
        for step in range(15):
            if step * 3_000 <= time < step * 3_000 + 8_000:
                key = StepKey(stream, step, hashed[user] % 3)
                expected.setdefault(key, []).append((hashed[user], item, time))
    assert found == {key: sorted(rows) for key, rows in expected.items()}


def _arrow(text):
    return np.frombuffer(text.encode(), np.uint8), np.array([0, len(text)], np.int64)


def test_empty_batches_give_nothing():
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
    for options in ({}, {"domain": Domain(["a"]), "positions": True}):
        split = SplitEvents(steps=Steps(size=1000, period=1000), noise=NOISE, shards=1, **options)
        assert tiny_runner.call_all(split, [empty]) == []


@pytest.mark.slow
def test_many_streams_and_windows_in_one_batch():
    chance = random.Random(0)
    events = [(f"u{i % 7}", "a", chance.randrange(2**53), f"s{chance.randrange(3000)}") for i in range(5000)]
    found = parts_of(events, [])
    assert sum(map(len, found.values())) == sum(
        len([step for step in range(e[2] // 3000, (e[2] - 8000) // 3000, -1) if step >= 0]) for e in events
    )
