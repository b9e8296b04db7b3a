"""A stream that nobody asked for is ignored in every transform, whatever it is."""

from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
import runner_harness
from apache_beam.utils.timestamp import Timestamp
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    KeyedCounts,
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
    "heavy hitters": ShiftingHeavyHitters(
        **CLOCK | {"epsilon": 30.0}, delta=1e-3, max_hits=2, horizon=2, method="clock"
    ),
    "counts": KeyedCounts(**CLOCK | {"epsilon": 30.0}, delta=1e-3, max_contributions=2, over="start"),
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


def run(made, inputs):
    """Return the results of one pipeline with the transform on each of several inputs."""

    def build(pipeline):
        outputs = {}
        for name, events in inputs.items():
            given = pipeline | name >> beam.Create(events, reshuffle=False)
            if isinstance(made, PrivateQueries):
                asked = pipeline | f"Ask {name}" >> beam.Create([LinearQuery("q", Timestamp(1), ("1",))])
                given = {"events": given, "queries": asked}
            published = given | f"Publish {name}" >> made.with_dead_letters()
            outputs |= {f"{name} rows": published.rows, f"{name} dead": published.dead_letters}
        return outputs

    return runner_harness.run("fn_api", build)


@some_quick("name", TRANSFORMS, "heavy hitters", "cardinality", "queries")
@pytest.mark.parametrize("columnar", [True, False])
@pytest.mark.slow
def test_it_is_ignored(name, columnar):
    people = [{"user": str(1 + i % 60), "item": "1", "time": START} for i in range(60)]

    def events(rows):
        return [pa.RecordBatch.from_pylist(rows)] if columnar else [Visit(**row) for row in rows]

    streams = (SECRET, None, 1.5)
    inputs = {str(stream): events([{**row, "stream": stream} for row in people]) for stream in streams}
    results = run(TRANSFORMS[name], {"without": events(people), **inputs})
    assert results.elements("without rows")
    for stream in inputs:
        assert sorted(results.elements(f"{stream} rows")) == sorted(results.elements("without rows"))
    assert not any(results.elements(f"{each} dead") for each in ("without", *inputs))
