"""Rows that are published."""

from typing import NamedTuple

import apache_beam as beam
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
    count: int
    count_stddev: float


beam.coders.registry.register_coder(HeavyHitter, beam.coders.RowCoder)
