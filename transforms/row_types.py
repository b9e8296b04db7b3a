"""Rows that are published, and what their fields mean: what pages and plans need of them, without Beam.

Pipelines take them from `transforms.rows`, where Beam knows the types of their fields. `window_start` and `window_end`
are the first moment of the window, and the first one after it; `lower` and `upper` the ends of an interval of 95% of
the row alone.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, get_type_hints

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

STARTED, CONTINUES, ENDED = STATUSES = ("started", "continues", "ended")
NUMBERS = ("people", "value", "estimate", "ratio", "distance")
"""What may be the number of a row, the first that it has; `lower` and `upper` are its interval."""


def number_of(names: Container[str]) -> str:
    """Return the field with the number of a row; empty if it has none."""
    return next((name for name in NUMBERS if name in names), "")


@dataclass(frozen=True, order=True, slots=True)
class Time:
    """A time of a row that is read where there is no pipeline; of Beam's `Timestamp` it has what rows are shown by."""

    micros: int  # since 1970 UTC


def types_of(row_type: type) -> dict[str, Any]:
    """Return the fields of a NamedTuple and their types, which are `Time` for times, also for those of Beam."""
    found = get_type_hints(row_type, localns={"Timestamp": Time})
    return {name: Time if getattr(kind, "__name__", None) == "Timestamp" else kind for name, kind in found.items()}


def interval(estimate: float, spread: float | None) -> tuple[Any, Any]:
    """Return the ends of the interval of a row, whose number is at least 0; None where it is not known."""
    return (None, None) if spread is None else (max(0, estimate - spread), max(0, estimate + spread))


class HeavyHitter(NamedTuple):
    """An item that many people had in a window; with the method "status", one that is up or no longer is.

    Attributes:
        item: the item.
        people: how many people had it: the number that `counts` shows; by other methods of those charged for the row,
            with noise, None where nothing pays for it.
        lower, upper: its interval; None without a number.
        since: start of the first window of the unbroken sequence in which the item is reported.
        status: "started", then "continues"; with the method "status" "ended" in the first window without it.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    people: Optional[float]
    lower: Optional[float]
    upper: Optional[float]
    since: Timestamp
    status: str


class Alert(NamedTuple):
    """A rule that is met in a window.

    Attributes:
        rule: name of the rule.
        threshold: its threshold.
        estimate: number of people: the one that `counts` shows; by other methods with noise of the test; None with
            "status" where an alert continues.
        lower, upper: its interval; with "sparse_vector" one bound, wrong in one test in twenty: `lower`, or `upper` of
            rules with at_most. None where nothing can be said.
        since: start of the first window of the unbroken sequence in which the rule is met.
        status: "started", then "continues"; with "status" "ended" in the first window in which it is not met.
        epsilon_left: with "sparse_vector" what the run has left after the window, rounded down; else None.
        stopped: with "sparse_vector" whether tests end here, as the budget is spent; else False.
    """

    window_start: Timestamp
    window_end: Timestamp
    rule: str
    threshold: float
    estimate: Optional[float]
    lower: Optional[float]
    upper: Optional[float]
    since: Timestamp
    status: str
    epsilon_left: Optional[float] = None
    stopped: bool = False


class QueryAnswer(NamedTuple):
    """The answer to a counting query.

    Attributes:
        number: place of the query in the list, from 1; queries are answered in this order.
        query: name of the query.
        estimate: the answer, in people, rounded where it is no whole number.
        error_bound: how far the estimate is at most from the answer without noise, with probability 95% for all
            answers together; -1, for none, if the query is refused.
        lower, upper: the interval of a measured answer; None for others, which have the error bound alone.
        source: "guess", as many of the records as the query has of the list, "hypothesis", corrected by measured
            answers, both tested and found good enough; "measured", with noise; "refused": the budget is spent.
        measurements_left: how many more answers may be measured.
    """

    number: int
    query: str
    estimate: float
    error_bound: float
    lower: Optional[float]
    upper: Optional[float]
    source: str
    measurements_left: int


class RankedItem(NamedTuple):
    """One of the items that most people had in a window.

    Attributes:
        rank: 1 for the item on top.
        item: the item.
        gap: number of people by which it is ahead of the next item, with noise; None where there is no other item.
        people: how many people had it: by counts the number that `counts` shows; by "gaps" of a count and gaps.
        lower, upper: its interval.
    """

    window_start: Timestamp
    window_end: Timestamp
    rank: int
    item: str
    gap: Optional[float]
    people: float
    lower: float
    upper: Optional[float]


class ReleasedCount(NamedTuple):
    """A count as it is released, of which views make what is shown; `item` and `noisy` are as in `KeyCount`."""

    window_start: Timestamp
    window_end: Timestamp
    item: str
    noisy: int


class ReleasedSum(NamedTuple):
    """The same with the sum of values, `value`, plus integer noise."""

    window_start: Timestamp
    window_end: Timestamp
    item: str
    noisy: int
    value: int


class KeyCount(NamedTuple):
    """How many people have an item: in a window, in the last windows, or since the start.

    Numbers but `noisy` have the digits that noise leaves meaningful: the last one is worth at most a tenth of the
    standard deviation that the interval stands for.

    Attributes:
        item: the item.
        people: the best estimate, at least 0: smoothed where counts are of single windows, and corrected for what
            limits drop where that is much. With the unit "event" of events; over several windows of people in each.
        lower, upper: its interval; `upper` is None where limits drop so much that `people` is a lower bound.
        noisy: the number that counts, plus integer noise: unbiased for what counts, to be added up. May be negative.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    people: float
    lower: float
    upper: Optional[float]
    noisy: int


