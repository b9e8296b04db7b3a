"""Apache Beam transforms around the mechanisms."""

from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.questions.alerts import AlertRule
from privstream.transforms.questions.alerts_stages import SparseVectorAlerts
from privstream.transforms.questions.cardinality_stages import SetCardinality
from privstream.transforms.questions.heavy_hitters_stages import ShiftingHeavyHitters
from privstream.transforms.questions.histograms_stages import ContinualHistogram, ThresholdFlags
from privstream.transforms.questions.points_stages import PredecessorQueries, RangeCounts
from privstream.transforms.questions.quantiles_stages import NumericQuantiles
from privstream.transforms.questions.queries_stages import PrivateQueries
from privstream.transforms.questions.top_k_stages import TopKWithGap
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

__all__ = [
    "Alert",
    "AlertRule",
    "AlertState",
    "CardinalityEstimate",
    "CategoryFlag",
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
