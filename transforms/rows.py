"""Rows that are published, as pipelines have them; those of a window have its last moment as timestamp there.

Here Beam gets to know them: `row_types` has their fields and what these mean, and only names the type of times.
"""

from typing import get_type_hints

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.views.rules import ALERT, CLEAR, NO_DATA
from privstream.transforms.row_types import (
    CONTINUES,
    ENDED,
    STARTED,
    STATUSES,
    Alert,
    AlertState,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    KeyCount,
    KeyRise,
    KeySum,
    LimitShare,
    LinearQuery,
    NearestPoints,
    QuantileEstimate,
    QueryAnswer,
    RangeCount,
    RankedItem,
    RatioEstimate,
)

__all__ = [
    "ALERT",
    "CLEAR",
    "CONTINUES",
    "ENDED",
    "NO_DATA",
    "STARTED",
    "STATUSES",
    "Alert",
    "AlertState",
    "CardinalityEstimate",
    "CategoryFlag",
    "HeavyHitter",
    "HistogramEstimate",
    "KeyCount",
    "KeyRise",
    "KeySum",
    "LimitShare",
    "LinearQuery",
    "NearestPoints",
    "QuantileEstimate",
    "QueryAnswer",
    "RangeCount",
    "RankedItem",
    "RatioEstimate",
]

INPUT = (LinearQuery,)
PUBLISHED = (
    HeavyHitter,
    Alert,
    QueryAnswer,
    RankedItem,
    KeyCount,
    KeyRise,
    KeySum,
    QuantileEstimate,
    HistogramEstimate,
    CategoryFlag,
    CardinalityEstimate,
    RangeCount,
    NearestPoints,
    RatioEstimate,
    AlertState,
    LimitShare,
)

for row_type in (*INPUT, *PUBLISHED):
    row_type.__annotations__ = get_type_hints(row_type, localns={"Timestamp": Timestamp})
for row_type in PUBLISHED:
    registry.register_coder(row_type, RowCoder)
