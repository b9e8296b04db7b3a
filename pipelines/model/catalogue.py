"""All questions: what each is asked with, and what it is to a user. Imports no Beam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from privstream.pipelines.model.base import (
    Count,
    Epsilon,
    Items,
    Number,
    Numbers,
    Objects,
    Seconds,
    Span,
    Texts,
    Thresholds,
    Whole,
    no_truth,
    option,
)
from privstream.pipelines.model.question import POINT, Question, QuestionInfo
from pydantic import BeforeValidator, Field, WithJsonSchema

MOST_RUN = "contributions per person that count in the whole run, or budget period (default: 100)"
IN_WINDOW = "contributions per person that count in one window, chosen at random"
DOMAIN = "public list of items, one on each line of a file: only these are counted"
PUBLIC = "public list of items that have a row in every window, in addition to those discovered"
UNIT = "what is protected: all that one person does in the whole run, or one event"


class AboutItems(Question):
    """What questions about the people who have items have in common."""

    lists: ClassVar[Mapping[str, str]] = {"domain": "domain", "public_items": "domain"}

    max_contributions: Count | None = option(None, MOST_RUN)
    max_per_window: Count | None = option(None, f"{IN_WINDOW} (default: none, by counts)")
    domain: Items | None = option(None, DOMAIN)
    public_items: Items | None = option(None, PUBLIC, advanced=True)


class Counts(AboutItems):
    """Counts the people who have each item, or its events if one event is protected, in each window, in the last
    windows, or since the start. Items need not be known before: one is discovered when its count is large enough in one
    window or in several, and then has a row in every window.
    """

    question: Literal["counts"] = "counts"
    max_value: Count | None = option(
        None, "largest sum of a person's values for an item in a window: publishes sums and means for half the budget"
    )
    min_people: Count = option(1, "fewest people that an item needs to be discovered or published", advanced=True)
    unit: Literal["person", "event"] = option("person", UNIT, advanced=True)
    over: Span = option(
        "window", "what a count spans: window, start (all since the start), or such as 7d", advanced=True
    )
    top: Count | None = option(None, "view: the N largest items of each window")
    rising: Count | None = option(
        None, "view: only items that surely rose against N windows before (without a number: 1)"
    )
    at_least: Count | None = option(None, "view: only rows of at least N", advanced=True)

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="count the people who have each item, by window, in the last days or since the start; no list of items "
        "is needed",
        protected="a person over the whole run, or an event",
        transform="counts.transform.KeyedCounts",
        parameters="counts.keyed_counts.CountsParameters",
        row="KeyCount",
        order=("window_start", "-people", "item"),
        title="counts",
        user="person, not read with --unit event",
        value="whole number to add up for each item, such as a price in cents (default: value); read with --max-value",
        whole_values=True,
        values_with="max_value",
        why_nothing="no item reached a threshold, so nothing is published",
    )


class HeavyHitters(AboutItems):
    """Reports the items that surely more people have in a window than a threshold, such as trending searches, by the
    numbers that counts publishes. The items need not be known before.
    """

    question: Literal["heavy-hitters"] = "heavy-hitters"
    threshold: Whole | None = option(None, "people that must surely be exceeded for a report, by counts")
    method: Literal["counts", "clock", "status"] = option(
        "counts",
        "counts reports what is surely above --threshold; clock and status test every item against a hidden threshold, "
        "with one item per person and window, and charge people for each report, or for starts and ends of reports",
    )
    max_hits: Count | None = option(None, "times that one person is charged by clock and status (default: 4)")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="find trending items: those that surely many people have in a window; no list of items is needed",
        transform="questions.monitor_stages.ShiftingHeavyHitters",
        parameters="questions.by_counts.HeavyHittersParameters",
        row="HeavyHitter",
        order=("window_start", "-people", "item"),
        title="trending items",
        why_nothing="no item surely has more people than the threshold, so nothing is published",
    )


class TopK(AboutItems):
    """Ranks items by the number of people who have them, in every window, as counts publishes it, and says by how much
    each item is ahead of the next one. With a public list all of its items compete.
    """

    question: Literal["top-k"] = "top-k"
    top: Count | None = option(None, "items to publish in each window (default: 10)")
    method: Literal["counts", "gaps"] = option(
        "counts",
        "counts ranks noisy counts; gaps selects the largest items of a --domain, with their gaps, of which four count "
        "per person and window",
    )

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="rank items by numbers of people (top pages, top products); no list of items is needed",
        transform="questions.running_stages.TopKWithGap",
        parameters="questions.by_counts.TopKParameters",
        row="RankedItem",
        order=("window_start", "rank"),
        title="largest items",
        why_nothing="no item was found, so nothing is published",
    )


ALERT_RULES = """\
rules, one JSON object on each line:
  {"name": "flu", "at_least": 500, "items": ["fever", "cough"], "clear_below": 400}
  {"name": "outage", "at_most": 100, "clear_above": 150}
