"""Rows that are published, and what their fields mean: what pages and plans need of them, without Beam.

Pipelines take them from `transforms.rows`, where Beam knows the types of their fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, get_type_hints

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

TIMESTAMP = "Timestamp"
"""How the type of times is called in rows: it is Beam's."""

STARTED, CONTINUES, ENDED = STATUSES = ("started", "continues", "ended")


@dataclass(frozen=True, order=True, slots=True)
class Time:
    """A time of a row that is read where there is no pipeline; of Beam's `Timestamp` it has what rows are shown by.

    Attributes:
        micros: microseconds since 1970 UTC.
    """

    micros: int


def is_time(value: Any) -> bool:
    """Tell whether a value of a row is a time: of Beam, or one that was read without it."""
    return hasattr(value, "micros")


def types_of(row_type: type) -> dict[str, Any]:
    """Return the fields of a NamedTuple and their types, which are `Time` for times, also for those of Beam."""
    found = get_type_hints(row_type, localns={TIMESTAMP: Time})
    return {name: Time if getattr(kind, "__name__", None) == TIMESTAMP else kind for name, kind in found.items()}


def interval(estimate: float, spread: float | None) -> tuple[Any, Any]:
    """Return the ends of the interval of a row, whose number is at least 0; None where it is not known."""
    return (None, None) if spread is None else (max(0, estimate - spread), max(0, estimate + spread))


class HeavyHitter(NamedTuple):
    """An item that many people had in a window; with the method "status", one that is up or no longer is.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: the item.
        count: number of people who had the item and were charged for this report, plus integer noise; with the method
            "counts", of all who had it within their limits. It leaves out what limits leave out, which no standard
            deviation shows. None if the run publishes no counts, and with the method "status" while an item continues.
        count_stddev: standard deviation of that noise; None without a count.
        since: start of the first window of an unbroken sequence of windows in which the item is reported. Where items
            stay found, these are the windows in which its smoothed count is surely above 0.
        status: "started" in that window and "continues" in those that follow. With the method "status", "ended" in the
            first window in which the item is no longer up; with other methods such a window has no row, so that an item
            has ended where its rows stop.
        lower: the least number of the same people that is within 95% of this row by itself, at least 0; None without a
            count.
        upper: the largest one. Neither says anything of what limits leave out.
        smoothed: an estimate of the same number from the counts of all windows that the row was made with, as in
            `KeyCount`. None unless the method is "counts" and items stay found.
        smoothed_lower: lower end of its interval of 95%, which rests on a model: counts stay near a level that moves.
        smoothed_upper: upper end.
        reported_at: end of the window after which the row was published.
        backfilled: whether that is a later window than its own, in which the item was found.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: Optional[int]  # type: ignore[assignment]  # the field's name wins over tuple.count
    count_stddev: Optional[float]
    since: Timestamp
    status: str
    lower: Optional[int]
    upper: Optional[int]
    smoothed: Optional[float]
    smoothed_lower: Optional[float]
    smoothed_upper: Optional[float]
    reported_at: Timestamp
    backfilled: bool

    @classmethod
    def in_time(
        cls,
        stream: str,
        window_start: Timestamp,
        window_end: Timestamp,
        item: str,
        count: int | None,
        count_stddev: float | None,
        since: Timestamp,
        status: str,
        *,
        spread: int = 0,
    ) -> HeavyHitter:
        """Return a row that is published after its own window; with probability 95% its count is off by `spread`."""
        ends = (None, None) if count is None else interval(count, spread)
        noise = None if count is None else count_stddev
        about = (stream, window_start, window_end, item, count, noise, since, status)
        return cls._make((*about, *ends, None, None, None, window_end, False))


class Alert(NamedTuple):
    """A rule that was met in a window, judged by numbers with noise.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        rule: name of the rule.
        threshold: its threshold.
        estimate: the value of the window with its noise, rounded; a number of people who count if the rule is about
            people, and a mean of such numbers, not rounded, if it is about several windows.
        gap: by how much the number that decides passes the threshold, above or below as the rule says: `smoothed` where
            a row has it, else `estimate`.
        gap_stddev: standard deviation of the error of that number.
        gap_lower_bound: what the gap without noise is at least. With the method "counts", of the alerts of any number
            of people at most a part beta have a wrong bound, of smoothed ones as far as their model holds; None where
            nothing can be said. With other methods, for any one test, the probability of an alert with a wrong bound is
            at most beta.
        epsilon_spent: what this alert has cost, rounded up; 0 but with the method "sparse_vector".
        epsilon_left: what its run has left, rounded down; after the run has stopped it may be spent on something else.
        stopped: whether this is the last alert that the budget of its run pays for; the rules of the run are then no
            longer tested. With the method "status", whether from here on rules with `at_most` are not.
        since: start of the window since which the rule has been met, in each window without a gap.
        status: "started" in that window, "continues" in those that follow. With the method "status" a rule that is met
            stays so until it ends; its row then says "ended", and where it continues, `estimate` and all of `gap` are
            None.
        smoothed: with the method "counts" and a finished file, the number from all of its windows, which decides: the
            rule is met where it passes the threshold. None with other methods, and in streams, where `estimate` does.
        smoothed_lower: lower end of its interval of 95%, of this row by itself, which rests on a model: numbers stay
            near levels that move. It holds so often of all windows. Of alerts of a number that misses its threshold
            fewer hold, 63% where it misses by 1.5 standard deviations: only large errors give them, which
            `gap_lower_bound` knows.
        smoothed_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    rule: str
    threshold: float
    estimate: Optional[float]
    gap: Optional[float]
    gap_stddev: Optional[float]
    gap_lower_bound: Optional[float]
    epsilon_spent: float
    epsilon_left: float
    stopped: bool
    since: Timestamp
    status: str
    smoothed: Optional[float] = None
    smoothed_lower: Optional[float] = None
    smoothed_upper: Optional[float] = None


