"""Apache Beam transforms around the mechanisms."""

from privstream.transforms.alert_rules import AlertRule
from privstream.transforms.alerts import SparseVectorAlerts
from privstream.transforms.continual_histogram import ContinualHistogram
from privstream.transforms.dead_letters import DeadLetter
from privstream.transforms.domain import Domain
from privstream.transforms.heavy_hitters import Published, ShiftingHeavyHitters
from privstream.transforms.measurement_alerts import MeasurementAlerts
from privstream.transforms.private_queries import PrivateQueries
from privstream.transforms.rows import (
    Alert,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    LinearQuery,
    Measurement,
    QueryAnswer,
    RankedItem,
)
from privstream.transforms.threshold_flags import ThresholdFlags
from privstream.transforms.top_k import TopKWithGap

__all__ = [
    "Alert",
    "AlertRule",
    "CategoryFlag",
    "ContinualHistogram",
    "DeadLetter",
    "Domain",
    "HeavyHitter",
    "HistogramEstimate",
    "LinearQuery",
    "Measurement",
    "MeasurementAlerts",
    "PrivateQueries",
    "Published",
    "QueryAnswer",
    "RankedItem",
    "ShiftingHeavyHitters",
    "SparseVectorAlerts",
    "ThresholdFlags",
    "TopKWithGap",
]
