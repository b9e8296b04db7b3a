"""Filters: what the language has, what it refuses and where, and what a field without a value makes of a condition."""

import math
import pickle
import sqlite3

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.reading.fields import EventFields
from privstream.transforms.reading.filters import KINDS, NUMBER, TEXT, TRUTH, Filter
from privstream.transforms.reading.frames import FieldNames
from single_events import gather


def accepts(text, values):
    """Tell whether a single event passes, or which rule it breaks."""
    event = {"item": "i", "time": 5} | values
    rows, letters, rules = gather([event], EventFields(user="unread"), FieldNames(where=Filter(text)))
    return rules[0] if letters else bool(rows)


@pytest.mark.parametrize(
    "text, kinds",
    [
        ('status >= 500 and country == "de"', {"status": NUMBER, "country": TEXT}),
        ("not (a > 1) or b is null", {"a": NUMBER, "b": None}),
        ("premium", {"premium": TRUTH}),
        ("b > 1 and a == b", {"a": NUMBER, "b": NUMBER}),
        ("text(a) == b", {"a": TEXT, "b": TEXT}),
        ('field("two, words") in ("x",)', {"two, words": TEXT}),
        ("lower(t) == u and -2 < x", {"t": TEXT, "u": TEXT, "x": NUMBER}),
    ],
)
def test_the_condition_says_what_fields_are_read_as(text, kinds):
    assert Filter(text).kinds == kinds
    assert pickle.loads(pickle.dumps(Filter(text))).kinds == kinds


@pytest.mark.parametrize(
    "text, values, passes",
    [
        ("x in (1, -2)", {"x": "-2"}, True),
        ("x is null", {"x": ""}, True),
        ("1 < x <= 5", {"x": 5.0}, True),
        ("a > -1e300", {"a": 10**299}, True),
        ('starts_with(lower(p), "/a.")', {"p": "/A.x"}, True),
        ('contains(p, ".*")', {"p": "abc"}, False),
        ('x == 5 or y == "a"', {"x": "5", "y": "b"}, True),
        ('x == "5"', {"x": 5}, True),
        ("x == true", {"x": "True"}, True),
        ("x in (true,)", {"x": True}, True),
    ],
)
def test_what_passes(text, values, passes):
    assert accepts(text, values) is passes


@pytest.mark.parametrize("kind, value", [(NUMBER, "oops"), (NUMBER, True), (NUMBER, math.inf), (TEXT, 1.5), (TRUTH, 1)])
def test_a_value_of_another_kind_breaks_a_rule_that_names_the_field_and_no_value(kind, value):
    rule = accepts({NUMBER: "f > 1", TEXT: 'f == "a"', TRUTH: "f"}[kind], {"f": value})
    assert rule.code == "where_type" and str(rule).startswith("field `f`, which where reads, must be")
    assert str(value) not in str(rule).replace("true or false", "").replace("finite", "")


@pytest.mark.parametrize(
    "text",
    [
        '__import__("os") == 1',
        "x.real > 1",
        "(lambda: 1) == x",
        "[1 for x in y]",
        'f"{x}" == "a"',
        "x if y else z",
        "(x := 5) > 1",
        "sum(x) > 1",
        "now() > x",
        "a + b > 1",
        "a == b",
        "x is 5",
        "1 < a in (2,)",
        "~x",
        "lower(*x) == 1",
        "x > 1j",
        'matches(x, "(a+)+")',
        "x == null",
        "x > 1e999",
        '"a" == "b"',
        "x > 1 and" * 300,
        "not " * 200 + "x",
        "(" * 900 + "x" + ")" * 900,
        "-" * 1500 + "x > 1",
    ],
)
def test_nothing_else_is_in_the_language(text):
    with pytest.raises(ValueError, match="where"):
        Filter(text)


VALUES = st.fixed_dictionaries(
    {
        "a": st.none() | st.floats(-3, 3).map(lambda x: float(round(x))),
        "b": st.none() | st.floats(-3, 3).map(lambda x: float(round(x))),
        "t": st.none() | st.sampled_from(["x", "xy", "X", "ü"]),
        "p": st.none() | st.booleans(),
    }
)
ATOMS = st.sampled_from(
    [
        "number(a) > b",
        "a >= 0",
        "a == -1",
        "b in (1, 2)",
        't == "x"',
        'starts_with(t, "x")',
        "p",
        "a is null",
        "p != true",
    ]
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"not {part}"),
    ),
    max_leaves=6,
)


def expected(text, values):
    """Evaluate in SQL's three-valued logic by another engine."""
    connection = sqlite3.connect(":memory:")
    connection.create_function("starts_with", 2, lambda x, y: None if x is None else x.startswith(y))
    connection.create_function("number", 1, lambda x: x)
    connection.execute("create table events (a real, b real, t text, p integer)")
    connection.execute("insert into events values (?, ?, ?, ?)", [values[name] for name in "abtp"])
    (number,) = connection.execute(f"select count(*) from events where {text}").fetchone()
    connection.close()
    return number == 1


@given(CONDITIONS, st.lists(VALUES, min_size=1, max_size=5))
def test_conditions_mean_what_they_mean_in_sql_row_by_row_and_in_columns(text, rows):
    sql = text.replace('"', "'")
    one_by_one = [accepts(text, row) for row in rows]
    assert one_by_one == [expected(sql, row) for row in rows]
    kinds = Filter(text).kinds
    columns = {name: pa.array([row[name] for row in rows], KINDS[kind or NUMBER]) for name, kind in kinds.items()}
    assert Filter(text).passes(columns, len(rows)).tolist() == one_by_one


def test_in_takes_negative_zero_as_equality_does() -> None:
    for condition in ("a == 0", "a in (0,)", "a in (-0.0,)"):
        assert [accepts(condition, {"a": zero}) for zero in (-0.0, 0.0)] == [True, True]
    assert not accepts("a not in (0,)", {"a": -0.0})
