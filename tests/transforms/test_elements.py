"""Elements of a pipeline: which types are refused, numbers beside items, and that a hostile one costs itself alone."""

import random
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import runner_harness
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from examples import ONE_OF_EACH, START, example
from grids import some_quick
from privstream.transforms.reading.fields import NUMBER, WHOLE, EventFields, column_of
from privstream.transforms.reading.frames import read_rows
from single_events import gather

SECRET = "zaphod"


class HostileVisit(NamedTuple):
    user: Any
    item: Any
    time: Any
    value: Any = 5


USERS = [None, "", 1.5, b"\xff", "\ud800", "x" * (2**14 + 1), 1 << 40_000, ["u"], {"u": 1}, object]
TIMES = [None, True, "soon", b"soon", float("nan"), float("inf"), -1, 2**63, 10**400, np.float32("nan"),
         np.datetime64("2024-01-01"), np.timedelta64(5, "s"), Timestamp(2**40),
         MIN_TIMESTAMP, MAX_TIMESTAMP,
         START * 10**6]  # fmt: skip
VALUES = [None, True, "five", "", b"five", float("nan"), float("inf"), 10**400, np.timedelta64(5, "s"), [5], object]
KINDS = [pa.array([1.5]), pa.array([{"a": 1}]), pa.array([[1.5]]), pa.nulls(1)]


def hostile_events(made: Any, chance: random.Random) -> list[Any]:
    """Return elements that cannot be events of a transform, of every form."""
    fields = made.event_fields
    found: list[Any] = [None, 5, SECRET, b"x", {"user": SECRET}, (), ("u",), (1, 2, 3), [], set(), object, object()]
    found += [beam.Row(somebody=SECRET), pa.table({"user": ["u"]}), pa.array(["u"]), (SECRET, None), (SECRET, 1.5)]
    columns = {"user": pa.array(["1"]), "item": pa.array(["1"]), "time": pa.array([START]), "value": pa.array([5])}
    texts = [v for v in USERS if not isinstance(v, list)]
    for name in set(fields.schema.names) - (set() if fields.timed else {"time"}):
        bad = {"user": USERS, "item": texts, "time": TIMES, "value": VALUES}[name]
        found += [HostileVisit(**{"user": "1", "item": "1", "time": START, name: value}) for value in bad]
        found.append(pa.record_batch({key: column for key, column in columns.items() if key != name}))
        found += [pa.record_batch(columns | {name: values}) for values in KINDS[name in ("time", "value") :]]
        codes = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), pa.array(["a"]), safe=False)
        found.append(pa.record_batch(columns | {name: codes}))
    chance.shuffle(found)
    return found


@some_quick("name", ONE_OF_EACH, "heavy hitters", "flags", "ranges")
def test_elements_of_any_form_decide_about_themselves_alone(name):
    made = example(name)
    people = [HostileVisit(str(1 + i % 60), "1", START + i / 1000) for i in range(60)]
    good: list[Any] = [*people[:50], pa.RecordBatch.from_pylist([visit._asdict() for visit in people[50:]])]
    bad = hostile_events(made, random.Random(1))
    empty = [pa.record_batch({"user": pa.array([], pa.float64())}), pa.RecordBatch.from_arrays([], names=[])]

    def build(pipeline, hostile):
        given = pipeline | beam.Create([(each,) for each in [*good, *hostile]], reshuffle=False)
        given |= "Unpack" >> beam.Map(lambda pair: pair[0]).with_output_types(Any)
        return given | made.with_dead_letters()

    without = runner_harness.run("fn_api", lambda pipeline: build(pipeline, []))
    hostile = runner_harness.run("fn_api", lambda pipeline: build(pipeline, bad + empty))
    assert without.elements("dead") == [] and without.elements("rows")
    assert sorted(hostile.elements("rows")) == sorted(without.elements("rows"))
    letters = [letter for letter in hostile.elements("dead") if letter.source == "event"]
    assert len(letters) == len(bad)
    assert not any(SECRET in letter.reason for letter in hostile.elements("dead"))


SOLD_START = 1_700_000_000
Sale = namedtuple("Sale", "user item time value")
NUMBERS = EventFields(value=NUMBER)
WHOLES = EventFields(value=WHOLE)
GOOD = [(5, 5.0), (-7, -7.0), (2**70, 2.0**70), (12.5, 12.5), ("12.5", 12.5), ("-3", -3.0), ("+4", 4.0), (".5", 0.5),
        ("1e3", 1000.0), ("5.", 5.0), (np.float32(0.5), 0.5), (np.int8(-1), -1.0), (Decimal("12.50"), 12.5),
        (Fraction(1, 4), 0.25)]  # fmt: skip
BAD = {
    "missing": [None, ""],
    "type": [True, np.bool_(1), b"five", "five", "1_000", "0x10", " 5", "nan", "inf", "\u0661", [5],
             {}, object(), np.timedelta64(5, "s"), Timestamp(5), 5j],
    "finite": [float("nan"), float("inf"), 10**400, "1e999", Decimal("NaN"), np.float32("inf")],
}  # fmt: skip


@pytest.mark.parametrize(("value", "number"), GOOD, ids=str)
def test_a_number_is_read_in_any_usual_form(value, number):
    (row,), _, _ = gather([Sale("u", "i", SOLD_START, value)], NUMBERS)
    assert row["value"] == number


@pytest.mark.parametrize(("rule", "value"), [(rule, value) for rule, values in BAD.items() for value in values])
def test_what_is_no_number_breaks_a_rule(rule, value):
    for fields in (NUMBERS, WHOLES):
        (found,) = gather([Sale("u", "i", SOLD_START, value)], fields)[2]
        assert found.code == f"value_{rule}"


CODES = pa.array([0, 1, 0, 1, 1], pa.int8())
PARTS = [pa.array([5, 7]), pa.array(["ada", "bob"])]
UNIONS = {
    "offsets shared": pa.UnionArray.from_dense(CODES, pa.array([0, 0, 1, 0, 1], pa.int32()), PARTS),
    "sparse": pa.UnionArray.from_sparse(CODES, [pa.array([5, 0, 7, 0, 0]), pa.array(["x", "ada", "x", "ada", "bob"])]),
    "a slice": column_of(["zz", 5, "ada", 7, "ada", "bob", 9]).slice(1, 5),
}


@pytest.mark.parametrize("form", UNIONS)
def test_rows_of_a_union_are_read_as_if_alone(form):
    columns = {"user": UNIONS[form], "item": pa.array(["i"] * 5), "time": pa.array([1] * 5)}
    assert read_rows(columns, 5, EventFields()).clean["user"].to_pylist() == ["5", "ada", "7", "ada", "bob"]
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ada", b"b\xff"]).buffers())
    union = pa.UnionArray.from_dense(CODES, pa.array([0, 0, 1, 0, 1], pa.int32()), [PARTS[0], bad])
    read = read_rows(columns | {"user": union}, 5, EventFields())
    assert read.clean["user"].to_pylist() == ["5", "ada", "7", "ada"] and list(read.refused) == [4]
