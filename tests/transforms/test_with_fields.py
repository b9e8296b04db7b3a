"""Transforms show their parameters, and read fields with other names."""

import datetime
import re
from typing import Any, NamedTuple

import apache_beam as beam
import privstream.transforms
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import KeyedNoise
from privstream.transforms import Domain, KeyedCounts, PrivateQueries, ShiftingHeavyHitters, TopKWithGap
from privstream.transforms.events.single_events import NO_STAMP, ReadRows
from test_transform_caveats import EXAMPLES

KEY = b"an example, not a secret"
NOISE = KeyedNoise(KEY, "a run that nobody else names")
WINDOW: dict[str, Any] = {"epsilon": 1.0, "window": 60, "start": 0, "end": 120}
NAMES = {"user_field": "who", "item_field": "what", "time_field": "when"}
WHEN = datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)


class Visit(NamedTuple):
    who: str
    what: str
    when: Timestamp


def counts(**given: Any) -> KeyedCounts:
    """Return counts of events, nearly without noise."""
    arguments = WINDOW | {"epsilon": 100.0, "unit": "event", "domain": Domain(["a", "b"]), "shards": 1}
    return KeyedCounts(**arguments | given, noise=NOISE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_are_shown_and_keys_are_not(name: str) -> None:
    given = EXAMPLES[name][0][0]
    made = getattr(privstream.transforms, name)(**given, noise=NOISE)
    shown = repr(made)
    assert re.findall(r"(\w+)=", shown) == list(given)
    assert all(
        f"{option}={value!r}" in shown for option, value in given.items() if isinstance(value, str | int | float)
    )
    assert KEY.decode() not in shown and "nobody" not in shown and "noise" not in shown
    assert repr(made.with_dead_letters()) == shown
    assert "0x" not in shown or "function" in shown


def test_of_lists_the_length_is_shown_alone() -> None:
    assert "streams=<2 of them>" in repr(counts(streams=("north", "south")))


def test_a_domain_shows_its_size() -> None:
    assert repr(Domain(map(str, range(1234)))) == "<Domain of 1,234 items>"


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
        published = found | beam.Map(lambda row: (row.item, row.window_start.micros, abs(row.count - 50) < 10))
        assert_that(
            published, equal_to([(item, at * 60_000_000, at == 0 and item == "a") for item in "ab" for at in (0, 1)])
        )


def test_the_time_may_be_that_of_the_row_itself() -> None:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | beam.Create([{"what": "a", "when": "at noon"}] * 50)
        stamped = rows | beam.Map(TimestampedValue, 65)
        without = pipeline | "Without" >> beam.Create([{"what": "b"}])
        made = counts().with_fields(item_field="what", time_field=None).with_dead_letters()
        found = (stamped, without) | beam.Flatten() | made
        published = found.rows | beam.Map(lambda row: (row.item, row.window_start.micros, abs(row.count - 50) < 10))
        assert_that(
            published, equal_to([(item, at * 60_000_000, at == 1 and item == "a") for item in "ab" for at in (0, 1)])
        )
        reasons = found.dead_letters | beam.Map(lambda letter: letter.reason)
        assert_that(reasons, equal_to([NO_STAMP]), label="Reasons")


def test_rows_that_cannot_be_read_are_dead_letters() -> None:
    good, bad = (
        {"what": "a", "when": "1970-01-01T00:00:05Z"},
        [{"what": "a"}, {"what": "a", "when": "noon"}, "text", {}],
    )
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        events = pipeline | beam.Create([good, *bad]).with_output_types(Any)
        found = events | counts().with_fields(**NAMES).with_dead_letters()
        kept = found.dead_letters | beam.Map(lambda letter: (letter.source, letter.record))
        expected = [
            ("row", '{"what": "a"}'),
            ("row", '{"what": "a", "when": "noon"}'),
            ("row", "'text'"),
            ("row", "{}"),
        ]
        assert_that(kept, equal_to(expected))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([beam.Row(whom="u", what="a", when=5.0)], "user_field must be a field of the input, got 'who'; its fields are "
         "whom, what, when; did you mean 'whom'?"),
        ([pa.record_batch({"who": ["u"], "what": ["a"], "when": [1]})], "with named fields, or mappings, got Record"),
        ([("u", "a")], "rows with named fields, or mappings, got"),
        (["u"], "rows with named fields, or mappings, got str"),
    ],
)  # fmt: skip
def test_what_has_no_such_fields_is_refused_at_once(rows: list[Any], message: str) -> None:
    hitters = ShiftingHeavyHitters(epsilon=1.0, delta=1e-6, max_hits=4, window=60, horizon=10, noise=NOISE)
    pipeline = beam.Pipeline(runner="FnApiRunner")
    with pytest.raises(TypeError) as refused:
        _ = pipeline | beam.Create(rows) | hitters.with_fields(**NAMES)
    assert message in str(refused.value)


def test_fields_that_are_not_read_have_no_names() -> None:
    def names(made: Any, **given: Any) -> dict[str, str]:
        read = made.with_fields(**given)._read_rows
        assert isinstance(read, ReadRows)
        return read.names

    every = {"user_field": "user", "item_field": "item", "time_field": "time"}
    domain = Domain(["a", "b", "c"])
    assert names(counts()) == {"item_field": "item", "time_field": "time"}
    assert names(TopKWithGap(**WINDOW, domain=domain, top=1, noise=NOISE)) == every
    streams = TopKWithGap(**WINDOW, domain=domain, top=1, streams=("x",), streams_per_person=1, noise=NOISE)
    assert names(streams) == every | {"stream_field": "stream"}
    assert names(streams, stream_field="land") == every | {"stream_field": "land"}
    queries = PrivateQueries(epsilon=1.0, domain=domain, noise=NOISE)
    assert "time_field" not in names(queries)
    with pytest.raises(ValueError, match="time_unit must be one of s, ms, us, ns, got 'h'"):
        counts().with_fields(time_unit="h")