class KeyRise(NamedTuple):
    """A count, and how far it is above that of an earlier window.

    Attributes:
        item, people, lower, upper, noisy: as in `KeyCount`.
        rise: by how much `people` rose; None in the first windows.
        rise_lower, rise_upper: its interval of 95%. An item surely rose if `rise` is 3.3 standard deviations above 0.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    people: float
    lower: float
    upper: Optional[float]
    noisy: int
    rise: Optional[float]
    rise_lower: Optional[float]
    rise_upper: Optional[float]


class KeySum(NamedTuple):
    """A count, and what the values of these people add up to.

    Attributes:
        item, people, lower, upper, noisy: as in `KeyCount`.
        value: sum of the clipped values, plus integer noise, perhaps negative; corrected as `people`, never smoothed.
        value_lower, value_upper: its interval, at least 0; `value_upper` is None where `value` is a lower bound.
        mean: sum of the values divided by the number that counts; None where noise hides either.
        mean_margin: how far `mean` is off at most, with probability 95%.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    people: float
    lower: float
    upper: Optional[float]
    noisy: int
    value: int
    value_lower: float
    value_upper: Optional[float]
    mean: Optional[float]
    mean_margin: Optional[float]


class QuantileEstimate(NamedTuple):
    """A quantile of the values in a window.

    Attributes:
        quantile: which part of all values is at most as large; 0.5 for the median.
        value: the best estimate of this quantile: of a finished file from all windows.
        lower, upper: its interval, for the quantile of the values that count.
        noisy: the estimate from the values of the window alone.
    """

    window_start: Timestamp
    window_end: Timestamp
    quantile: float
    value: float
    lower: float
    upper: float
    noisy: float


class HistogramEstimate(NamedTuple):
    """One number of a live histogram, at the end of a window: counts are those of all windows so far.

    Attributes:
        query: what was asked, such as `histogram`, `max` or `top:5`.
        category: the category whose count this is; empty if the number is not the count of one category.
        estimate: the number, with integer noise; may be negative.
        error_bound: how far the estimate is at most from the number that counts, with probability 95% for all rows.
        lower, upper: the interval that follows; `lower` is at least 0.
    """

    window_start: Timestamp
    window_end: Timestamp
    query: str
    category: str
    estimate: int
    error_bound: int
    lower: int
    upper: int


class CategoryFlag(NamedTuple):
    """Whether the count of a category, over all windows so far, has passed its threshold.

    Attributes:
        category: the category.
        raised: whether the flag is up; it stays up then.
        threshold: the category's threshold.
        error_bound: with probability 95% for all rows together, a flag that is up belongs to a count above threshold -
            error_bound, and one that is down to a count below threshold + error_bound.
    """

    window_start: Timestamp
    window_end: Timestamp
    category: str
    raised: bool
    threshold: int
    error_bound: int