def deciding(row: Alert) -> float | None:
    """Return the number by which a rule is met."""
    return row.estimate if row.smoothed is None else row.smoothed


class Measurement(NamedTuple):
    """Input of `MeasurementAlerts`: a private number that no change to be protected moves by more than 1.

    Attributes:
        rule: name of the rule that it is tested by; public.
        time: when it was taken; public.
        value: the number; private.
        stream: name of the stream, empty where there is but one; public.
    """

    rule: str
    time: Timestamp
    value: float
    stream: str = ""


class LinearQuery(NamedTuple):
    """Input of `PrivateQueries`: how many people have one of these items, or a weighted number of them; public.

    Attributes:
        name: what the query is called in its answer.
        time: when it is asked; queries are answered in order of time, then name.
        items: distinct items of the domain.
        weights: one for each item, in [0, 1]; without weights all are 1.
    """

    name: str
    time: Timestamp
    items: Sequence[str]
    weights: Sequence[float] = ()


class QueryAnswer(NamedTuple):
    """The answer to a linear query.

    Attributes:
        query: name of the query.
        time: when it was asked.
        estimate: the answer, in people, rounded where it is no whole number.
        error_bound: how far the estimate is at most from the answer without noise, about the one item of each person
            that counts, with probability 1 - beta for all of the first `queries` answers together; -1, for none, if the
            query is refused.
        source: "counts", a sum of counts with noise; "answers", with noise of its own; or, with multiplicative weights,
            "hypothesis", tested and found good enough; "measured", from the data with noise. "refused": the budget is
            spent and nothing was tested; without multiplicative weights the estimate is 0 then.
        measurements_left: how many more answers may be measured, or given; None where nothing is used up.
        lower: lower end of an interval of 95% for the answer without noise, of this row by itself, at least 0: by the
            law of its noise, if the query does not depend on earlier answers. None with multiplicative weights, whose
            hypothesis is no number with noise, and where the query is refused.
        upper: upper end.
    """

    query: str
    time: Timestamp
    estimate: float
    error_bound: float
    source: str
    measurements_left: Optional[int]
    lower: Optional[float] = None
    upper: Optional[float] = None


