"""Apache Beam transforms around the mechanisms."""

from .counts.transform import KeyedCounts
from .questions.by_counts import AlertRule
from .questions.cardinality_stages import SetCardinality
from .questions.data_set_stages import PrivateQueries
from .questions.monitor_stages import ShiftingHeavyHitters, SparseVectorAlerts
from .questions.numbers import LinearQuery
from .questions.running_stages import (
    ContinualHistogram,
    NumericQuantiles,
    PredecessorQueries,
    RangeCounts,
    ThresholdFlags,
    TopKWithGap,
)
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
