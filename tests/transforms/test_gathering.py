"""Events of every allowed form become the same batches; others are refused with a reason that quotes nothing."""

import datetime
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import single_events
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from privstream.transforms.reading import elements, fields, frames
from privstream.transforms.reading.elements import NO_STAMP, GatherRows
from privstream.transforms.reading.fields import LONGEST_RECORD, NUMBER, TIME_TEXT, UNREAD, EventFields

HOUR = datetime.timezone(datetime.timedelta(hours=1))
WINDOW = GlobalWindow()
SECRET = "zaphod"


class Click(NamedTuple):
    user: Any
    item: Any
    time: Any
    stream: Any = ""


class Text(str):
    """Text that says something else of itself."""

    def __str__(self):
        return "\ud800"

    def __len__(self):
        return 0


class Zone(datetime.tzinfo):
    def utcoffset(self, moment):
        raise RuntimeError(SECRET)


class Locked:
    _fields = ("user", "item", "time")

    @property
    def user(self):
        raise RuntimeError(SECRET)


class Silent:
    def __getattr__(self, name):
        raise (RuntimeError if name.startswith(("_fields", "__arrow")) else AttributeError)(SECRET)


class NoUser(NamedTuple):
    item: str
    time: int


@dataclass
class Visit:
    user: str
    item: str
    time: int


def gather(given, at=5, **fields):
    """Return the rows that can be used, and the dead letters."""
    return single_events.gather(given, EventFields(**fields), at=at)[:2]


def row_of(**said):
    return {"user": SECRET, "item": "item", "time": 5_000_000} | said


@pytest.mark.parametrize(
    "element",
    [
        (SECRET, "item"),
        (np.str_(SECRET), np.str_("item")),
        (Text(SECRET), Text("item")),
        Click(SECRET, "item", np.float16(5)),
        Click(SECRET, "item", Timestamp(5)),
        Click(SECRET, "item", 5),
        Click(SECRET, "item", np.float32(5)),
        Click(SECRET, "item", datetime.datetime(1970, 1, 1, 0, 0, 5)),
        Click(SECRET, "item", datetime.datetime(1970, 1, 1, 1, 0, 5, tzinfo=HOUR)),
        Click(SECRET, "item", 5, b"ignored"),
        Visit(SECRET, "item", 5),
        beam.Row(user=SECRET, item="item", time=5),
        {"user": SECRET, "item": "item", "time": "1970-01-01T00:00:05"},
        beam.Row(user=SECRET, item="item", time=Timestamp(5), more=1),
    ],
)
def test_forms_of_one_event(element):
    assert gather([element]) == ([row_of()], [])


FORM = f"event must be {elements.FORMS}, got"
TIME = "time must be a timestamp, text or a number, got"
UNREADABLE = "event must hold values that can be read"
PLAUSIBLE = "time must be between 1970-01-01 and 2200-01-01"


class Mute:
    def __repr__(self):
        raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("element", "code", "reason"),
    [
        (SECRET, "event_type", f"{FORM} str"),
        ({"user": SECRET, "time": 5}, "item_missing", "row must have a field item"),
        (Mute(), "event_type", f"{FORM} Mute"),
        (Locked(), "event_type", UNREADABLE),
        (Silent(), "event_type", UNREADABLE),
        (
            Click(SECRET, "b", datetime.datetime(2024, 1, 1, tzinfo=Zone())),
            "time_type",
            f"{TIME} values of another kind",
        ),
        ((np.timedelta64(5, "s"), SECRET), "user_type", "user must be text or an integer, got values of another kind"),
        ((SECRET, None), "item_missing", "item must be present and not empty"),
        ((SECRET, "\ud800"), "item_encoding", "item must be valid text in its encoding"),
        ((SECRET, "x" * (2**20 + 1)), "item_long", "item must be at most 16,384 bytes of UTF-8"),
        ((1 << 40_000, SECRET), "user_type", "user must be text or an integer, got values of another kind"),
        (Click(SECRET, "b", "soon"), "time_syntax", f"time must be a number or {TIME_TEXT}"),
        (Click(SECRET, "b", float("nan")), "time_finite", "time must be finite"),
        (Click(SECRET, "b", Timestamp(2**33)), "time_range", PLAUSIBLE),
        (NoUser(SECRET, 5), "user_missing", "row must have a field user"),
    ],
)
def test_what_is_no_event_is_set_aside(element, code, reason):
    rows, (letter,), (rule,) = single_events.gather([element, ("good", "one")], EventFields())
    assert letter.reason == reason
    assert SECRET not in reason
    assert rule.code == code
    assert len(letter.record.encode()) <= 4 * LONGEST_RECORD
    assert [row["user"] for row in rows] == ["good"]


