"""Fields of files: how they are named and read, numbers among them, and what is refused."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.pipelines.sources.fields import FieldMapping
from raw_rows import normalised

SECOND = 1_700_000_000
SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.timestamp("us", "UTC"))])


def normalise(users, items, times, **options):
    columns = {"user": users, "item": items, "time": times}
    fields = FieldMapping(**({"time_zone": "UTC"} | options))
    (batch,), refusals = normalised(columns, fields)
    return batch, refusals


def times_of(values, **options):
    batch, refusals = normalise(["u"] * len(values), ["i"] * len(values), values, **options)
    assert [refusal.code for refusal in refusals] == []
    return batch["time"].to_pylist()


@pytest.mark.parametrize(
    "users",
    [
        pa.array([5, 12], pa.int16()),
        pa.array([5, 12], pa.uint64()),
        pa.array(["5", "12"]),
        pa.array(["5", "12"], pa.large_string()),
        pa.array(["5", "12"], pa.string_view()),
        pa.array(["5", "12"]).dictionary_encode(),
        pa.array([b"5", b"12"]),
        pa.array([b"5", b"12"], pa.large_binary()),
        pa.array([b"5", b"12"], pa.binary_view()),
        ["5", "12"],
        [5, "12"],
        [b"5", b"12"],
        [5, b"12"],
    ],
    ids=lambda users: str(users.type) if isinstance(users, pa.Array) else repr(users),
)
def test_one_person_has_one_name_however_it_is_stored(users):
    batch, refusals = normalise(users, ["a", "b"], [1, 2], time_unit="s")
    assert batch["user"].to_pylist() == ["5", "12"]
    assert refusals == []


@pytest.mark.parametrize("bad", [pa.array(["a", None, "", "b"]), ["a", None, "", "b"], [b"a", None, b"", b"b"]])
@pytest.mark.parametrize("field", ["user", "item"])
def test_missing_and_empty_values_are_refused(bad, field):
    columns = {"users": ["u"] * 4, "items": ["i"] * 4, "times": [1] * 4}
    batch, refusals = normalise(**(columns | {field + "s": bad}), time_unit="s")
    assert batch[field].to_pylist() == ["a", "b"]
    assert [(each.position, each.code) for each in refusals] == [(row, f"{field}_missing") for row in "12"]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Vienna"])
def test_timestamps_of_any_unit_and_zone_are_instants(unit, per_second, zone):
    values = pa.array([0, SECOND * per_second], pa.timestamp(unit, zone))
    assert times_of(values) == [0, SECOND * 10**6]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_numbers_of_a_stated_unit(unit, per_second):
    number = SECOND * per_second
    for values in ([number], pa.array([number]), pa.array([number], pa.uint64()), [str(number)], [f"+{number}", "0"]):
        assert times_of(values, time_unit=unit)[0] == SECOND * 10**6
    for values in ([number * 1.0], pa.array([number * 1.0]), [f"{number}.0"], [f"{number}.0", "0"]):
        assert times_of(values, time_unit=unit)[0] == SECOND * 10**6


ISO = [
    ("2024-01-01T00:00:00Z", 0),
    ("2024-01-01T00:00:00", 0),
    ("2024-01-01", 0),
    ("2024-01-01 00", 0),
    ("2024-01-01 01:00:00+01:00", 0),
    ("2024-01-01T01:00:00+0100", 0),
    ("2024-01-01T01:00:00+01", 0),
    ("2023-12-31T22:30-01:30", 0),
    ("2024-01-01T00:00:01.5Z", 1_500_000),
    ("2024-01-01T00:00:00.123456999Z", 123_456),
    ("2024-01-01t00:00:00.1234567899999z", 123_456),
]


@pytest.mark.parametrize(("text", "micros"), ISO)
def test_iso_8601(text, micros):
    new_year = 1_704_067_200_000_000
    assert times_of([text]) == [new_year + micros]
    assert times_of([text for text, _ in ISO]) == [new_year + micros for _, micros in ISO]


FORMS = [
    "2024-02-29T23:59:59Z",
    "2024-01-01 00:00:00.123456789+05:30",
    "1970-01-01",
    "2199-12-31T23:59:59.9999999",
    "2024-01-01T00:00-0130",
    "2024-01-01T24:00:00",
    "2024-01-01T23:59:60z",
    "20240101T000000",
    "1704067200",
    "1704067200.25",
    "-1e9",
    "0x1F",
    "1_000",
    "+00000000000000000000000005",
    "nan(1)",
    "infinity",
]
EDITS = st.tuples(st.integers(0, 30), st.integers(0, 2), st.text("0123456789-:+.TtZz xeE_\x00", max_size=1))


def edited(form, edits):
    for place, removed, added in edits:
        form = form[:place] + added + form[place + removed :]
    return form


@given(st.builds(edited, st.sampled_from(FORMS), st.lists(EDITS, max_size=2)), st.sampled_from([None, "s", "us", "ns"]))
@settings(max_examples=2 * settings.default.max_examples)  # an edit of a form is seldom a form
def test_arrow_reads_text_as_it_is_read_one_by_one(text, unit):
    outcomes = []
    for first in (True, "5", "1.5", "2024-01-01", "2024-01-01T00:00Z", text):
        batch, refusals = normalise(["a", "b"], ["i", "i"], [first, text], time_unit=unit)
        times = [event["time"] for event in batch.to_pylist() if event["user"] == "b"]
        outcomes.append((times, [refusal.code for refusal in refusals if refusal.position == "1"]))
    assert outcomes == outcomes[:1] * 6


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, -1, 7258118400], pa.timestamp("s")),
        pa.array([0, -(2**63), 2**63 - 1], pa.timestamp("ns", "UTC")).cast(pa.timestamp("s", "UTC"), safe=False),
        pa.array([0, -(2**63), 2**63 - 1]),
        pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
        pa.array([0.0, -1e-9, 1e300]),
        [0, -(10**30), 10**30],
        [0.0, -1, 10**35],
        ["0", "-1", "9" * 36],
        ["1970-01-01", "1969-12-31T23:59:59.999999Z", "2200-01-01"],
        ["1970-01-01", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"],
    ],
    ids=str,
)
def test_times_before_1970_and_from_2200_on_are_refused(values):
    _, refusals = normalise(["u"] * len(values), ["i"] * len(values), values, time_unit="s")
    assert [(each.position, each.code) for each in refusals] == [("1", "time_range"), ("2", "time_range")]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.string()), pa.struct([]), pa.duration("s"), pa.time32("s")])
def test_fields_of_unusable_types_are_refused_at_launch(kind):
    with pytest.raises(TypeError, match="field `user` of f must be text or an integer, got"):
        FieldMapping().check(SCHEMA.set(0, pa.field("user", kind)), "f")
    with pytest.raises((TypeError, ValueError), match=r"field `time` of f (must be|has plain numbers)"):
        FieldMapping().check(SCHEMA.set(2, pa.field("time", kind)), "f")