A rule is about the number of different people who have, within a window, an event of one of its items; without items,
any event. An alert ends below "clear_below", or above "clear_above"; without them at the threshold. Rules, and the file
with them, are public.
"""


class Alerts(Question):
    """Reports the windows in which numbers of people, as counts publishes them, pass the thresholds of public rules."""

    lists: ClassVar[Mapping[str, str]] = {"rules": "rules"}

    question: Literal["alerts"] = "alerts"
    rules: Objects = option(..., "file with public rules, see below")
    max_contributions: Count | None = option(None, f"{MOST_RUN}, for any rule, by counts")
    max_per_window: Count | None = option(None, "rules for which one person counts in a window, by counts")
    method: Literal["counts", "sparse_vector", "status"] = option(
        "counts",
        "counts adds noise to every number; sparse_vector tests with hidden noise, and pays for alerts alone; status "
        "takes rules with at_least, and charges the people who are counted where an alert starts and where it ends",
    )
    min_alerts: Count | None = option(None, "alerts that the budget pays for, by sparse_vector (default: 10)")
    max_hits: Count | None = option(None, "starts and ends of alerts that one person is charged for, by status")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="report the windows in which numbers of people pass the thresholds of public rules",
        transform="questions.monitor_stages.SparseVectorAlerts",
        parameters="questions.by_counts.AlertsParameters",
        row="Alert",
        order=("window_start", "rule"),
        title="alerts",
        epilog=ALERT_RULES,
    )


class Quantiles(Question):
    """Finds quantiles of a number in the events of each window, such as a latency, a price or an age. Each has an
    interval that contains it, for the values that count.
    """

    question: Literal["quantiles"] = "quantiles"
    quantiles: Numbers = option((0.5,), "which parts of all values lie below, in (0, 1), increasing; 0.5 is the median")
    low: Number = option(..., "least value; smaller ones count as this one")
    high: Number = option(..., "largest value; larger ones count as this one. Choose both by what is possible")
    scale: Literal["linear", "log"] = option("linear", "bins of equal width, or with edges of equal ratios")
    resolution: Whole = option(1000, "bins between --low and --high, 2 to 65,536", advanced=True)
    max_contributions: Count | None = option(None, MOST_RUN)
    max_per_window: Count | None = option(None, IN_WINDOW)
    unit: Literal["person", "event"] = option("person", UNIT, advanced=True)

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="find the median and other percentiles of a number (latencies, prices, ages), each with an interval",
        protected="a person over the whole run, or an event",
        transform="questions.running_stages.NumericQuantiles",
        parameters="questions.numbers.QuantilesParameters",
        row="QuantileEstimate",
        order=("window_start", "quantile"),
        title="quantiles",
        user="person, not read with --unit event",
        item="",
        value="number (default: value)",
        error_unit="values",
    )


class Cardinality(Question):
    """Estimates how many people are in a set now (in the building, subscribed, online), at the end of every window,
    from events of people who enter and leave, or from sessions with a time-out. People may come and go as often as
    they like.
    """

    question: Literal["cardinality"] = "cardinality"
    enter_values: Texts | None = option(None, "items that mean that a person enters (default: all that do not leave)")
    leave_values: Texts | None = option(
        None, "items that mean that a person leaves, the last of events at one time; needed without --timeout"
    )
    timeout: Seconds | None = option(None, "time without an event after which a person has left")
    max_contributions: Count | None = option(
        None, "windows at whose ends one person counts in the whole run, the first ones (default: all)"
    )
    max_updates: Count | None = option(
        None, "public guess of how often people enter or leave, all together, by sparse_counter"
    )
    method: Literal["counts", "sparse_counter"] = option(
        "counts",
        "counts gives each window noise of its own; sparse_counter changes an estimate when it is far from the truth",
    )

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="estimate how many different people come each day, or are present now",
        transform="questions.cardinality_stages.SetCardinality",
        parameters="questions.numbers.CardinalityParameters",
        row="CardinalityEstimate",
        order=("window_start",),
        title="people present",
        item="value for entering or leaving (not read if neither --enter-values nor --leave-values is given)",
        items_with=("enter_values", "leave_values"),
    )


class Suggest(Question):
    """Chooses --max-contributions from the data itself: publishes for a small part of the budget how many contributions
    people have, items in windows, and prints what each limit keeps, its noise, and which items are found with it.
    """

    question: Literal["suggest"] = "suggest"
    for_epsilon: Epsilon = option(1.0, "epsilon of the later run, for which the limit is chosen")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="choose the limit per person from data, privately",
        protected="a person over all that is read",
        transform="questions.data_set_stages.SuggestLimits",
        row="LimitShare",
        order=("above",),
        title="rows about limits",
        below="show.shown.limits_below",
        bounded=True,
        usual={"privacy": {"epsilon": 0.05, "delta": 1e-6}},
        epilog="""\
