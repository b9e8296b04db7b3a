"""The field with a number, in files: what is read, and what is refused with the place where it stands."""

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines.sources.event_files import RawEvents
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.normalise import Normaliser

TIME = "2024-01-01T00:00:01Z"
SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.string()), ("price", pa.float64())])


def normalise(values, **options):
    columns = {"user": ["u"] * len(values), "item": ["i"] * len(values), "time": [TIME] * len(values), "price": values}
    return Normaliser(FieldMapping(value="price", **options))(RawEvents(columns, str, str))


@pytest.mark.parametrize(
    "values",
    [
        [5, 7],
        [5.0, 7],
        ["5", 7.0],
        [Decimal("5.0"), "7e0"],
        pa.array([5, 7], pa.int16()),
        pa.array(["5", "7"]),
        pa.array([b"5", b"7.0"], pa.binary()),
        pa.array(["5", "7"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type) if isinstance(values, pa.Array) else repr(values),
)
def test_numbers_in_any_usual_form(values):
    batch, refusals = normalise(values, whole=True)
    assert batch["value"].type == pa.float64()
    assert batch["value"].to_pylist() == [5.0, 7.0]
    assert refusals == []


@pytest.mark.parametrize("make", [list, lambda values: pa.array([str(value or "").encode() for value in values])])
def test_what_is_no_number_is_refused_row_by_row(make):
    batch, refusals = normalise(make([5, "five", None, "1e999", 0.5]), whole=True)
    assert batch["value"].to_pylist() == [5.0]
    told = {1: "type", 2: "missing", 3: "finite", 4: "whole"}
    assert [(one.row, one.code) for one in refusals] == [(row, f"value_{rule}") for row, rule in told.items()]
    assert [one.reason for one in refusals] == [
        "value must be a number, with a point before decimals",
        "value must be present and not empty",
        "value must be finite",
        "value must be a whole number",
    ]
    assert normalise(make([0.5]))[0]["value"].to_pylist() == [0.5]


def test_bytes_that_are_no_text_are_refused():
    _, refusals = normalise(pa.array([b"\xff", b"5"], pa.binary()))
    assert [(one.row, one.code) for one in refusals] == [(0, "value_encoding")]


def test_lists_with_wrong_values_are_read_as_far_as_possible():
    batch, refusals = normalise([True, [5], {"a": 1}, float("nan"), 10**400, 9])
    assert batch["value"].to_pylist() == [9.0]
    assert [one.code for one in refusals] == ["value_type"] * 3 + ["value_finite"] * 2


@pytest.mark.parametrize("kind", [pa.bool_(), pa.timestamp("us"), pa.list_(pa.int64()), pa.struct([])])
def test_fields_of_unusable_types_are_refused_at_launch(kind):
    FieldMapping(value="price").check(SCHEMA, "f")
    with pytest.raises(TypeError, match="field `price` of f must be a number, got"):
        FieldMapping(value="price").check(SCHEMA.set(3, pa.field("price", kind)), "f")
    FieldMapping().check(SCHEMA.set(3, pa.field("price", kind)), "f")


def test_a_missing_field_is_named_with_its_option():
    with pytest.raises(ValueError, match="--value_field must name a field of f: no `cost` there"):
        FieldMapping(value="cost").check(SCHEMA, "f")
    with pytest.raises(ValueError, match="must be different fields"):
        FieldMapping(value="item")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_files_give_numbers(ending, tmp_path, read_all):
    rows = [{"user": "u", "item": "i", "time": TIME, "price": price} for price in (250, 12.5, 99)]
    path = tmp_path / f"events.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "csv":
        path.write_text("user,item,time,price\n" + "".join(f"u,i,{TIME},{row['price']}\n" for row in rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = read_all(path, value="price", whole=True)
    assert [row["value"] for row in found.rows] == [250.0, 99.0]
    assert [(letter.reason, letter.position) for letter in found.letters] == [
        ("value must be a whole number", {"parquet": "row group 1, row 2", "csv": "line 3"}.get(ending, "line 2"))
    ]
