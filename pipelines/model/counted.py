"""Questions about items and people in windows: those that counts answer, and the numbers of a set or of values."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from privstream.pipelines.model.base import option
from privstream.pipelines.model.question import Question, QuestionInfo, Stand
from privstream.pipelines.model.types import Count, Epsilon, Items, Number, Numbers, Rules, Seconds, Span, Texts, Whole
from pydantic import BeforeValidator, WithJsonSchema

MOST_RUN = "contributions of one person that count in the whole run, or period (default: 100)"
IN_WINDOW = "contributions of one person that count in one window, random ones"
DOMAIN = "public list of items, a file with one on each line: these are counted, and no others"
PUBLIC = "public list of items beside those that are discovered: they have a row in every window"
UNIT = "what is protected: all that one person does in the whole run, or one event"
LISTED = {"domain": Stand("items", "number of items on a public list, if there is one")}

BACK: dict[object, int | None] = {True: 1, False: None}
Back = Annotated[
    Count | None,
    BeforeValidator(lambda value: BACK[value] if isinstance(value, bool) else value),
    WithJsonSchema({"type": ["integer", "string", "boolean", "null"]}),
]
"""A number of windows, or true for one."""


class AboutItems(Question):
    """What questions about the people who have items have in common."""

    max_contributions: Count | None = option(None, MOST_RUN)
    max_per_window: Count | None = option(None, f"{IN_WINDOW} (default: no limit of its own, by counts)")
    domain: Items | None = option(None, DOMAIN)
    public_items: Items | None = option(None, PUBLIC, seldom=True)


class Counts(AboutItems):
    """Counts the people who have each item, or with the unit event its events: in each window, in the last windows, or
    since the start. The items need not be known before: one is discovered when its count is large enough in one window
    or in several, and then has a row in every window.
    """

    question: Literal["counts"] = "counts"
    max_value: Count | None = option(
        None, "largest value of an event: publishes sums and means of values, too, for half of the budget"
    )
    min_people: Count = option(1, "fewest people that an item needs to be discovered or published", seldom=True)
    unit: Literal["person", "event"] = option("person", UNIT, seldom=True)
    over: Span = option("window", "what a count spans: window, start (all since the start), or such as 7d", seldom=True)
    top: Count | None = option(None, "view: this number of largest items in each window")
    rising: Back = option(
        None, "view: only items that surely rose against this number of windows before (without a number: 1)"
    )
    at_least: Count | None = option(None, "view: only rows with at least this number", seldom=True)

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="counts",
        summary="count the people who have each item, by window, in the last days or since the start; no list of items "
        "is needed",
        protected="a person over the whole run, or an event",
        transform="counts.transform.KeyedCounts",
        parameters="counts.keyed_counts.CountsParameters",
        row="KeyCount",
        order=("window_start", "-people", "item"),
        title="counts",
        published="counts_published",
        user="person, not read with --unit event",
        value="whole number to add up for each item, such as a price in cents (default: value); read with --max_value",
        whole_values=True,
        values_with="max_value",
        why_nothing="no item reached a threshold, so nothing is published",
        stands=LISTED,
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
        word="heavy-hitters",
        summary="find trending items: those that surely many people have in a window; no list of items is needed",
        protected="a person over the whole run",
        transform="questions.heavy_hitters_stages.ShiftingHeavyHitters",
        parameters="questions.heavy_hitters.HeavyHittersParameters",
        row="HeavyHitter",
        order=("window_start", "-people", "item"),
        title="trending items",
        published="hits_published",
        why_nothing="no item surely has more people than the threshold, so nothing is published",
        stands=LISTED,
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
        word="top-k",
        summary="rank items by numbers of people (top pages, top products); no list of items is needed",
        protected="a person over the whole run",
        transform="questions.top_k_stages.TopKWithGap",
        parameters="questions.top_k.TopKParameters",
        row="RankedItem",
        order=("window_start", "rank"),
        title="largest items",
        published="ranks_published",
        why_nothing="no item was found, so nothing is published",
        stands=LISTED,
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

    question: Literal["alerts"] = "alerts"
    rules: Rules = option(..., "file with public rules, see below")
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
        word="alerts",
        summary="report the windows in which numbers of people pass the thresholds of public rules",
        protected="a person over the whole run",
        transform="questions.alerts_stages.SparseVectorAlerts",
        parameters="questions.alerts.AlertsParameters",
        row="Alert",
        order=("window_start", "rule"),
        title="alerts",
        published="alerts_published",
        epilog=ALERT_RULES,
        stands={"rules": Stand("rules", "number of rules, all with at_least; or the file with the rules", needed=True)},
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
    resolution: Whole = option(1000, "bins between --low and --high, 2 to 65,536", seldom=True)
    max_contributions: Count | None = option(None, MOST_RUN)
    max_per_window: Count | None = option(None, IN_WINDOW)
    unit: Literal["person", "event"] = option("person", UNIT, seldom=True)

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="quantiles",
        summary="find the median and other percentiles of a number (latencies, prices, ages), each with an interval",
        protected="a person over the whole run, or an event",
        transform="questions.quantiles_stages.NumericQuantiles",
        parameters="questions.quantiles.QuantilesParameters",
        row="QuantileEstimate",
        order=("window_start", "quantile"),
        title="quantiles",
        published="quantiles_published",
        user="person, not read with --unit event",
        item="",
        value="number (default: value)",
        assumed={"low": 1.0, "high": 2.0, "scale": "linear"},
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
        None,
        "items that mean that a person leaves; of events at one time, leaving comes last; needed without --timeout",
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
        metavar="METHOD",
    )

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="cardinality",
        summary="estimate how many different people come each day, or are present now",
        protected="a person over the whole run",
        transform="questions.cardinality_stages.SetCardinality",
        parameters="questions.cardinality.CardinalityParameters",
        row="CardinalityEstimate",
        order=("window_start",),
        title="people present",
        published="estimates_published",
        item="value for entering or leaving (not read if neither --enter_values nor --leave_values is given)",
        items_with=("enter_values", "leave_values"),
        assumed={"leave_values": ("leave",)},
    )


class Suggest(Question):
    """Chooses --max-contributions from the data itself: publishes for a small part of the budget how many contributions
    people have, items in windows, and prints what each limit keeps, its noise, and which items are found with it.
    """

    question: Literal["suggest"] = "suggest"
    for_epsilon: Epsilon = option(1.0, "epsilon of the later run, for which the limit is chosen")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="suggest",
        summary="choose the limit per person from data, privately",
        protected="a person over all that is read",
        transform="questions.limits_stages.SuggestLimits",
        row="LimitShare",
        order=("above",),
        title="rows about limits",
        published="limits_published",
        below="show.shown.limits_below",
        bounded=True,
        usual={"privacy": {"epsilon": 0.05, "delta": 1e-6}},
        epilog="""\
The line that begins with -- is an option of counts, to be used for a run over the same windows with --for-epsilon and
--delta. This command spends --epsilon of the same people's budget, and so does each repetition with other options or
other data.
""",
    )
