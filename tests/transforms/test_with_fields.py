"""Transforms read fields with other names."""

import datetime
from typing import Any, NamedTuple

import apache_beam as beam
import pandas
import polars
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms import KeyedNoise
from privstream.transforms import Domain, KeyedCounts
from privstream.transforms.reading.fields import EventFields
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.frames import NO_STAMPS, FieldNames
from privstream.transforms.reading.times import TimeForm
from single_events import gather

NOISE = KeyedNoise(b"an example, not a secret")
WINDOW: dict[str, Any] = {"epsilon": 1.0, "window": 60, "start": 0, "end": 120}
NAMES = {"user": "who", "item": ("what",), "time": "when"}
WHEN = datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)


class Visit(NamedTuple):
    who: str
    what: str
    when: Timestamp


def counts(**given: Any) -> KeyedCounts:
    """Return counts of events, nearly without noise."""
    arguments = WINDOW | {"epsilon": 100.0, "unit": "event", "domain": Domain(["a", "b"]), "shards": 1}
    return KeyedCounts(**arguments | given, noise=NOISE)


@pytest.mark.parametrize(
    "rows",
    [
        [beam.Row(who="u", what="a", when=5.0)],
        [Visit("u", "a", Timestamp(5))],
        [{"who": "u", "what": "a", "when": "1970-01-01T00:00:05Z", "more": 1}],
        [{"what": "a", "when": WHEN}],
    ],
    ids=["row", "tuple", "mapping", "without the person"],
)
def test_fields_have_other_names(rows: list[Any]) -> None:
    unit = "s" if isinstance(rows[0], beam.Row) else None
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        found = pipeline | beam.Create(rows * 50) | counts().with_fields(**NAMES, time_unit=unit)
        published = found | beam.Map(lambda row: (row.item, row.window_start.micros, abs(row.noisy - 50) < 10))
        assert_that(
            published, equal_to([(item, at * 60_000_000, at == 0 and item == "a") for item in "ab" for at in (0, 1)])
        )


COLUMNS = {
    "who": ["u", "v", "w", None, "x"],
    "what": ["a", "b", "a", "a", ""],
    "when": ["1970-01-01T00:00:05Z", "1970-01-01T00:01:05Z", "noon", "1970-01-01T00:00:05Z", "1970-01-01T00:00:05Z"],
    "size": [1, 2, 3, 4, 5],
}


def frames(columns: dict[str, list[Any]]) -> dict[str, Any]:
    table = pa.table(columns)
    (batch,) = table.to_batches()
    coded = pa.record_batch({"who": batch["who"].dictionary_encode(), "what": batch["what"].cast(pa.large_string()),
                             "when": batch["when"].cast(pa.binary()), "size": batch["size"]})  # fmt: skip
    return {
        "batch": batch,
        "table": pa.concat_tables([table.slice(0, 2), table.slice(2)]),
        "coded": coded,
        "views": pa.table({**columns, "what": pa.array(columns["what"], pa.string_view())}),
        "categories": pandas.DataFrame({**columns, "what": pandas.Categorical(columns["what"])}),
        "pandas": pandas.DataFrame(columns),
        "polars": polars.DataFrame(columns),
    }


def read(element: Any, time_unit: str | None = None, time_zone: str | None = None, **given: Any) -> Any:
    """Return what stands in an element, and why the rest cannot be used, without a pipeline."""
    names = FieldNames(**{"user": "who", "item": ("what",), "time": "when", "stamped": False,
                          "times": TimeForm(unit=time_unit, zone=time_zone)} | given)  # fmt: skip
    rows, letters, _ = gather([element], EventFields(), names, at=7)
    return [(row["user"], row["item"], row["time"] // 1_000_000) for row in rows], [each[::3] for each in letters]


@pytest.mark.parametrize("where", [None, "size >= 2 and who is not null", 'what == "a"',
    "size in (1, 5) or absent is not null",
    "number(who) > 1"])  # fmt: skip
@pytest.mark.parametrize("form", list(frames(COLUMNS)))
def test_frames_are_read_and_filtered_as_their_rows_are(form: str, where: str | None) -> None:
    made = None if where is None else Filter(where)
    rows, letters = read(frames(COLUMNS)[form], where=made)
    one_by_one = [read(dict(zip(COLUMNS, row, strict=True)), where=made) for row in zip(*COLUMNS.values(), strict=True)]
    assert rows == [row for found, _ in one_by_one for row in found]
    assert [reason for reason, _ in letters] == [reason for _, found in one_by_one for reason, _ in found]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["u", "", None]),
            st.sampled_from(["a,b", 'c"', "d", "", None]),
            st.sampled_from(["1970-01-01T00:00:05Z", "1970-02-31", "5", "1970-01-01T00:00:05", None]),
            st.one_of(st.none(), st.integers(-5, 5)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, "s"]),
    st.sampled_from([None, "Europe/Berlin"]),
)
def test_any_frame_says_what_its_rows_say(records: list[Any], unit: str | None, zone: str | None) -> None:
    kinds = {"who": pa.string(), "what": pa.string(), "when": pa.string(), "size": pa.int64()}
    columns = dict(zip(kinds, zip(*records, strict=True), strict=True))
    batch = pa.record_batch({name: pa.array(columns[name], kind) for name, kind in kinds.items()})
    options = {"time_unit": unit, "time_zone": zone, "where": Filter("size is null or size > -3"),
               "item": ("what", "who")}  # fmt: skip
    rows, letters = read(batch, **options)
    one_by_one = [read(dict(zip(kinds, record, strict=True)), **options) for record in records]
    assert rows == [row for found, _ in one_by_one for row in found]
    assert len(letters) == sum(len(found) for _, found in one_by_one)


def test_frames_that_cannot_be_read_are_dead_letters() -> None:
    mixed = pandas.DataFrame({"who": ["u", 5], "what": ["a", "b"], "when": ["1970-01-01T00:00:05Z"] * 2})
    twice = pa.RecordBatch.from_arrays([pa.array(["u"])] * 4, names=["who", "who", "what", "when"])
    without = pa.record_batch({"who": ["u"], "what": ["a"]})
    runs = pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"])
    encoded = pa.record_batch({"who": ["u", "v"], "what": runs, "when": ["1970-01-01T00:00:05Z", "noon"]})
    assert read(mixed) == ([], [("frame must have columns of one type each", "2 rows")])
    for frame, options, reason in (
        (without, {}, "events must have a column when"),
        (twice, {}, "events must have one column who"),
        (encoded, {}, "item must be text or an integer, got run_end_encoded"),
        (without, {"time": None}, NO_STAMPS),
    ):
        rows, letters = read(frame, **options)
        assert not rows and len(letters) == frame.num_rows
        assert all(said.startswith(reason) for said, _ in letters)
