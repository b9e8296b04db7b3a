"""Events of every allowed form become the same batches; others are refused with a reason that quotes nothing."""

import datetime
import random
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import tiny_runner
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import EventBatch, StepKey, decode
from privstream.transforms.events import batching
from privstream.transforms.events.batching import GatherRows, SplitEvents
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.record_batches import SCHEMA, broken_rows, normalise
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
WINDOW = GlobalWindow()
SECRET = "zaphod"


class Click(NamedTuple):
    user: Any
    item: Any
    time: Any
    stream: Any = ""


class NoUser(NamedTuple):
    item: str
    time: int


def gather(elements, at=5, streams=True):
    """Return the rows in batches, with their timestamps, and the dead letters."""
    gatherer = GatherRows(streams=streams)
    gatherer.start_bundle()
    outputs = [out for e in elements for out in gatherer.process(e, timestamp=Timestamp(at), window=WINDOW)]
    outputs += gatherer.finish_bundle()
    letters = [out.value for out in outputs if isinstance(out, TaggedOutput)]
    return [out for out in outputs if not isinstance(out, TaggedOutput)], letters


@pytest.mark.parametrize(
    "element",
    [
        (SECRET, "item"),
        [SECRET, "item"],
        Click(SECRET, "item", Timestamp(5)),
        Click(SECRET, "item", 5_000_000),
        Click(SECRET, "item", np.int64(5_000_000)),
        beam.Row(user=SECRET, item="item", time=5_000_000),
        beam.Row(user=SECRET, item="item", time=Timestamp(5), stream="", more=1),
    ],
)
def test_forms_of_one_event(element):
    (batch,), letters = gather([element])
    assert batch.value.to_pylist() == [{"user": SECRET, "item": "item", "time": 5_000_000, "stream": ""}]
    assert not letters


@pytest.mark.parametrize("user", [7, np.int64(7), np.uint8(7), "7"])
def test_integers_are_texts(user):
    (batch,), _ = gather([(user, 3)])
    assert batch.value.to_pylist()[0]["user"] == "7"


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (SECRET, "event must be a pair (user, item), a row or an Arrow record batch, got str"),
        (SECRET[:2], "event must be a pair (user, item), a row or an Arrow record batch, got str"),
        ({"user": SECRET, "item": "b"}, "event must be a pair (user, item), a row or an Arrow record batch, got dict"),
        ((SECRET, "b", "c"), "event must be a pair (user, item), a row or an Arrow record batch, got tuple"),
        (None, "event must be a pair (user, item), a row or an Arrow record batch, got NoneType"),
        (("", SECRET), "user must not be empty"),
        ((SECRET, ""), "item must not be empty"),
        ((SECRET, None), "item must be text or an integer, got NoneType"),
        ((SECRET, 1.5), "item must be text or an integer, got float"),
        ((SECRET, True), "item must be text or an integer, got bool"),
        ((SECRET, SECRET.encode()), "item must be text or an integer, got bytes"),
        ((SECRET, "\ud800"), "item must be valid Unicode"),
        (Click(SECRET, "b", "soon"), "time must be a Timestamp or integer microseconds, got str"),
        (Click(SECRET, "b", True), "time must be a Timestamp or integer microseconds, got bool"),
        (Click(SECRET, "b", 1e9), "time must be a Timestamp or integer microseconds, got float"),
        (Click(SECRET, "b", 2**63), "time must fit into 64 bits of microseconds"),
        (Click(SECRET, "b", -(2**63) - 1), "time must fit into 64 bits of microseconds"),
        (Click(SECRET, "b", 5, None), "stream must be text or an integer, got NoneType"),
        (NoUser(SECRET, 5), "row must have a field user"),
        (beam.Row(user=SECRET, item="b"), "row must have a field time"),
    ],
)
def test_what_is_no_event_is_set_aside(element, reason):
    batches, (letter,) = gather([element, ("good", "one")])
    assert letter.reason == reason
    assert letter.record == repr(element)
    assert [row["user"] for batch in batches for row in batch.value.to_pylist()] == ["good"]


def test_long_records_are_cut():
    _, (letter,) = gather([(None, "x" * 10**6)])
    assert len(letter.record) == batching.LONGEST_RECORD


def test_batches_are_cut_and_carry_the_oldest_time(monkeypatch):
    monkeypatch.setattr(batching, "ROWS_PER_BATCH", 3)
    gatherer = GatherRows(streams=True)
    gatherer.start_bundle()
    outputs = []
    for i, at in enumerate([9, 4, 6, 8, 7]):
        outputs += gatherer.process((f"u{i}", "x"), timestamp=Timestamp(at), window=WINDOW)
    outputs += gatherer.finish_bundle()
    assert [(out.value.num_rows, out.timestamp) for out in outputs] == [(3, Timestamp(4)), (2, Timestamp(7))]
    assert all(out.windows == (WINDOW,) for out in outputs)