@pytest.mark.parametrize("at", [MIN_TIMESTAMP, MAX_TIMESTAMP])
def test_a_pair_without_a_timestamp_says_so(at):
    _, (letter,) = gather([(SECRET, "item")], at)
    assert letter.reason == NO_STAMP
    _, (letter,) = gather([beam.Row(user=SECRET, item="item")], at)
    assert letter.reason == NO_STAMP
    assert gather([(SECRET, "item"), Click(SECRET, "item", None)], at, timed=False) == ([row_of(time=0)] * 2, [])


def test_fields_that_are_not_read_may_be_anything():
    columns = {"item": ["x", "x"], "time": [1, 2], "more": [1.5, None]}
    batches = [pa.record_batch(columns), pa.record_batch(columns | {"user": [None, b"?"]})]
    rows = [Click(None, "x", 1), Click(object(), "x", 1), beam.Row(item="x", time=1), (None, "x"), ("", "x")]
    found, letters = gather([*batches, *rows], user=UNREAD)
    assert len(found) == 9 and not letters
    assert found[0] == {"item": "x", "time": 1_000_000}
    found, letters = gather([beam.Row(user="u", time=1), pa.record_batch({"user": ["u"], "time": [1]})], item=False)
    assert found == [{"user": "u", "time": 1_000_000}] * 2 and not letters


def test_points_are_numbers():
    good = [("5", 5), ("+17", 17), (-7, -7), (2**60, 2**60), ("007", 7), ("6.00", 6), (773.0, 773)]
    bad = ["1.5", "٣", "1e3", 2**60 + 1, "9" * 30, "", "+", None, 5.5, 2.0**53, float("inf"), True]
    wanted = [number for _, number in good]
    rows, letters = gather([(point, "in") for point in [*bad, *(point for point, _ in good)]], user=NUMBER)
    assert [row["user"] for row in rows] == wanted
    assert len(letters) == len(bad)
    for column in (
        pa.array([str(point) for point, _ in good] + ["1.5", "٣", "9" * 19, "9" * 30, "", None]),
        pa.array([str(point) for point, _ in good] + ["x"]).dictionary_encode(),
        pa.array([number for number in wanted] + [2**60 + 1, None]),
    ):
        batch = pa.record_batch({"user": column, "item": ["in"] * len(column), "time": [1] * len(column)})
        rows, letters = gather([batch], user=NUMBER)
        assert [row["user"] for row in rows] == wanted
        assert len(letters) == len(column) - len(wanted)
    (letter,) = gather([pa.record_batch({"user": [5.5], "item": ["in"], "time": [1]})], user=NUMBER)[1]
    assert letter.reason == "user, the point, must be a whole number between -2**60 and 2**60"


def test_batches_are_cut_and_carry_the_oldest_time(monkeypatch):
    monkeypatch.setattr(elements, "ROWS_PER_BATCH", 3)
    gatherer = GatherRows(EventFields())
    gatherer.start_bundle()
    outputs = []
    for i, at in enumerate([9, 4, 6, 8, 7]):
        outputs += gatherer.process((f"u{i}", "x"), timestamp=Timestamp(at), window=WINDOW)
    outputs += gatherer.finish_bundle()
    assert [(out.value.num_rows, out.timestamp) for out in outputs] == [(3, Timestamp(4)), (2, Timestamp(7))]
    assert all(out.windows == (WINDOW,) for out in outputs)


