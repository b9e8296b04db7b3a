"""An event that names a stream, in a run without streams: a dead letter, in every transform, and the run goes on."""

import apache_beam as beam
import pyarrow as pa
import pytest
import runner_harness
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    LinearQuery,
    PredecessorQueries,
    PrivateQueries,
    RangeCounts,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    ThresholdFlags,
    TopKWithGap,
)

START, SECOND, SECRET = 1_000_000, 1_000_000, "zaphod"
NOISE = KeyedNoise(b"a key for tests, no secret")
CLOCK = {"epsilon": 500.0, "window": 10, "start": START, "end": START + 20, "noise": NOISE}
LISTED = Domain(["1", "2", "3"])
TRANSFORMS = {
    "heavy hitters": ShiftingHeavyHitters(**CLOCK | {"epsilon": 30.0}, delta=1e-3, max_hits=2, horizon=2),
    "top k": TopKWithGap(**CLOCK, domain=LISTED, top=1),
    "alerts": SparseVectorAlerts(**CLOCK, rules=[AlertRule(name="crowd", at_least=20)]),
    "histogram": ContinualHistogram(**CLOCK, domain=LISTED),
    "histogram of people": ContinualHistogram(**CLOCK, domain=LISTED, unit="user", max_contributions=2),
    "flags": ThresholdFlags(**CLOCK, domain=LISTED, thresholds=20),
    "cardinality": SetCardinality(**CLOCK, timeout=60),
    "ranges": RangeCounts(**CLOCK, universe=64, standing=[(1, 64)]),
    "predecessors": PredecessorQueries(**CLOCK, universe=64, standing=[60]),
    "queries": PrivateQueries(epsilon=500.0, domain=LISTED, records=60, alpha=0.3, queries=5, noise=NOISE),
}


def run(made, events):
    """Return what is published, the dead letters and the counters."""

    def build(pipeline):
        given = pipeline | beam.Create(events, reshuffle=False)
        if isinstance(made, PrivateQueries):
            asked = pipeline | "Ask" >> beam.Create([LinearQuery("q", Timestamp(1), ("1",))])
            given = {"events": given, "queries": asked}
        return given | made.with_dead_letters()

    return runner_harness.run("fn_api", build)


@pytest.mark.parametrize("made", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("columnar", [True, False])
def test_it_is_set_aside_and_the_others_count(made, columnar):
    people = [{"user": str(1 + i % 60), "item": "1", "time": START * SECOND + i, "stream": ""} for i in range(60)]
    stranger = {"user": "61", "item": "2", "time": START * SECOND, "stream": SECRET}

    def events(rows):
        return [pa.RecordBatch.from_pylist(rows)] if columnar else [beam.Row(**row) for row in rows]

    results, without = run(made, events([*people, stranger])), run(made, events(people))
    assert sorted(results.elements("rows")) == sorted(without.elements("rows")) != []
    (letter,) = results.elements("dead")
    assert letter.reason == "stream must be empty: this run was given no streams"
    assert SECRET in letter.record
    assert results.counters["privstream:events_malformed"] == 1
    assert without.elements("dead") == []