class RankedItem(NamedTuple):
    """One of the items that most people had in a window.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        rank: 1 for the item on top.
        item: the item.
        gap: number of people by which it is ahead of the next item, published or not, plus integer noise of mean 0. Of
            equals the item that sorts first leads: so the last gap is one less if the item after it sorts before it.
            Where estimates are smoothed it is the difference of the two, rounded to a whole number; None where no other
            item is found.
        estimate: number of people who had the item and count for it within their limits, plus noise. Without a list it
            is smoothed over the windows until this one, or of a finished file over all of them; so it is there with a
            list and the method "counts".
        error_bound: how far the estimate is from that number at most, with probability 1 - beta: for each estimate by
            itself with a list and the methods of gaps, for all items of the list in a window together with "counts",
            and without a list for ten thousand items of a window together. It rests on no model, and says nothing of
            what limits leave out.
        lower: lower end of an interval of 95% for that number, of this row by itself; at least 0. Where estimates are
            smoothed it rests on a model: counts stay near a level that moves. In a stream with a list and the method
            "counts" it is that of the noise of any one count: of items that lead by their noise fewer than 95% hold. In
            a finished file 75% to 86% were held beside windows in which the numbers of all items jump. It says nothing
            of what limits leave out.
        upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    rank: int
    item: str
    gap: Optional[int]
    estimate: float
    error_bound: float
    lower: float
    upper: float


class KeyCount(NamedTuple):
    """How many people have an item: in a window, in the last windows, or since the start.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: the item.
        count: number of people who count within their limits, or of their contributions where the count spans windows,
            plus integer noise; unbiased, for those who add counts up. May be negative.
        count_stddev: standard deviation of the noise; smaller where an item that was found has counts of fewer windows
            than are added up.
        smoothed: the number to look at, where it is not `count`: an estimate of the same number from the counts of the
            windows up to `reported_at` (the last 64), or of a finished file all of them. None where windows forget,
            and for counts over several windows and since the start.
        lower: lower end of the 95% interval of `smoothed`, or else of `count`, of this row by itself; at least 0. That
            of `smoothed` rests on a model: counts stay near a level that moves.
        upper: upper end.
        reported_at: end of the window after which the row was published.
        backfilled: whether that is a later window than its own, in which the item was found.
        rise: by how much `smoothed` is above that of so many windows before. None unless `rising` is given, and in the
            first windows.
        rise_lower: lower end of its 95% interval: above 0 if the item surely rose.
        rise_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: int  # type: ignore[assignment]  # the field's name wins over tuple.count
    count_stddev: float
    smoothed: Optional[float]
    lower: float
    upper: float
    reported_at: Timestamp
    backfilled: bool
    rise: Optional[float] = None
    rise_lower: Optional[float] = None
    rise_upper: Optional[float] = None


class KeySum(NamedTuple):
    """How many people have an item, and what their values add up to: the fields of `KeyCount`, and those of values.

    Attributes:
        stream, window_start, window_end, item, count, count_stddev, smoothed, lower, upper: as in `KeyCount`.
        reported_at, backfilled, rise, rise_lower, rise_upper: as in `KeyCount`.
        sum: sum of the values of these contributions, each clipped, plus integer noise.
        sum_stddev: standard deviation of that noise.
        mean: the sum divided by the count; None where noise hides either.
        mean_lower: lower end of the 95% interval of the mean of the clipped values.
        mean_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: int  # type: ignore[assignment]  # the field's name wins over tuple.count
    count_stddev: float
    smoothed: Optional[float]
    lower: float
    upper: float
    reported_at: Timestamp
    backfilled: bool
    rise: Optional[float]
    rise_lower: Optional[float]
    rise_upper: Optional[float]
    sum: int
    sum_stddev: float
    mean: Optional[float]
    mean_lower: Optional[float]
    mean_upper: Optional[float]


class QuantileEstimate(NamedTuple):
    """A quantile of the values in a window, in the last windows or since the start, and what it is for certain.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        quantile: which part of all values is at most as large; 0.5 for the median.
        estimate: the value that is estimated to be this quantile, between `lower` and `upper`.
        lower, upper: an interval that contains the quantile of the values that count, of each person at most one in a
            window, with probability 1 - beta in each row by itself. Where it covers (nearly) all values, tables and
            pictures say "nothing is known".
        smoothed: an estimate of the same quantile from the values of all windows of a finished file. None in streams,
            and where quantiles are about more than one window.
        smoothed_lower: lower end of its interval of 95%, which rests on a model: the part of all values that is below a
            value stays near a level that moves. Where a window differs from those beside it, it reaches as far as
            `lower` and `upper`, and `smoothed` is nearer to `estimate`.
        smoothed_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    quantile: float
    estimate: float
    lower: float
    upper: float
    smoothed: Optional[float] = None
    smoothed_lower: Optional[float] = None
    smoothed_upper: Optional[float] = None