The line that begins with -- is an option of counts, to be used for a run over the same windows with --for-epsilon and
--delta. This command spends --epsilon of the same people's budget, and so does each repetition with other options or
other data.
""",
    )


QUERIES = "file with the public queries, see below"
POINT_QUERIES = "queries, one JSON object on each line, which are answered at the end of every window:"


class Categories(Question):
    """What questions about public categories have in common."""

    lists: ClassVar[Mapping[str, str]] = {"domain": "domain", "thresholds": "thresholds"}

    domain: Items = option(..., "public list of categories, one on each line of a file; others count in no answer")


class Histogram(Categories):
    """Counts the events of public categories: after every window, how many there have been since the start."""

    question: Literal["histogram"] = "histogram"
    queries: Texts = option(
        ("histogram",), "one or several of histogram (all counts), max, min, median, quantile:Q and top:K"
    )
    largest: Count | None = option(None, "largest count that you expect, for which the budget is split")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="count the events of each category since the start, after every window",
        protected="an event",
        transform="questions.running_stages.ContinualHistogram",
        parameters="questions.continual.HistogramParameters",
        row="HistogramEstimate",
        order=("window_start", "query", "-estimate", "category"),
        title="events since the start",
        user="",
        item="category",
        error_unit="events",
    )


class Flags(Categories):
    """Reports which public categories have been counted more often than their thresholds since the start: after every
    window, a flag for each category. A flag that is up stays up.
    """

    question: Literal["flags"] = "flags"
    thresholds: Thresholds = option(
        ..., "public number for all categories, or a file with a JSON object that has one for each"
    )

    info: ClassVar[QuestionInfo] = replace(
        Histogram.info,
        summary="report which categories have been counted more often than their thresholds",
        transform="questions.running_stages.ThresholdFlags",
        parameters="questions.continual.FlagsParameters",
        row="CategoryFlag",
        order=("window_start", "-raised", "category"),
        title="flags",
    )


class Points(Question):
    """What questions about points have in common."""

    universe: Annotated[
        int,
        BeforeValidator(no_truth),
        Field(ge=1, le=1 << 60),
        WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "maximum": 1 << 60}),
    ] = option(..., "points are the whole numbers from 1 to this number")
    queries: Objects = option(..., QUERIES)
    insert_values: Texts | None = option(None, "actions that insert a point (default: all that do not delete)")
    delete_values: Texts | None = option(None, "actions that delete a point (default: none)")


ABOUT_POINTS: dict[str, Any] = {
    "user": POINT,
    "item": "action",
    "error_unit": "points",
    "protected": "one event, which is one update of a point",
}


class Ranges(Points):
    """Counts the different points in public ranges (slots, prices, ages, addresses) at the end of every window, while
    points come and go.
    """

    lists: ClassVar[Mapping[str, str]] = {"queries": "ranges"}

    question: Literal["ranges"] = "ranges"

    info: ClassVar[QuestionInfo] = QuestionInfo(
        **ABOUT_POINTS,
        summary="count the different points in ranges of numbers (slots, prices), while points come and go",
        transform="questions.running_stages.RangeCounts",
        parameters="questions.continual.RangesParameters",
        row="RangeCount",
        order=("window_start", "low", "high"),
        title="points in ranges",
        epilog=f"""{POINT_QUERIES}
  {{"low": 1, "high": 50}}
