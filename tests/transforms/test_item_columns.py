"""Items of several columns: one text that no other item has, from which the columns can be told again."""

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms import KeyedNoise
from privstream.transforms import Domain, KeyedCounts
from privstream.transforms.reading.domain import join_columns, join_item, listed_item, split_item

PARTS = st.text(st.sampled_from(list('a, "\n\x00ü|')), min_size=0, max_size=5)
ITEMS = st.lists(PARTS, min_size=2, max_size=4)


@given(ITEMS)
def test_columns_can_be_told_from_the_text(parts):
    assert split_item(join_item(parts), len(parts)) == tuple(parts)


@given(ITEMS, ITEMS)
def test_different_items_have_different_texts(one, other):
    if len(one) == len(other):
        assert (join_item(one) == join_item(other)) == (one == other)


@given(st.lists(st.tuples(PARTS, PARTS, PARTS), min_size=1, max_size=6))
def test_columns_are_joined_as_single_items_are(rows):
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    assert join_columns(columns).to_pylist() == [join_item(row) for row in rows]


def test_items_of_lists_are_lines_of_csv():
    assert listed_item("domain", '"a,b",c', 2) == join_item(["a,b", "c"])
    for text in ("a", "a,b,c", "a,"):
        with pytest.raises(ValueError, match="domain must have items of 2 columns"):
            listed_item("domain", text, 2)


def test_rows_of_a_pipeline_have_items_of_several_fields():
    rows = [beam.Row(user=f"u{n}", country="de", page="a,b", time=5.0) for n in range(40)]
    rows += [beam.Row(user="v", country="de", page=None, time=5.0)]
    items = [join_item(("de", "a,b")), join_item(("de,a", "b"))]
    options = {"epsilon": 100.0, "window": 60, "start": 0, "end": 60, "unit": "event", "domain": Domain(items)}
    counts = KeyedCounts(**options, shards=1, noise=KeyedNoise(b"an example, not a secret", "run"))
    made = counts.with_fields(item=["country", "page"], time_unit="s").with_dead_letters()
    with beam.Pipeline("FnApiRunner") as pipeline:
        found = pipeline | beam.Create(rows) | made
        assert_that(found.rows | beam.Map(lambda row: (row.item, row.noisy)), equal_to([(items[0], 40), (items[1], 0)]))
        reasons = found.dead_letters | beam.Map(lambda letter: letter.reason)
        assert_that(reasons, equal_to(["item `page` must be present and not empty"]), label="Letters")
    with pytest.raises(ValueError, match="item must be a field, or a list"):
        counts.with_fields(item=["a", "a"])