class HistogramEstimate(NamedTuple):
    """One number of a live histogram, at the end of a window: counts are those of all windows so far.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        query: what was asked, such as `histogram`, `max` or `top:5`.
        category: the category whose count this is; empty if the number is not the count of one category.
        estimate: the number, with integer noise; may be negative.
        error_bound: how far the estimate is at most from the number without noise, of the events that count, with
            probability 1 - beta for all rows of a stream together.
        lower: the least number of events that count that is within 95% of this row by itself, at least 0: by the law of
            its noise for `histogram`, and by that of all counts of the window for other queries, whose numbers are
            chosen among them. None but with the method "direct_counters".
        upper: the largest one.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    query: str
    category: str
    estimate: int
    error_bound: int
    lower: Optional[int] = None
    upper: Optional[int] = None


class CategoryFlag(NamedTuple):
    """Whether the count of a category, over all windows so far, has passed its threshold.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        category: the category.
        raised: whether the flag is up; it stays up then.
        threshold: the category's threshold.
        error_bound: with probability 1 - beta for all rows of a stream together, a flag that is up belongs to a count
            above threshold - error_bound, and a flag that is down to a count below threshold + error_bound; to counts
            of the events that count within limits.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    category: str
    raised: bool
    threshold: int
    error_bound: int


class CardinalityEstimate(NamedTuple):
    """How many people are in a set at the end of a window.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window: the moment that the estimate is about.
        estimate: how many are in the set, with noise, at least 0.
        error_bound: how far the estimate is at most from the number of people who count within their limits, with
            probability 1 - beta for all windows together, while people come and go no more often than `max_updates`, if
            that was given; -1 if the budget for changes of the estimate is used up, so that it no longer follows the
            set.
        smoothed: an estimate of the same number from all windows of a finished file, with the method "direct_counter",
            which gives each window noise of its own; what weekdays, or hours of the day, have in common is kept. None
            with other methods, and in streams.
        smoothed_lower: lower end of its interval of 95%, of this row by itself, which rests on a model: sizes stay near
            a level that moves. Where a window differs from those beside it, it reaches as far as that of the estimate.
            It holds so often of all windows. Of single windows that are off the others by one standard deviation of the
            noise half hold, by two 85%, and from three on 96%: noise hides what is less.
        smoothed_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    estimate: int
    error_bound: int
    smoothed: Optional[float] = None
    smoothed_lower: Optional[float] = None
    smoothed_upper: Optional[float] = None


class RangeQuery(NamedTuple):
    """Input of `RangeCounts`: a range of points, ends included, to be counted at the end of a window; public.

    Attributes:
        low: its first point.
        high: its last point.
        time: when it is asked; it is answered at the end of the window that this lies in.
        stream: name of the stream, empty where there is but one.
    """

    low: int
    high: int
    time: Timestamp
    stream: str = ""


class RangeCount(NamedTuple):
    """How many points lie in a range at the end of a window.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        low: first point of the range.
        high: last point of the range.
        estimate: number of points, with integer noise; negative at times, unless counts are made consistent.
        error_bound: how far the estimate is from the truth at most, with probability 1 - beta for as many rows of a
            stream together as the accuracy is stated for; -1 for consistent counts, for which no error is stated.
        lower: the least number of points that is within 95% of this row by itself, by the law of its noise, at least 0,
            if the range does not depend on earlier answers; None for consistent counts.
        upper: the largest one.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    low: int
    high: int
    estimate: int
    error_bound: int
    lower: Optional[int] = None
    upper: Optional[int] = None


