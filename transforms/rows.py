"""Rows that are published."""

from typing import NamedTuple

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.utils.timestamp import Timestamp


class HeavyHitter(NamedTuple):
    """An item that many people held in a window.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: the item.
        count: number of people who held it and were charged for this report, plus integer noise.
        count_stddev: standard deviation of that noise.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: int  # type: ignore[assignment]  # the field's name wins over tuple.count
    count_stddev: float


registry.register_coder(HeavyHitter, RowCoder)