class CardinalityEstimate(NamedTuple):
    """How many people are in a set at the end of a window.

    Attributes:
        window_end: the moment that the estimate is about.
        people: the best estimate, at least 0: by counts of a finished file from all windows.
        lower, upper: its interval, for the people who count; by the published algorithms `error_bound` to each side,
            and None where that is -1.
        noisy: the estimate with the noise of the window alone; by counts unbiased, and perhaps negative.
        error_bound: how far `noisy` is at most from the number of people who count, with probability 95% for all
            windows, while people come and go at most `max_updates` times, if given; -1 if the budget for changes is
            spent, so that the estimate no longer follows the set.
    """

    window_start: Timestamp
    window_end: Timestamp
    people: float
    lower: Optional[float]
    upper: Optional[float]
    noisy: int
    error_bound: int


class RangeCount(NamedTuple):
    """How many different points lie in a range at the end of a window.

    Attributes:
        low, high: first and last point of the range.
        estimate: number of different points, with integer noise; negative at times.
        error_bound: how far the estimate is from the truth at most, with probability 95% for all rows.
        lower, upper: its interval, at least 0.
    """

    window_start: Timestamp
    window_end: Timestamp
    low: int
    high: int
    estimate: int
    error_bound: int
    lower: int
    upper: int


class NearestPoints(NamedTuple):
    """The nearest points below and above a point at the end of a window, up to an error.

    Attributes:
        query: the point that was asked for.
        predecessor: a point p at or below the query q; [p, q] has at least one point, and at most `error_bound` above
            p; 0 if at most `error_bound` points lie at or below q.
        successor: a point s at or above the query q; [q, s] has at least one point, and at most `error_bound` below s;
            0 if at most `error_bound` points lie at or above q.
        distance: from the query to the nearer one of both; -1 if both are 0.
        error_bound: the number of points in these statements, true with probability 95% for all rows together.
    """

    window_start: Timestamp
    window_end: Timestamp
    query: int
    predecessor: int
    successor: int
    distance: int
    error_bound: int


class RatioEstimate(NamedTuple):
    """The count of an item divided by its count in another question: of a view of a monitor.

    Attributes:
        item: the item.
        ratio: of the shown numbers, at least 0; None where the divisor is not surely above 0.
        lower, upper: its interval, for the noise of both; it says nothing of what limits drop.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    ratio: Optional[float]
    lower: Optional[float]
    upper: Optional[float]


class AlertState(NamedTuple):
    """Whether a published number is beyond a threshold, in each window: of a view of a monitor.

    Attributes:
        item: the item, or the quantile; empty where rows have neither.
        value: the number that is compared with thresholds: smoothed where that is published. None without data.
        lower, upper: its interval.
        threshold: beyond which an alert begins.
        state: "alert" or "clear"; "no data" without a row, or with a lower bound that is not above the threshold.
        since: start of the first window of an unbroken sequence of windows in this state.
    """

    window_start: Timestamp
    window_end: Timestamp
    item: str
    value: Optional[float]
    lower: Optional[float]
    upper: Optional[float]
    threshold: float
    state: str
    since: Timestamp


class LimitShare(NamedTuple):
    """How many people have a number of contributions in a cell of a public grid, and what a limit at its end keeps.

    Numbers are noisy, or follow from noisy ones. Few people with far more than all others cannot be seen: `kept` is
    about those in rows with a `limit`, and its interval allows for the others. The last row has no limit; its interval
    says how many people may have more.

    Attributes:
        above, limit: people in this row have more contributions (items in windows) than the one, and at most the other.
        people, people_lower, people_upper: how many they are, and the interval.
        kept: share of contributions that counts if of each person at most `limit` do, by the people who can be seen.
        kept_lower, kept_upper: the interval of that share for all people, of whom at most 65,536 contributions count.
        stddev: standard deviation of the noise of a count in the later run with this limit.
        found_in_one: people of an item who must count in one window of that run, for an even chance to find it.
        found_in_all: the same in each of its windows.
        suggested: the option that the numbers suggest, such as `--max-contributions 48`; else empty.
    """

    above: float
    limit: Optional[float]
    people: int
    people_lower: int
    people_upper: int
    kept: Optional[float]
    kept_lower: Optional[float]
    kept_upper: Optional[float]
    stddev: Optional[float]
    found_in_one: Optional[int]
    found_in_all: Optional[int]
    suggested: str