class PredecessorQuery(NamedTuple):
    """Input of `PredecessorQueries`: a point whose neighbours are asked for; public.

    Attributes:
        point: the point.
        time: when it is asked; it is answered at the end of the window that this lies in.
        stream: name of the stream, empty where there is but one.
    """

    point: int
    time: Timestamp
    stream: str = ""


class NearestPoints(NamedTuple):
    """The nearest points below and above a point at the end of a window, up to an error.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        query: the point that was asked for.
        predecessor: a point p at or below the query q: the range [p, q] has at least one point, and no more than
            `error_bound` points lie above p in it. 0 means that no more than `error_bound` points lie at or below the
            query.
        successor: a point s at or above the query q: the range [q, s] has at least one point, and no more than
            `error_bound` points lie below s in it. 0 means that no more than `error_bound` points lie at or above the
            query.
        distance: from the query to the nearer one of both; -1 if both are 0.
        error_bound: the number of points in these statements, which are true with probability 1 - beta for as many rows
            of a stream together as the accuracy is stated for.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    query: int
    predecessor: int
    successor: int
    distance: int
    error_bound: int


class TotalEstimate(NamedTuple):
    """What the counts of several items add up to: of a view of a monitor, made from published rows.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: what the items have in common: some of their columns. With a whole beside its parts, and without `by`, it
            is one part.
        parts: number of items that are added up, those that have a row.
        estimate: the sum of their counts; with a whole, the weighted least squares of that and of the sum. A person who
            has two of the items counts twice.
        stddev: standard deviation of its noise.
        lower: lower end of its interval of 95%, of this row by itself; at least 0. It says nothing of items that have
            no row, nor of what limits leave out.
        upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    parts: int
    estimate: float
    stddev: float
    lower: float
    upper: float


class RatioEstimate(NamedTuple):
    """The count of an item divided by its count in another question: of a view of a monitor.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: the item.
        ratio: of the published counts, at least 0; None where the divisor is not surely above 0. Of people, where
            these are counted.
        lower: lower end of its interval of 95%, for the noise of both, of this row by itself. It says nothing of what
            limits leave out: where they leave out more of one of both counts, the ratio is too small or too large.
        upper: upper end.
        smoothed: the same of the smoothed counts; None where one of both has none.
        smoothed_lower: lower end of its interval of 95%, which rests on the model of smoothed counts.
        smoothed_upper: upper end.
    """

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    ratio: Optional[float]
    lower: Optional[float]
    upper: Optional[float]
    smoothed: Optional[float]
    smoothed_lower: Optional[float]
    smoothed_upper: Optional[float]


CLEAR, ALERT, NO_DATA = ("clear", "alert", "no data")


class AlertState(NamedTuple):
    """Whether a published number is beyond a threshold, in each window: of a view of a monitor.

    Attributes:
        stream: name of the stream, empty where there is but one.
        window_start: first moment of the window.
        window_end: first moment after the window.
        item: the item, or the quantile; empty where rows have neither.
        value: the number that is compared with the thresholds: smoothed where that is published. None without data.
        lower: lower end of its interval.
        upper: upper end.
        threshold: beyond which an alert begins.
        state: "alert" or "clear"; "no data" where no row is published for the window.
        since: start of the first window of an unbroken sequence of windows in this state.
    """

    stream: str
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

    All numbers are noisy or follow from noisy ones. Each interval by itself holds the truth with probability 0.95.
    People far from all others cannot be seen: shares are of those in rows with a `limit`. The last row has none; its
    interval says how many people may have more.

    Attributes:
        above: people in this row have more contributions than this, items in windows.
        limit: and at most this; None for no bound.
        people: estimated number of them.
        people_lower, people_upper: its interval.
        kept: share of all contributions that counts if of each person at most `limit` do.
        kept_lower, kept_upper: its interval.
        stddev: standard deviation of the noise of a count in the later run with this limit.
        found_in_one: people whose contributions of an item must count in one window of that run for the item to be
            found, with an even chance.
        found_in_all: the same in each of all its windows.
        suggested: the option that the numbers suggest, such as `--max_contributions 48`; else empty.
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
