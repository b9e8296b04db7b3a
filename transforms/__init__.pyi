"""Apache Beam transforms around the mechanisms."""

from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.alerts.sparse_vector_alerts import SparseVectorAlerts
from privstream.transforms.cardinality.set_cardinality import SetCardinality
from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.heavy_hitters.shifting_heavy_hitters import ShiftingHeavyHitters
from privstream.transforms.histograms.continual_histogram import ContinualHistogram
from privstream.transforms.histograms.parameters import CategoryOptions
from privstream.transforms.histograms.threshold_flags import ThresholdFlags
from privstream.transforms.points.parameters import PointOptions
from privstream.transforms.points.predecessor_queries import PredecessorQueries
from privstream.transforms.points.range_counts import RangeCounts
from privstream.transforms.quantiles.numeric_quantiles import NumericQuantiles
from privstream.transforms.queries.private_queries import PrivateQueries
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.rows import (
    Alert,
    AlertState,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    KeyCount,
    KeyRise,
    KeySum,
    LinearQuery,
    NearestPoints,
    QuantileEstimate,
    QueryAnswer,
    RangeCount,
    RankedItem,
    RatioEstimate,
)
from privstream.transforms.stages import Published
from privstream.transforms.timing.steps import WindowOptions
from privstream.transforms.top_k.top_k_with_gap import TopKWithGap

__all__ = [
    "Alert",
    "AlertRule",
    "AlertState",
    "CardinalityEstimate",
    "CategoryFlag",
    "CategoryOptions",
    "ContinualHistogram",
    "DeadLetter",
    "Domain",
    "HeavyHitter",
    "HistogramEstimate",
    "KeyCount",
    "KeyRise",
    "KeySum",
    "KeyedCounts",
    "LinearQuery",
    "NearestPoints",
    "NumericQuantiles",
    "PointOptions",
    "PredecessorQueries",
    "PrivateQueries",
    "Published",
    "QuantileEstimate",
    "QueryAnswer",
    "RangeCount",
    "RangeCounts",
    "RankedItem",
    "RatioEstimate",
    "SetCardinality",
    "ShiftingHeavyHitters",
    "SparseVectorAlerts",
    "ThresholdFlags",
    "TopKWithGap",
    "WindowOptions",
]
