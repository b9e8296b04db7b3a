"""Whatever one element of a pipeline is: it is a dead letter, the run goes on, and what is published is the same."""

import datetime
import inspect
import random
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import privstream.transforms
import pyarrow as pa
import pytest
import runner_harness
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    KeyedCounts,
    LinearQuery,
    Measurement,
    MeasurementAlerts,
    NumericQuantiles,
    PredecessorQueries,
    PredecessorQuery,
    PrivateQueries,
    RangeCounts,
    RangeQuery,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    ThresholdFlags,
    TopKWithGap,
)

NOISE = KeyedNoise(b"a key for tests, no secret")
START = 1_700_000_000 // 60 * 60
SECRET = "zaphod"
CLOCK: dict[str, Any] = {"epsilon": 500.0, "window": 10, "start": START, "end": START + 20}
LISTED = Domain(["1", "2", "3"])
RULES = (AlertRule(name="crowd", at_least=20),)
ARGUMENTS: dict[type, dict[str, Any]] = {
    ShiftingHeavyHitters: CLOCK | {"epsilon": 30.0, "delta": 1e-3, "max_hits": 2, "horizon": 2, "end": None},
    KeyedCounts: CLOCK | {"epsilon": 30.0, "delta": 1e-3, "max_contributions": 1},
    NumericQuantiles: CLOCK | {"low": 0, "high": 9, "max_contributions": 1},
    TopKWithGap: CLOCK | {"domain": LISTED, "top": 1},
    SparseVectorAlerts: CLOCK | {"rules": RULES},
    MeasurementAlerts: CLOCK | {"rules": RULES},
    ContinualHistogram: CLOCK | {"domain": LISTED},
    ThresholdFlags: CLOCK | {"domain": LISTED, "thresholds": 20, "unit": "user", "max_contributions": 2},
    SetCardinality: CLOCK | {"timeout": 60, "leave_values": ("2",)},
    RangeCounts: CLOCK | {"universe": 64, "standing": [(1, 64)]},
    PredecessorQueries: CLOCK | {"universe": 64, "standing": [60]},
    PrivateQueries: {"epsilon": 500.0, "domain": LISTED, "records": 60, "alpha": 0.3, "queries": 5},
}
every_transform = pytest.mark.parametrize("kind", ARGUMENTS)


class Visit(NamedTuple):
    user: Any
    item: Any
    time: Any
    stream: Any = None
    value: Any = 5


def test_all_transforms_are_here():
    public = {getattr(privstream.transforms, name) for name in privstream.transforms.__all__}
    assert {kind for kind in public if inspect.isclass(kind) and issubclass(kind, beam.PTransform)} == set(ARGUMENTS)


@every_transform
@pytest.mark.parametrize("noise", [None, "key", b"key", 5, KeyedNoise])
def test_what_is_no_noise_source_is_refused(kind, noise):
    with pytest.raises(TypeError, match=r"^noise must be a NoiseSource, such as KeyedNoise, got "):
        kind(**ARGUMENTS[kind], noise=noise)


USERS = [None, "", True, 1.5, b"u", "\ud800", "x" * (2**20 + 1), 1 << 40_000, ["u"], {"u": 1}, np.bool_(1), object]
TIMES = [None, True, "2024-01-01", b"1", float("nan"), float("inf"), -1, 2**63, 10**400, np.float32("nan"),
         np.datetime64("2024-01-01"), np.timedelta64(5, "s"), datetime.date(2024, 1, 1), Timestamp(2**40),
         MIN_TIMESTAMP, MAX_TIMESTAMP,
         START * 10**6]  # fmt: skip
VALUES = [None, True, "five", "", b"5", float("nan"), float("inf"), 10**400, np.timedelta64(5, "s"), [5], object]
KINDS = [pa.array([1.5]), pa.array([b"u"]), pa.array([{"a": 1}]), pa.array([True]), pa.array([[1.5]]), pa.nulls(1)]


def hostile_events(kind: type, chance: random.Random) -> list[Any]:
    """Return elements that cannot be events of a transform, of every form."""
    fields = kind(**ARGUMENTS[kind], noise=NOISE).event_fields
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


@some_quick("kind", ARGUMENTS, ShiftingHeavyHitters, ThresholdFlags, RangeCounts)
def test_elements_of_any_form_decide_about_themselves_alone(kind):
    made = kind(**ARGUMENTS[kind], noise=NOISE)
    people = [Visit(str(1 + i % 60), "1", START + i / 1000) for i in range(60)]
    good: list[Any] = [*people[:50], pa.RecordBatch.from_pylist([visit._asdict() for visit in people[50:]])]
    bad = hostile_events(kind, random.Random(1))
    if kind is MeasurementAlerts:
        good = [Measurement("crowd", Timestamp(START), 5.0)]
    empty = [pa.record_batch({"user": pa.array([], pa.float64())}), pa.RecordBatch.from_arrays([], names=[])]
    asked = {
        PrivateQueries: LinearQuery("q", Timestamp(1), ("1",)),
        RangeCounts: RangeQuery(1, 9, Timestamp(START)),
        PredecessorQueries: PredecessorQuery(1, Timestamp(START)),
    }

    def build(pipeline, hostile):
        given = pipeline | beam.Create([(each,) for each in [*good, *hostile]], reshuffle=False)
        given |= "Unpack" >> beam.Map(first_of).with_output_types(Any)
        if kind in asked:
            both = [(each,) for each in [asked[kind], *hostile]]
            queries = pipeline | "Ask" >> beam.Create(both, reshuffle=False)
            given = {"events": given, "queries": queries | "Asked" >> beam.Map(first_of).with_output_types(Any)}
        return given | made.with_dead_letters()

    without = runner_harness.run("fn_api", lambda pipeline: build(pipeline, []))
    hostile = runner_harness.run(
        "fn_api", lambda pipeline: build(pipeline, bad if kind is MeasurementAlerts else bad + empty)
    )
    assert without.elements("dead") == [] and (without.elements("rows") or kind is MeasurementAlerts)
    assert sorted(hostile.elements("rows")) == sorted(without.elements("rows"))
    letters = [letter for letter in hostile.elements("dead") if letter.source in ("event", "measurement")]
    assert len(letters) == len(bad)
    assert not any(SECRET in letter.reason for letter in hostile.elements("dead"))


def first_of(pair: tuple[Any]) -> Any:
    return pair[0]


@some_quick(
    "kind",
    [kind for kind in ARGUMENTS if kind not in (MeasurementAlerts, NumericQuantiles, PrivateQueries)],  # no pairs
    ShiftingHeavyHitters,
    SetCardinality,
)
def test_pairs_without_a_time_are_set_aside(kind):
    made = kind(**ARGUMENTS[kind], noise=NOISE)
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