""",
    )


class Predecessor(Points):
    """Finds the nearest points below and above public points (the last price level with activity, the nearest slot in
    use) at the end of every window.
    """

    lists: ClassVar[Mapping[str, str]] = {"queries": "points"}

    question: Literal["predecessor"] = "predecessor"

    info: ClassVar[QuestionInfo] = QuestionInfo(
        **ABOUT_POINTS,
        summary="find the nearest points below and above public points, while points come and go",
        transform="questions.running_stages.PredecessorQueries",
        parameters="questions.continual.PredecessorParameters",
        row="NearestPoints",
        order=("window_start", "query"),
        title="nearest points",
        epilog=f"""{POINT_QUERIES}
  {{"point": 50}}
""",
    )


class Queries(Question):
    """Answers queries about how many people have which items, in the order in which they are asked, from a public
    hypothesis that learns from its errors.
    """

    lists: ClassVar[Mapping[str, str]] = {"domain": "domain", "queries": "queries"}

    question: Literal["queries"] = "queries"
    queries: Objects = option(..., QUERIES)
    domain: Items = option(..., "public list of items, one on each line of a file; others count in no answer")
    records: Count = option(..., "public number of people, exact or estimated")
    alpha: Number | None = option(
        None, "part of --records by which an answer may be wrong before the hypothesis is corrected, in (0, 1)"
    )

    info: ClassVar[QuestionInfo] = QuestionInfo(
        summary="answer many counting queries about one data set, one after the other",
        protected="a person, over all queries together",
        transform="questions.data_set_stages.PrivateQueries",
        parameters="questions.numbers.QueriesParameters",
        row="QueryAnswer",
        order=("number",),
        title="answers",
        bounded=True,
        epilog="""\
queries, one JSON object on each line, in the order in which they are asked:
  {"name": "young", "items": ["0-9", "10-19"]}
The answer is the number of people who have one of the items. Queries and the domain are public.
Each person counts with one item, with --time the last one.
""",
    )


MODELS: Mapping[str, type[Question]] = {
    kind.info.word: kind
    for kind in list(vars().values())
    if isinstance(kind, type) and issubclass(kind, Question) and "info" in vars(kind) and kind is not Suggest
}
"""By the words of their commands, in the order of help pages."""

QUESTIONS: Mapping[str, QuestionInfo] = {word: kind.info for word, kind in MODELS.items()}
WORDS = tuple(MODELS)


def question(word: str) -> QuestionInfo:
    """Return what a question is to a user."""
    return QUESTIONS[word]
