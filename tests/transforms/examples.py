"""One transform of every kind, and variants that have other code, with arguments under which a crowd is published.

Tests of what every transform must do are parametrised by `EXAMPLES`, and change what they are about: `example(name,
epsilon=0)`. A person of the crowd has item 1; the windows of all are the same two.
"""

import inspect
from typing import Any

import apache_beam as beam
import privstream.transforms
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    KeyedCounts,
    LinearQuery,
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

KEY = b"a key for tests, no secret"
NOISE = KeyedNoise(KEY)
START = 1_700_000_000 // 60 * 60
WINDOWS: dict[str, Any] = {"epsilon": 500.0, "window": 10, "start": START, "end": START + 20}
SECRET_ITEM = "pan-galactic-gargle-blaster"
LISTED = {"domain": Domain(["1", "2", "3", SECRET_ITEM])}
HITTERS = WINDOWS | {"epsilon": 30.0, "delta": 1e-3, "max_hits": 2}
COUNTS = WINDOWS | {"epsilon": 30.0, "delta": 1e-3, "max_contributions": 2}
RULES = {"rules": (AlertRule(name="crowd", at_least=20),)}
NUMBERS = {"low": 0, "high": 9}
ASKED = {"queries": (LinearQuery(name="q", items=("1",)),)}

EXAMPLES: dict[str, tuple[type[beam.PTransform], dict[str, Any]]] = {
    "heavy hitters": (ShiftingHeavyHitters, COUNTS),
    "heavy hitters by status": (ShiftingHeavyHitters, HITTERS | {"method": "status"}),
    "heavy hitters by clock": (ShiftingHeavyHitters, HITTERS | {"method": "clock"}),
    "heavy hitters of a list": (ShiftingHeavyHitters, COUNTS | LISTED),
    "heavy hitters of a list, by status": (ShiftingHeavyHitters, HITTERS | LISTED | {"method": "status"}),
    "heavy hitters of a list, by clock": (ShiftingHeavyHitters, HITTERS | LISTED | {"method": "clock"}),
    "counts": (KeyedCounts, COUNTS),
    "counts since the start": (KeyedCounts, COUNTS | {"over": "start"}),
    "counts of the last windows": (KeyedCounts, COUNTS | {"over": 20}),
    "counts of a list": (KeyedCounts, COUNTS | LISTED | {"over": "start", "delta": 0.0}),
    "largest counts of a list": (KeyedCounts, COUNTS | LISTED | {"over": "start", "top": 1}),
    "counts of events": (KeyedCounts, COUNTS | {"unit": "event", "max_contributions": None}),
    "top-k": (TopKWithGap, COUNTS | {"top": 1}),
    "top-k of a list": (TopKWithGap, COUNTS | LISTED | {"top": 1}),
    "top-k by gaps": (TopKWithGap, WINDOWS | LISTED | {"top": 1, "max_per_window": 1, "method": "gaps"}),
    "quantiles": (NumericQuantiles, WINDOWS | NUMBERS | {"max_contributions": 1}),
    "quantiles of events": (NumericQuantiles, WINDOWS | NUMBERS | {"unit": "event"}),
    "alerts": (SparseVectorAlerts, COUNTS | RULES),
    "alerts by sparse vector": (SparseVectorAlerts, WINDOWS | RULES | {"method": "sparse_vector"}),
    "alerts by status": (SparseVectorAlerts, WINDOWS | RULES | {"method": "status", "delta": 1e-3}),
    "histogram": (ContinualHistogram, WINDOWS | LISTED),
    "flags": (ThresholdFlags, WINDOWS | LISTED | {"thresholds": 20}),
    "cardinality": (SetCardinality, WINDOWS | {"timeout": 60, "leave_values": ("2",)}),
    "ranges": (RangeCounts, WINDOWS | {"universe": 64, "queries": [(1, 64)]}),
    "predecessors": (PredecessorQueries, WINDOWS | {"universe": 64, "queries": [60]}),
    "queries": (PrivateQueries, LISTED | {"epsilon": 500.0, "records": 60, "alpha": 0.3} | ASKED),
}
ONE_OF_EACH = list({kind: name for name, (kind, _) in reversed(EXAMPLES.items())}.values())[::-1]
"""The first example of every kind."""
EVENT = beam.Row(user="u", item="i", value=1.0, time=Timestamp(START))


def example(name: str, **changes: Any) -> beam.PTransform:
    """Return an example, with other arguments where they are given."""
    kind, arguments = EXAMPLES[name]
    return kind(**{**arguments, "noise": NOISE, **changes})


def with_input(runner: str = "--runner=FnApiRunner") -> tuple[beam.Pipeline, Any]:
    """Return a pipeline, and in it an event."""
    pipeline = beam.Pipeline(options=PipelineOptions([runner]))
    return pipeline, pipeline | "Input" >> beam.Create([EVENT])


def public_kinds() -> set[type[beam.PTransform]]:
    """Return the transforms that users import."""
    public = [getattr(privstream.transforms, name) for name in privstream.transforms.__all__]
    return {kind for kind in public if inspect.isclass(kind) and issubclass(kind, beam.PTransform)}
