"""Records that are read once for several questions: each gets what it would have read by itself."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.pipelines.sources.fields import FieldMapping, Readings
from privstream.pipelines.sources.files import is_for
from raw_rows import normalised

FORMS: dict[str, Any] = {"user": "who", "time": "at", "time_unit": "s", "null": ("NA",), "trim": True}
READINGS = {
    "pages": FieldMapping(item="page", **FORMS),
    "places": FieldMapping(item="land,page", **FORMS),
    "sums": FieldMapping(item="page", value="ms", whole=True, value_unit=0.5, **FORMS),
    "latency": FieldMapping(item="", value="ms", where='ms > 1 and land == "de"', **FORMS),
    "events": FieldMapping(item="page", **(FORMS | {"user": ""})),
}
SHARED = Readings.of(READINGS)
TEXTS = st.sampled_from(["a", " b ", "", "NA", None, "de", "\ud800"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "who": TEXTS | st.integers(-5, 5),
            "page": TEXTS,
            "land": TEXTS,
            "at": st.sampled_from([1, 2.5, None, "2024-01-01T00:00:00Z", "soon", 1e300]),
            "ms": st.sampled_from([1, 2.2, None, "3", "x", float("inf"), ""]),
        }
    ),
    min_size=1,
    max_size=6,
)


def raw(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows column by column."""
    return {name: [row[name] for row in rows] for name in SHARED.names}


@settings(max_examples=40)
@given(ROWS)
def test_each_question_reads_what_it_would_by_itself(rows: list[dict[str, Any]]) -> None:
    """Rows and values are the same, and records are refused for the same reasons."""
    batches, refusals = normalised(raw(rows), SHARED)
    for name, fields in READINGS.items():
        (alone,), refused = normalised(raw(rows), fields)
        assert [each.equals(alone) for each in batches if is_for(each, name)] == [True]
        own = [each for each in refusals if name in each.by]
        assert [(each.position, each.code) for each in own] == [(each.position, each.code) for each in refused]
        assert all(each.reason.startswith(one.reason) for each, one in zip(own, refused, strict=True))


def test_a_reason_says_for_which_questions_it_is_one() -> None:
    """One dead letter for all that refuse a record alike."""
    row = {"who": "a", "page": "p", "land": "de", "at": 1, "ms": None}
    _, refusals = normalised(raw([row, row | {"page": None}, row | {"at": None, "ms": 5}]), SHARED)
    assert [(int(each.position), each.reason, each.by) for each in refusals] == [
        (1, "item `page` must be present and not empty (for places)", ("places",)),
        (1, "item must be present and not empty (for pages, sums, events)", ("pages", "sums", "events")),
        (2, "time must be present and not empty", ("pages", "places", "sums", "latency", "events")),
    ]


def test_an_error_about_a_file_begins_with_the_name_of_the_question() -> None:
    """Each question has fields of its own."""
    schema = pa.schema([(name, pa.string()) for name in ("who", "page", "land", "at")])
    with pytest.raises(ValueError, match=r"^sums: --value must name a field of clicks: no `ms` there"):
        SHARED.check(schema, "clicks")


@pytest.mark.parametrize("odd", [True, [1], {"a": 1}])
def test_a_value_of_an_odd_kind_decides_about_no_other(odd: Any) -> None:
    """Events without a value count, whatever is in the same block."""
    fields = FieldMapping(value="ms", whole=True, where="ms is null or ms > 0", **FORMS, item="page")
    columns = {"who": ["a", "b", odd], "page": ["p"] * 3, "at": [1, 2, 3], "ms": [None, odd, None]}
    (batch,), refusals = normalised(columns, fields)
    assert batch["user"].to_pylist() == (["a", "true"] if odd is True else ["a"])
    assert [each.position for each in refusals] == (["1"] if odd is True else ["1", "2"])
