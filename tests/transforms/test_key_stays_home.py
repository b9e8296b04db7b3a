"""A key from a file or a variable is read by each worker: no pipeline holds it, nor a key that is derived from it."""

import pickle

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms.noise.prf import Prf
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    KeyedCounts,
    MeasurementAlerts,
    NumericQuantiles,
    PredecessorQueries,
    PrivateQueries,
    RangeCounts,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    ThresholdFlags,
    TopKWithGap,
)

RUN = {"epsilon": 1.0, "window": 60, "start": 0, "end": 600}
PEOPLE = {"unit": "user", "max_contributions": 3}
PETS = {"domain": Domain(["cat", "dog", "hen"])}
RULES = [AlertRule(name="many", at_least=5)]
TRANSFORMS = {
    "heavy hitters": (ShiftingHeavyHitters, RUN | {"delta": 1e-6, "max_hits": 2, "horizon": 10}),
    "heavy hitters of a list": (ShiftingHeavyHitters, RUN | PETS | {"delta": 1e-6, "max_hits": 2, "horizon": 10}),
    "counts": (KeyedCounts, RUN | {"delta": 1e-6, "max_contributions": 2}),
    "counts of a list": (KeyedCounts, RUN | PETS | {"max_contributions": 2, "over": "start"}),
    "quantiles": (NumericQuantiles, RUN | {"max_contributions": 2, "low": 0, "high": 9}),
    "top-k": (TopKWithGap, RUN | PETS | {"top": 2, "participation_cap": 3}),
    "alerts": (SparseVectorAlerts, RUN | {"rules": RULES}),
    "measurements": (MeasurementAlerts, RUN | {"rules": RULES}),
    "histogram": (ContinualHistogram, RUN | PETS),
    "histogram of people": (ContinualHistogram, RUN | PETS | PEOPLE),
    "flags": (ThresholdFlags, RUN | PETS | PEOPLE | {"thresholds": 10}),
    "cardinality": (SetCardinality, RUN | {"leave_values": ("out",)}),
    "ranges": (RangeCounts, RUN | {"universe": 100, "standing": [(1, 50)]}),
    "predecessor": (PredecessorQueries, RUN | {"universe": 100, "standing": [50]}),
    "queries": (PrivateQueries, {"epsilon": 1.0, "records": 1000, "alpha": 0.2} | PETS),
}


@pytest.fixture
def noise(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"a key for tests only, in a file")
    path.chmod(0o600)
    return KeyedNoise.from_file(path, "run")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_pipeline_holds_the_key(name, noise, monkeypatch):
    kind, arguments = TRANSFORMS[name]
    made = kind(**arguments, noise=noise)
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    events = pipeline | "Input" >> beam.Create([pa.record_batch({"user": ["u"], "item": ["i"], "time": [1]})])
    _ = ({"events": events, "queries": events} if kind is PrivateQueries else events) | made

    def refuse(prf):
        raise AssertionError("a key was about to leave")

    monkeypatch.setattr(Prf, "__reduce__", refuse)
    with pytest.raises(AssertionError, match="about to leave"):
        pickle.dumps(KeyedNoise(b"given as bytes, so it has to travel"))
    pipeline.to_runner_api()
