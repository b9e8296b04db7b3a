"""Numbers that events have beside their items: read from single events and from columns, or refused."""

from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.broken_rule import BrokenRuleError
from privstream.transforms.events.element_types import check_events
from privstream.transforms.events.event_columns import read_batch
from privstream.transforms.events.event_fields import NUMBER, WHOLE, EventFields
from privstream.transforms.events.single_events import read_event

START = 1_700_000_000
Sale = namedtuple("Sale", "user item time value")
NUMBERS = EventFields(value=NUMBER)
WHOLES = EventFields(value=WHOLE)
GOOD = [(5, 5.0), (-7, -7.0), (2**70, 2.0**70), (12.5, 12.5), ("12.5", 12.5), ("-3", -3.0), ("+4", 4.0), (".5", 0.5),
        ("1e3", 1000.0), ("5.", 5.0), (np.float32(0.5), 0.5), (np.int8(-1), -1.0), (Decimal("12.50"), 12.5),
        (Fraction(1, 4), 0.25)]  # fmt: skip
BAD = {
    "missing": [None, ""],
    "type": [True, np.bool_(1), b"5", "five", "1_000", "0x10", " 5", "nan", "inf", "\u0661", "1" * 500, [5], {},
             object(), np.timedelta64(5, "s"), Timestamp(5), 5j],
    "finite": [float("nan"), float("inf"), 10**400, "1e999", Decimal("NaN"), np.float32("inf")],
}  # fmt: skip
COLUMNS = [
    pa.array([5, None, 7], pa.int8()),
    pa.array([5, None, 7], pa.uint64()),
    pa.array([5.0, None, 7.0], pa.float32()),
    pa.array([Decimal("5.00"), None, Decimal("7.00")], pa.decimal128(9, 2)),
    pa.array(["5", None, "7.0"]),
    pa.array(["+5", None, "7e0"], pa.large_string()),
    pa.array(["5", None, "7"], pa.string_view()),
    pa.array(["5", None, "7"]).dictionary_encode(),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), pa.array([5, None, 7])),
]


def code_of(value: Any, fields: EventFields = NUMBERS) -> str:
    with pytest.raises(BrokenRuleError) as raised:
        read_event(Sale("u", "i", START, value), Timestamp(0), fields)
    return raised.value.code


def batch(values: pa.Array) -> pa.RecordBatch:
    columns = {"user": pa.array(["u"] * len(values)), "item": pa.array(["i"] * len(values))}
    return pa.record_batch(columns | {"time": pa.array([START] * len(values)), "value": values})


@pytest.mark.parametrize(("value", "number"), GOOD, ids=str)
def test_a_number_is_read_in_any_usual_form(value, number):
    assert read_event(Sale("u", "i", START, value), Timestamp(0), NUMBERS).value == number


@pytest.mark.parametrize(("rule", "value"), [(rule, value) for rule, values in BAD.items() for value in values])
def test_what_is_no_number_breaks_a_rule(rule, value):
    assert code_of(value) == code_of(value, WHOLES) == f"value_{rule}"


@pytest.mark.parametrize("value", [12.5, "12.5", 1e-9, Decimal("0.1")])
def test_a_whole_number_may_be_asked_for(value):
    assert code_of(value, WHOLES) == "value_whole"
    assert read_event(Sale("u", "i", START, "5.0"), Timestamp(0), WHOLES).value == 5.0


def test_a_value_that_is_not_read_may_be_anything_or_missing():
    assert read_event(Sale("u", "i", START, "five"), Timestamp(0), EventFields()).value == 0.0
    assert "value" not in read_batch(batch(pa.array(["five"])), EventFields())[0].schema.names


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_columns_of_numbers(column):
    clean, broken = read_batch(batch(column), WHOLES)
    assert clean["value"].type == pa.float64()
    assert clean["value"].to_pylist() == [5.0, 7.0]
    assert {row: rule.code for row, rule in broken.items()} == {1: "value_missing"}


def test_each_row_of_a_column_breaks_its_own_rule():
    texts = ["5", "five", "", "1e999", "nan", "0.5", "1" * 500]
    _, broken = read_batch(batch(pa.array(texts)), WHOLES)
    codes = {1: "type", 2: "missing", 3: "finite", 4: "type", 5: "whole", 6: "type"}
    assert {row: rule.code for row, rule in broken.items()} == {row: f"value_{code}" for row, code in codes.items()}
    _, broken = read_batch(batch(pa.array([1.0, np.nan, np.inf, 0.5])), NUMBERS)
    assert {row: rule.code for row, rule in broken.items()} == {1: "value_finite", 2: "value_finite"}


@pytest.mark.parametrize("column", [pa.array([True]), pa.array([b"5"]), pa.array([[5]]), pa.array([{"a": 5}])])
def test_a_column_of_another_type_is_refused(column):
    with pytest.raises(BrokenRuleError, match=r"^value must be a number, got "):
        read_batch(batch(column), NUMBERS)


def test_a_column_must_be_there():
    with pytest.raises(BrokenRuleError, match="events must have a column value"):
        read_batch(batch(pa.array([5])).drop_columns(["value"]), NUMBERS)


class Priced(NamedTuple):
    user: str
    item: str
    time: float
    value: float


class Flagged(NamedTuple):
    user: str
    item: str
    time: float
    value: bool


class Plain(NamedTuple):
    user: str
    item: str
    time: float


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Priced, None),
        (Flagged, "value must be a number, got bool"),
        (Plain, "row must have a field value"),
        (tuple[str, str], "with a field value: values are asked for"),
    ],
)
def test_types_without_a_number_are_refused_when_the_pipeline_is_built(kind, rule):
    events = beam.Pipeline() | beam.Create([], reshuffle=False).with_output_types(kind)
    if rule is None:
        check_events(events, NUMBERS)
        return
    with pytest.raises(TypeError, match=rule):
        check_events(events, NUMBERS)
    if kind is not Plain:
        check_events(events, EventFields())
