"""Rows of the truth about simulated events, with which pictures compare what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp


class ItemHolders(NamedTuple):
    """How many different people had an item in a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    item: str
    holders: int


class RuleCount(NamedTuple):
    """How many different people met a rule in a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    rule: str
    people: int


class CategoryCount(NamedTuple):
    """How many events of a category there have been up to the end of a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    category: str
    events: int


class TrueQuantile(NamedTuple):
    """A quantile of all values of a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    quantile: float
    value: float


class SetSize(NamedTuple):
    """How many people were in the set at the end of a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    size: int


class PointsInRange(NamedTuple):
    """How many points lay in a range at the end of a window, in truth."""

    window_start: Timestamp
    window_end: Timestamp
    low: int
    high: int
    points: int


class NearestTrue(NamedTuple):
    """What was nearest to a point at the end of a window, in truth; 0 where there was nothing."""

    window_start: Timestamp
    window_end: Timestamp
    query: int
    predecessor: int
    successor: int


class QueryTruth(NamedTuple):
    """How many people a query is about, in truth."""

    query: str
    people: int
