"""A stream that nobody asked for is ignored in every transform, whatever it is."""

from typing import Any, NamedTuple

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

START, SECRET = 1_000_000, "zaphod"
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


class Visit(NamedTuple):
    user: str
    item: str
    time: int
    stream: Any = SECRET


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
def test_it_is_ignored(made, columnar):
    people = [{"user": str(1 + i % 60), "item": "1", "time": START} for i in range(60)]

    def events(rows):
        return [pa.RecordBatch.from_pylist(rows)] if columnar else [Visit(**row) for row in rows]

    without = run(made, events(people))
    assert without.elements("rows") and not without.elements("dead")
    for stream in (SECRET, None, 1.5):
        results = run(made, events([{**row, "stream": stream} for row in people]))
        assert sorted(results.elements("rows")) == sorted(without.elements("rows"))
        assert not results.elements("dead")