def test_events_that_arrived_after_their_time_are_with_their_like_alone():
    """Whether they are late is then told by their own arrival, not by that of others in the bundle."""
    gatherer = GatherRows(streams=True)
    gatherer.start_bundle()
    arrivals = [(3, 1), (9, 2), (9, 2.5), (4, 4), (2, 7), (9.0001, 1), (9.002, 1), (MAX_TIMESTAMP, 1)]
    for i, (at, time) in enumerate(arrivals):
        element = beam.Row(user=f"u{i}", item="x", time=int(time * 1e6))
        assert not list(gatherer.process(element, timestamp=Timestamp.of(at), window=WINDOW))
    found = {tuple(out.value["user"].to_pylist()): out.timestamp for out in gatherer.finish_bundle()}
    groups = {("u0",): 3, ("u1", "u2", "u5"): 9, ("u3", "u4"): 2, ("u6",): 9.002, ("u7",): MAX_TIMESTAMP}
    assert found == {users: Timestamp.of(at) for users, at in groups.items()}
    assert not list(gatherer.finish_bundle())


def test_huge_texts_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(batching, "TEXT_PER_BATCH", 1000)
    batches, _ = gather([("u", "x" * 600)] * 4)
    assert [batch.value.num_rows for batch in batches] == [2, 2]


def test_arrow_batches_pass():
    batch = pa.record_batch({"user": ["u"], "item": ["x"], "time": [1]})
    assert gather([batch])[0] == [batch]


HOUR = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("time", "micros"),
    [
        (pa.array([5], pa.int32()), 5),
        (pa.array([5], pa.uint64()), 5),
        (pa.array([5], pa.timestamp("s")), 5_000_000),
        (pa.array([5], pa.timestamp("ms")), 5_000),
        (pa.array([5_999], pa.timestamp("ns")), 5),
        (pa.array([datetime.datetime(1970, 1, 1, 1, tzinfo=HOUR)], pa.timestamp("us", tz="+01:00")), 0),
    ],
)
def test_types_of_time(time, micros):
    batch = normalise(pa.record_batch({"user": ["u"], "item": ["x"], "time": time}))
    assert batch.schema == SCHEMA
    assert batch["time"].to_pylist() == [micros]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.int8(), pa.uint64()])
@pytest.mark.parametrize("encoded", [False, True])
def test_types_of_text(kind, encoded):
    if encoded and kind == pa.string_view():
        pytest.skip("Arrow has no dictionaries of string views")
    column = pa.array(["5"]).cast(kind)
    column = column.dictionary_encode() if encoded else column
    batch = normalise(pa.record_batch({"user": column, "item": column, "time": [1], "stream": column, "more": [0]}))
    assert batch.to_pylist() == [{"user": "5", "item": "5", "time": 1, "stream": "5"}]


def _invalid_utf8(*texts):
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))])


@pytest.mark.parametrize(
    ("column", "values", "error", "message"),
    [
        ("user", pa.array([None], pa.string()), ValueError, "user must not be null"),
        (
            "user",
            pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string())),
            ValueError,
            "not be null",
        ),
        ("item", pa.array([1.5]), TypeError, "item must be text or an integer, got double"),
        ("item", pa.array([SECRET.encode()]), TypeError, "item must be text or an integer, got binary"),
        ("item", _invalid_utf8(b"\xff"), ValueError, "item must be valid UTF-8"),
        ("time", pa.array([SECRET]), TypeError, "time must be a timestamp or integer microseconds, got string"),
        ("time", pa.array([1.5]), TypeError, "time must be a timestamp or integer microseconds, got double"),
        ("time", pa.array([2**63], pa.uint64()), ValueError, "time must fit into 64 bits of microseconds"),
        ("time", pa.array([2**62], pa.timestamp("s")), ValueError, "time must fit into 64 bits of microseconds"),
        ("time", pa.array([None], pa.int64()), ValueError, "time must not be null"),
        ("user", pa.array([""]), ValueError, "user must not be empty"),
    ],
)
def test_bad_columns_are_refused(column, values, error, message):
    columns = {"user": pa.array([SECRET]), "item": pa.array([SECRET]), "time": pa.array([1])} | {column: values}
    with pytest.raises(error, match=message) as refused:
        normalise(pa.record_batch(columns))
    assert SECRET not in str(refused.value)


TEXTS = pa.array(["a", SECRET, "c", "d"])
WRONG = {
    "user null": ("user", pa.array(["a", None, "c", "d"]), "user must not be null"),
    "user null, integers": ("user", pa.array([1, None, 3, 4]), "user must not be null"),
    "user null in a dictionary": (
        "user",
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 0]), pa.array(["a", None])),
        "user must not be null",
    ),
    "user empty": ("user", pa.array(["a", "", "c", "d"]), "user must not be empty"),
    "item null": ("item", pa.array(["a", None, "c", "d"]), "item must not be null"),
    "item null, a list": ("item", pa.array([["a"], None, [], ["d"]]), "item must not be null"),
    "item a list with a null": ("item", pa.array([["a"], ["b", None], [], ["d"]]), "item must not be null"),
    "item no UTF-8": ("item", _invalid_utf8(b"a", b"\xff", b"c", b"d"), "item must be valid UTF-8"),
    "time null": ("time", pa.array([1, None, 3, 4]), "time must not be null"),
    "time null, a timestamp": ("time", pa.array([1, None, 3, 4], pa.timestamp("ms")), "time must not be null"),
    "time too late": ("time", pa.array([1, 2**63, 3, 4], pa.uint64()), "time must fit into 64 bits of microseconds"),
    "time in seconds": (
        "time",
        pa.array([1, 2**62, 3, 4], pa.timestamp("s")),
        "time must fit into 64 bits of microseconds",
    ),
    "stream null": ("stream", pa.array(["a", None, "c", "d"]), "stream must not be null"),
}