def test_events_that_arrived_after_their_time_are_with_their_like_alone():
    """Whether they are late is then told by their own arrival, not by that of others in the bundle."""
    gatherer = GatherRows(EventFields())
    gatherer.start_bundle()
    arrivals = [(3, 1), (9, 2), (9, 2.5), (4, 4), (2, 7), (9.0001, 1), (9.002, 1), (MAX_TIMESTAMP, 1)]
    for i, (at, moment) in enumerate(arrivals):
        element = beam.Row(user=f"u{i}", item="x", time=moment)
        assert not list(gatherer.process(element, timestamp=Timestamp.of(at), window=WINDOW))
    found = {tuple(out.value["user"].to_pylist()): out.timestamp for out in gatherer.finish_bundle()}
    groups = {("u0",): 3, ("u1", "u2", "u5"): 9, ("u3", "u4"): 2, ("u6",): 9.002, ("u7",): MAX_TIMESTAMP}
    assert found == {users: Timestamp.of(at) for users, at in groups.items()}
    assert not list(gatherer.finish_bundle())


def events(**given):
    texts = pa.array(["a", SECRET, "c", "d"])
    return pa.record_batch({"user": texts, "item": texts, "time": pa.array([1, 2, 3, 4])} | given)


def _backwards():
    offsets = np.array([0, 3, 1, 2, 4], np.int32)
    return pa.Array.from_buffers(pa.string(), 4, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcd")])


USELESS = {
    "item of lists": (
        events(item=pa.array([["a"]] * 4)),
        "item must be text or an integer, got values of another kind",
    ),
    "time of truth": (events(time=pa.array([True] * 4)), f"{TIME} bool"),
    "no item": (events().drop_columns(["item"]), "events must have a column item"),
    "two users": (
        pa.RecordBatch.from_arrays([pa.array(["a"])] * 3 + [pa.array([1])], ["user", "user", "item", "time"]),
        "events must have one column user",
    ),
    "damaged": (events(item=_backwards()), "item must be a column that is not damaged"),
    "damaged dictionary": (
        events(item=pa.DictionaryArray.from_arrays(pa.array([0, 0, 0, 9]), pa.array(["a"]), safe=False)),
        "item must be a column that is not damaged",
    ),
}


@pytest.mark.parametrize(("batch", "reason"), USELESS.values(), ids=USELESS)
def test_each_row_of_a_useless_column_is_a_dead_letter(batch, reason):
    rows, letters = gather([events(), batch, events()])
    assert rows == 2 * gather([events()])[0]
    assert [letter.reason for letter in letters] == [reason] * batch.num_rows and SECRET not in reason
    assert gather([batch.slice(0, 0)]) == ([], [])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_that_are_too_long_are_refused_before_their_dictionary_is_written_out(kind):
    """A few bytes of a dictionary stand for gigabytes of rows."""
    texts = pa.array(["x" * (3 << 20), "tea", None]).cast(kind)
    items = pa.DictionaryArray.from_arrays(pa.array([0] * 3000 + [1, 2, None], pa.int32()), texts)
    batch = pa.record_batch({"user": ["u"] * 3003, "item": items, "time": [1] * 3003})
    many = pa.array([str(number) for number in range(200)]).cast(pa.dictionary(pa.uint8(), kind))
    assert list(fields.cut_by_text({"item": many, "time": many}, 200)) == [slice(0, 200)]
    raw = frames.raw_columns(batch, EventFields())
    assert max(piece.stop - piece.start for piece in fields.cut_by_text({"item": items}, 3003)) < 1100
    read = frames.read_rows(raw, 3003, EventFields())
    assert read.clean["item"].to_pylist() == ["tea"]
    reasons = [str(rule) for rule in read.refused.values()]
    assert reasons == ["item must be at most 16,384 bytes of UTF-8"] * 3000 + ["item must be present and not empty"] * 2
    assert len(fields.describe_row(raw)(0)) < 50_000
