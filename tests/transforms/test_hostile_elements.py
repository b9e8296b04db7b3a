"""Whatever one element of a pipeline is: it is a dead letter, the run goes on, and what is published is the same."""

import datetime
import random
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import runner_harness
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from examples import ASKED, ONE_OF_EACH, START, example
from grids import some_quick
from privstream.transforms import Measurement

SECRET = "zaphod"


class Visit(NamedTuple):
    user: Any
    item: Any
    time: Any
    stream: Any = None
    value: Any = 5


USERS = [None, "", True, 1.5, b"u", "\ud800", "x" * (2**20 + 1), 1 << 40_000, ["u"], {"u": 1}, np.bool_(1), object]
TIMES = [None, True, "2024-01-01", b"1", float("nan"), float("inf"), -1, 2**63, 10**400, np.float32("nan"),
         np.datetime64("2024-01-01"), np.timedelta64(5, "s"), datetime.date(2024, 1, 1), Timestamp(2**40),
         MIN_TIMESTAMP, MAX_TIMESTAMP,
         START * 10**6]  # fmt: skip
VALUES = [None, True, "five", "", b"5", float("nan"), float("inf"), 10**400, np.timedelta64(5, "s"), [5], object]
KINDS = [pa.array([1.5]), pa.array([b"u"]), pa.array([{"a": 1}]), pa.array([True]), pa.array([[1.5]]), pa.nulls(1)]


def hostile_events(made: Any, chance: random.Random) -> list[Any]:
    """Return elements that cannot be events of a transform, of every form."""
    fields = made.event_fields
    found: list[Any] = [None, 5, SECRET, b"x", {"user": SECRET}, (), ("u",), (1, 2, 3), [], set(), object, object()]
    found += [beam.Row(somebody=SECRET), pa.table({"user": ["u"]}), pa.array(["u"]), (SECRET, None), (SECRET, 1.5)]
    columns = {"user": pa.array(["1"]), "item": pa.array(["1"]), "time": pa.array([START]), "value": pa.array([5])}
    texts = [v for v in USERS if not isinstance(v, list)]
    for name in fields.required:
        bad = {"user": USERS, "item": texts, "time": TIMES, "value": VALUES}[name]
        found += [Visit(**{"user": "1", "item": "1", "time": START, name: value}) for value in bad]
        found.append(pa.record_batch({key: column for key, column in columns.items() if key != name}))
        found += [pa.record_batch(columns | {name: values}) for values in KINDS[name in ("time", "value") :]]
        codes = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), pa.array(["a"]), safe=False)
        found.append(pa.record_batch(columns | {name: codes}))
    chance.shuffle(found)
    return found


@some_quick("name", ONE_OF_EACH, "heavy hitters", "flags", "ranges")
def test_elements_of_any_form_decide_about_themselves_alone(name):
    made = example(name)
    people = [Visit(str(1 + i % 60), "1", START + i / 1000) for i in range(60)]
    good: list[Any] = [*people[:50], pa.RecordBatch.from_pylist([visit._asdict() for visit in people[50:]])]
    bad = hostile_events(made, random.Random(1))
    if name == "measurements":
        good = [Measurement("crowd", Timestamp(START), 5.0)]
    empty = [pa.record_batch({"user": pa.array([], pa.float64())}), pa.RecordBatch.from_arrays([], names=[])]
    query = ASKED.get(type(made))

    def build(pipeline, hostile):
        given = pipeline | beam.Create([(each,) for each in [*good, *hostile]], reshuffle=False)
        given |= "Unpack" >> beam.Map(first_of).with_output_types(Any)
        if query is not None:
            both = [(each,) for each in [query, *hostile]]
            queries = pipeline | "Ask" >> beam.Create(both, reshuffle=False)
            given = {"events": given, "queries": queries | "Asked" >> beam.Map(first_of).with_output_types(Any)}
        return given | made.with_dead_letters()

    without = runner_harness.run("fn_api", lambda pipeline: build(pipeline, []))
    hostile = runner_harness.run(
        "fn_api", lambda pipeline: build(pipeline, bad if name == "measurements" else bad + empty)
    )
    assert without.elements("dead") == [] and (without.elements("rows") or name == "measurements")
    assert sorted(hostile.elements("rows")) == sorted(without.elements("rows"))
    letters = [letter for letter in hostile.elements("dead") if letter.source in ("event", "measurement")]
    assert len(letters) == len(bad)
    assert not any(SECRET in letter.reason for letter in hostile.elements("dead"))


def first_of(pair: tuple[Any]) -> Any:
    return pair[0]


PAIRS = [name for name in ONE_OF_EACH if name not in ("measurements", "quantiles", "queries")]


@some_quick("name", PAIRS, "heavy hitters", "cardinality")
def test_pairs_without_a_time_are_set_aside(name):
    made = example(name)
    pairs = [(str(1 + i % 60), "1") for i in range(60)]

    def build(pipeline):
        timed = pipeline | "Timed" >> beam.Create(pairs) | beam.Map(at_start)
        return (timed, pipeline | "Without" >> beam.Create(pairs)) | beam.Flatten() | made.with_dead_letters()

    results = runner_harness.run("fn_api", build)
    reasons = {letter.reason for letter in results.elements("dead")}
    assert reasons == {"event must have a timestamp: that of a pair (user, item) is its time"}
    assert results.counters["privstream:events_malformed_time_missing"] == len(results.elements("dead")) == 60
    assert results.counters["privstream:events"] == 60


def at_start(pair: tuple[str, str]) -> TimestampedValue:
    return TimestampedValue(pair, START)