@pytest.mark.parametrize(("column", "values", "reason"), WRONG.values(), ids=WRONG)
def test_rows_of_arrow_batches_that_break_a_rule_are_set_aside(column, values, reason):
    """The others count: one person's record decides about that record alone."""
    columns = {"user": TEXTS, "item": TEXTS, "time": pa.array([1, 2, 3, 4])} | {column: values}
    batch = pa.record_batch(columns)
    assert broken_rows(batch, streams=True) == {1: reason}
    (kept,), (letter,) = gather([batch])
    assert kept.equals(batch.take(pa.array([0, 2, 3])))
    assert (letter.reason, letter.source) == (reason, "event")
    assert SECRET in letter.record and SECRET not in reason
    assert not broken_rows(kept, streams=True)


def test_every_broken_row_is_found_with_its_first_rule():
    size = 1000
    users = [None if row % 7 == 0 else f"u{row}" for row in range(size)]
    items = [None if row % 5 == 0 else "x" for row in range(size)]
    batch = pa.record_batch({"user": users, "item": items, "time": list(range(size))})
    found = broken_rows(batch, streams=True)
    assert list(found) == [row for row in range(size) if row % 7 == 0 or row % 5 == 0]
    assert {row for row, reason in found.items() if reason == "user must not be null"} == set(range(0, size, 7))
    (kept,), letters = gather([batch])
    assert kept.num_rows + len(letters) == size


@pytest.mark.parametrize("column", ["user", "item", "time", "stream"])
@pytest.mark.parametrize("typed", [True, False])
def test_a_batch_of_nulls_alone_leaves_nothing(column, typed):
    kind = SCHEMA.field(column).type if typed else pa.null()
    columns = {"user": TEXTS, "item": TEXTS, "time": pa.array([1, 2, 3, 4])} | {column: pa.nulls(4, kind)}
    batches, letters = gather([pa.record_batch(columns)])
    assert batches == []
    assert [letter.reason for letter in letters] == [f"{column} must not be null"] * 4


def test_a_column_of_a_wrong_type_is_no_matter_of_rows():
    batch = pa.record_batch({"user": TEXTS, "item": pa.array([1.5] * 4), "time": [b"x"] * 4})
    assert not broken_rows(batch, streams=True)
    assert gather([batch]) == ([batch], [])


def test_missing_columns_are_named():
    with pytest.raises(ValueError, match="events must have a column item, got user, time"):
        normalise(pa.record_batch({"user": ["u"], "time": [1]}))


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


@pytest.mark.parametrize("name", [SECRET, 7])
def test_events_with_a_stream_are_set_aside_in_a_run_without(name):
    """One event of one person must not stop the run of all others."""
    kind = pa.int64() if name == 7 else pa.string()
    batch = pa.record_batch(
        {"user": ["u", "v"], "item": ["x", "y"], "time": [1, 2], "stream": pa.array([name] * 2, kind)}
    )
    mixed = pa.record_batch({"user": ["u", "v"], "item": ["x", "y"], "time": [1, 2], "stream": ["", str(name)]})
    rows = [Click("u", "x", 1, name), Click("w", "x", 1, "")]
    batches, letters = gather([batch, mixed, *rows], streams=False)
    assert {letter.reason for letter in letters} == {"stream must be empty: this run was given no streams"}
    assert len(letters) == 4
    assert batches[0].to_pylist() == [{"user": "u", "item": "x", "time": 1, "stream": ""}]
    assert batches[1].value["user"].to_pylist() == ["w"]
    assert not gather([batch, mixed, *rows], streams=True)[1]


def test_empty_batches_give_nothing():
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
    for options in ({}, {"domain": Domain(["a"]), "positions": True}):
        split = SplitEvents(steps=Steps(size=1000, period=1000), noise=NOISE, shards=1, **options)
        assert tiny_runner.call_all(split, [empty]) == []


def test_many_streams_and_windows_in_one_batch():
    chance = random.Random(0)
    events = [(f"u{i % 7}", "a", chance.randrange(2**53), f"s{chance.randrange(3000)}") for i in range(5000)]
    found = parts_of(events, [])
    assert sum(map(len, found.values())) == sum(
        len([step for step in range(e[2] // 3000, (e[2] - 8000) // 3000, -1) if step >= 0]) for e in events
    )
