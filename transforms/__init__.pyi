"""Apache Beam transforms around the mechanisms."""

from .counts.transform import KeyedCounts
from .questions.alerts import AlertRule
from .questions.alerts_stages import SparseVectorAlerts
from .questions.cardinality_stages import SetCardinality
from .questions.data_set_stages import PrivateQueries
from .questions.heavy_hitters_stages import ShiftingHeavyHitters
from .questions.histograms_stages import ContinualHistogram, ThresholdFlags
from .questions.points_stages import PredecessorQueries, RangeCounts
from .questions.quantiles_stages import NumericQuantiles
from .questions.queries import LinearQuery
from .questions.top_k_stages import TopKWithGap
from .reading.domain import Domain
from .reading.fields import DeadLetter
from .rows import (
    Alert,
    AlertState,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    KeyCount,
    KeyRise,
    KeySum,
    NearestPoints,
    QuantileEstimate,
    QueryAnswer,
    RangeCount,
    RankedItem,
    RatioEstimate,
)
from .stages import Published
from .timing.steps import WindowOptions

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
