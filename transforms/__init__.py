"""Apache Beam transforms around the mechanisms."""

from privstream.transforms.alert_rules import AlertRule
from privstream.transforms.alerts import SparseVectorAlerts
from privstream.transforms.continual_histogram import ContinualHistogram
from privstream.transforms.dead_letters import DeadLetter
from privstream.transforms.domain import Domain
from privstream.transforms.heavy_hitters import Published, ShiftingHeavyHitters
from privstream.transforms.measurement_alerts import MeasurementAlerts
from privstream.transforms.predecessor_queries import PredecessorQueries
from privstream.transforms.private_queries import PrivateQueries
from privstream.transforms.range_counts import RangeCounts
from privstream.transforms.rows import (
    Alert,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    LinearQuery,
    Measurement,
    NearestPoints,
    PredecessorQuery,
    QueryAnswer,
    RangeCount,
    RangeQuery,
    RankedItem,
)
from privstream.transforms.set_cardinality import SetCardinality
from privstream.transforms.threshold_flags import ThresholdFlags
from privstream.transforms.top_k import TopKWithGap

__all__ = [
    "Alert",
    "AlertRule",
    "CardinalityEstimate",
    "CategoryFlag",
    "ContinualHistogram",
    "DeadLetter",
    "Domain",
    "HeavyHitter",
    "HistogramEstimate",
    "LinearQuery",
    "Measurement",
    "MeasurementAlerts",
    "NearestPoints",
    "PredecessorQueries",
    "PredecessorQuery",
    "PrivateQueries",
    "Published",
    "QueryAnswer",
    "RangeCount",
    "RangeCounts",
    "RangeQuery",
    "RankedItem",
    "SetCardinality",
    "ShiftingHeavyHitters",
    "SparseVectorAlerts",
    "ThresholdFlags",
    "TopKWithGap",
]
