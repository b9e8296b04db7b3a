"""All questions: what each is to a user, on help pages, in tables and in plans. Imports no Beam."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import CHARGES, WINDOWS, Excess, Option, Part, QuestionSpec

POINT_QUERIES = "queries, one JSON object on each line, which are answered at the end of every window:"

about_points = partial(
    QuestionSpec,
    user="point, a whole number",
    item="action",
    unusable={
        "points_outside_universe": "events of points that are not in 1 .. --universe",
        "events_of_other_actions": "events of actions that neither insert nor delete",
    },
    extras=(Option("queries", "Path", "file with the public queries, see below", REQUIRED),),
    hidden=("standing",),
    unplanned=("insert_values",),
    files=("queries",),
    error_unit="points",
)


COUNTED_COLUMNS = {
    "detection_threshold": "surely found in one window",
    "threshold": "threshold",
    "stddev": "standard deviation of counts",
    "margin": "95% within",
}
"""What plans show of counts, and of questions that counts answer."""

SUMS_CLIPPED = "Sums and means are of what is left: a larger --max_value changes fewer, for more noise."

COUNTS = QuestionSpec(
    word="counts",
    summary="count the people who have each item, by window, in the last days or since the start; no list of items is "
    "needed",
    description="Counts the people who have each item: in each window, in the last windows, or since the start. The "
    "items need not be known before: one is found when enough people have it in one window or in several, and then has "
    "a row in every window.",
    protected="a person over the whole run, or an event",
    known_as="daily visitors of each page; `SELECT item, count(DISTINCT user), sum(value) GROUP BY day, item`",
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
    units_without_users=("event",),
    why_nothing="no item reached a threshold, so nothing is published",
    clipped=(
        Excess(
            "values_clipped",
            "events_usable",
            "values were beyond the limits of --max_value, and count as the nearest limit",
            instead=SUMS_CLIPPED,
        ),
        Excess(
            "contributions_clipped",
            "events_usable",
            "times the values of a person for an item in a window added up to a sum beyond the limits of --max_value, "
            "which counts as the nearest limit",
            instead=SUMS_CLIPPED,
        ),
        Excess(
            "sums_over_limit",
            "sums_before_limit",
            "of the sum of all values is beyond the limits of --max_value, and in no sum",
            instead=SUMS_CLIPPED,
            amounts=True,
        ),
    ),
    prepare="questions.readings.check_span",
    files=("domain", "public_items"),
    unplanned=("public_items", "top", "rising", "at_least"),
    sizes={"domain": Option("items", "int", "number of items on a public list, if there is one")},
    planned=(Option("window", "Length", "length of a window; needed with --end, and where --over is a duration"),),
    columns=COUNTED_COLUMNS | {"sum_stddev": "of sums"},
    chart="counts",
    simulation=Part(
        "simulate.searches.COUNTS",
        "searches of a city, with the people who search for each item in a window or since the start",
    ),
    audit=Part("audit.attacks.COUNTS", "noise of counts, limits of a person, items that nobody else has"),
)


LISTED = {"domain": Option("items", "int", "number of items on a public list, if there is one")}

HEAVY_HITTERS = QuestionSpec(
    word="heavy-hitters",
    summary="find trending items: those that surely many people have in a window; no list of items is needed",
    description="Reports the items that surely more than --threshold people have in a window, such as trending "
    "searches, by the numbers that counts publishes. The items need not be known before.",
    protected="a person over the whole run",
    known_as="trending searches; `GROUP BY hour, item HAVING count(DISTINCT user) > n`",
    transform="heavy_hitters.shifting_heavy_hitters.ShiftingHeavyHitters",
    parameters="heavy_hitters.parameters.HeavyHittersParameters",
    row="HeavyHitter",
    order=("window_start", "-people", "item"),
    title="heavy hitters",
    published="hits_published",
    why_nothing="no item surely has more people than the threshold, so nothing is published",
    limits=(CHARGES,),
    files=("domain", "public_items"),
    unplanned=("public_items", "threshold"),
    sizes=LISTED,
    columns=COUNTED_COLUMNS,
    chart="heavy-hitters",
    simulation=Part("simulate.searches.HEAVY_HITTERS", "searches of a city, with trends that rise and fall"),
    audit=Part(
        "audit.attacks.HEAVY_HITTERS", "reports that one person more makes likelier, items that nobody else has"
    ),
)


TOP_K = QuestionSpec(
    word="top-k",
    summary="rank items by numbers of people (top pages, top products); no list of items is needed",
    description="Ranks items by the number of people who have them, in every window, as counts publishes it, and says "
    "by how much each item is ahead of the next one. With --domain all items of a public list compete. Without it an "
    "item is found when enough people have it in one window or in several, and stays found.",
    protected="a person over the whole run",
    known_as="top pages, top products; `ORDER BY count(DISTINCT user) DESC LIMIT k`",
    transform="top_k.top_k_with_gap.TopKWithGap",
    parameters="top_k.parameters.TopKParameters",
    row="RankedItem",
    order=("window_start", "rank"),
    title="ranks",
    published="ranks_published",
    why_nothing="no item was found, so nothing is published",
    limits=(WINDOWS,),
    files=("domain", "public_items"),
    unplanned=("public_items",),
    sizes=LISTED,
    columns={"selection_error": "ranking error (people)", **COUNTED_COLUMNS},
    chart="top-k",
    simulation=Part(
        "simulate.searches.TOP_K", "searches of a city, and the list of everything that can be searched for"
    ),
)


ALERT_RULES = """\
rules, one JSON object on each line:
  {"name": "flu", "at_least": 500, "items": ["fever", "cough"], "clear_below": 400}
  {"name": "outage", "at_most": 100, "clear_above": 150}
A rule is about the number of different people who have, within a window, an event of one of its items; without items,
any event. An alert ends below "clear_below", or above "clear_above"; without them at the threshold. Rules, and the file
with them, are public.
"""

ALERTS = QuestionSpec(
    word="alerts",
    summary="report the windows in which numbers of people pass the thresholds of public rules",
    description="Reports the windows in which numbers of people, as counts publishes them, pass the thresholds of "
    "public rules.",
    protected="a person over the whole run",
    known_as="outbreaks, outages, unusual numbers of unique users",
    transform="alerts.sparse_vector_alerts.SparseVectorAlerts",
    parameters="alerts.parameters.AlertsParameters",
    row="Alert",
    order=("window_start", "rule"),
    title="alerts",
    published="alerts_published",
    unusable={"events_outside_domain": "events of items that no rule names"},
    limits=(CHARGES,),
    beyond={
        "runs_stopped": "runs of tests have stopped, because their budget is spent",
        "rules_stopped": "times the rules with at_most have stopped, since people may be used up",
    },
    only_by={"runs_stopped": "sparse_vector", "rules_stopped": "status"},
    files=("rules",),
    epilog=ALERT_RULES,
    plan_epilog=ALERT_RULES,
    sizes={
        "rules": Option(
            "rules", "int|Path", "number of rules, all with at_least; or the file with the rules", REQUIRED
        ),
    },
    columns={
        "start_margin": "margin of tests",
        "min_alerts": "fewest alerts",
        "max_alerts": "most alerts",
        **COUNTED_COLUMNS,
    },
    chart="alerts",
    simulation=Part("simulate.worlds.CLINIC", "what people report to a clinic, with an outbreak and an outage"),
)


HISTOGRAM = QuestionSpec(
    word="histogram",
    summary="count the events of each category since the start, after every window",
    description="Counts the events of public categories: after every window, how many there have been since the start.",
    protected="an event, or a person over the whole run",
    known_as="running totals of a dashboard; `count(*) GROUP BY category`",
    transform="histograms.continual_histogram.ContinualHistogram",
    parameters="histograms.parameters.HistogramParameters",
    row="HistogramEstimate",
    order=("window_start", "query", "-estimate", "category"),
    title="estimates",
    published="estimates_published",
    user="person, read with --unit person alone",
    item="category",
    units_without_users=("event",),
    limits=(
        Excess(
            "categories_over_limit",
            "categories_before_limit",
            "categories of events left out, because --categories_per_row others of their event count",
            ("categories_per_row",),
        ),
        Excess(
            "items_over_limit",
            "items_before_limit",
            "categories of people left out, because others count in their window",
            ("max_per_window", "max_contributions"),
        ),
        Excess(
            "contributions_over_limit",
            "contributions_before_limit",
            "categories of people left out, who had reached --max_contributions",
            ("max_contributions",),
            lasting=True,
        ),
    ),
    prepare="questions.readings.check_categories",
    unplanned=("separator", "max_per_window"),
    sizes={"domain": Option("categories", "int", "number of categories on the public list", REQUIRED)},
    columns={"error_bound": "error bound of all counts", "largest": "while no count exceeds"},
    error_unit="events",
    chart="histogram",
    simulation=Part("simulate.worlds.TRIPS", "trips in a city, by means of transport"),
    audit=Part("audit.attacks.HISTOGRAM", "noise of counts"),
)


QUANTILES = QuestionSpec(
    word="quantiles",
    summary="find the median and other percentiles of a number (latencies, prices, ages), each with an interval",
    description="Finds quantiles of a number in the events of each window, such as a latency, a price or an age. Each "
    "has an interval that contains it, for the values that count.",
    protected="a person over the whole run, or an event",
    known_as="p50, p90 and p99 of a dashboard; `percentile_cont(0.9)`, `approx_quantiles(latency, 100)`",
    transform="quantiles.numeric_quantiles.NumericQuantiles",
    parameters="quantiles.parameters.QuantilesParameters",
    row="QuantileEstimate",
    order=("window_start", "quantile"),
    title="quantiles",
    published="quantiles_published",
    user="person, not read with --unit event",
    item="",
    value="number (default: value)",
    units_without_users=("event",),
    limits=(
        Excess(
            "values_over_limit",
            "values_before_limit",
            "values left out, because --max_per_window others of their person count in their window",
            ("max_per_window",),
        ),
        Excess(
            "contributions_over_limit",
            "contributions_before_limit",
            "values left out, because their person had reached --max_contributions",
            ("max_contributions",),
            lasting=True,
        ),
    ),
    clipped=(
        Excess(
            "values_clipped",
            "events_usable",
            "values were outside of --low to --high, and count as the nearest of these",
            instead="Quantiles that are outside are not seen: a wider range changes fewer.",
        ),
    ),
    files=(),
    assumed={"low": 1.0, "high": 2.0, "scale": "linear"},
    columns={
        "rank_error": "error bound",
        "rank_stddev": "largest standard deviation",
        "levels": "levels of the tree of bins",
    },
    error_unit="values",
    plan_epilog="""\
The error is one of ranks: the number of values below an edge of a bin is off by at most so many, with probability
95% for each. An interval reaches about so many values to both sides of the true quantile, in the order of values.
""",
    chart="quantiles",
    simulation=Part("simulate.worlds.REQUESTS", "requests to a service, with their latencies and a slow hour"),
    audit=Part("audit.attacks.QUANTILES", "a value more"),
)


FLAGS = replace(
    HISTOGRAM,
    word="flags",
    summary="report which categories have been counted more often than their thresholds",
    description="Reports which public categories have been counted more often than their thresholds since the "
    "start: after every window, a flag for each category. A flag that is up stays up.",
    known_as="milestones: more than n events since the start",
    transform="histograms.threshold_flags.ThresholdFlags",
    parameters="histograms.parameters.FlagsParameters",
    row="CategoryFlag",
    order=("window_start", "-raised", "category"),
    title="flags",
    published="flags_published",
    files=("domain", "thresholds"),
    assumed={"thresholds": 1},
    columns={"error_bound": "error bound of counts", "largest": "while no count exceeds"},
    chart="flags",
    audit=Part("audit.attacks.FLAGS", "flags that one event more raises earlier"),
)


CARDINALITY = QuestionSpec(
    word="cardinality",
    summary="estimate how many people are present (in a building, online), while they come and go",
    description="Estimates how many people are in a set now (in the building, subscribed, online), at the end of "
    "every window, from events of people who enter and leave, or from sessions with a time-out. People may come "
    "and go as often as they like.",
    protected="a person over the whole run",
    known_as="daily active users, unique users online, occupancy",
    transform="cardinality.set_cardinality.SetCardinality",
    parameters="cardinality.parameters.CardinalityParameters",
    row="CardinalityEstimate",
    order=("window_start",),
    title="estimates",
    published="estimates_published",
    item="value for entering or leaving (not read if neither --enter_values nor --leave_values is given)",
    items_with=("enter_values", "leave_values"),
    unusable={"events_of_other_values": "events that neither enter nor leave"},
    limits=(
        Excess(
            "entries_over_limit",
            "entries_before_limit",
            "entries that do not count, or perhaps not to their end, since their person has reached "
            "--max_contributions",
            ("max_contributions",),
            lasting=True,
            of="entries",
            repeats=True,
        ),
    ),
    beyond={
        "estimates_without_bound": "estimates without a bound, which no longer follow the set, because "
        "--max_updates was passed",
    },
    files=(),
    unplanned=("enter_values", "timeout"),
    assumed={"leave_values": ("leave",)},
    columns={"error_bound": "error bound of all estimates (people)"},
    chart="cardinality",
    simulation=Part("simulate.worlds.BUILDING", "people who enter and leave a building"),
    audit=Part("audit.attacks.CARDINALITY", "a person in the set, and an event"),
)


RANGES = about_points(
    word="ranges",
    summary="count the points in ranges of numbers (slots, prices), while points come and go",
    description="Counts the points in public ranges (slots, prices, ages, addresses) at the end of every window, "
    "while points come and go.",
    protected="one event, which is one update of a point",
    known_as="`count(*) WHERE x BETWEEN a AND b`; no percentiles of x",
    transform="points.range_counts.RangeCounts",
    parameters="points.parameters.RangesParameters",
    row="RangeCount",
    order=("window_start", "low", "high"),
    title="counts",
    published="counts_published",
    prepare="questions.point_options.prepare_ranges",
    epilog=f"""{POINT_QUERIES}
  {{"low": 1, "high": 50}}
""",
    planned=(Option("queries", "Path", "file with the ranges, as privstream ranges takes it", REQUIRED),),
    columns={"error_bound": "error bound of all counts", "windows": "windows"},
    chart="ranges",
    simulation=Part("simulate.worlds.RANGES", "cars in a car park, and queries about parts of it"),
    audit=Part("audit.attacks.RANGES", "one update of a point"),
)


PREDECESSOR = about_points(
    word="predecessor",
    summary="find the nearest points below and above public points, while points come and go",
    description="Finds the nearest points below and above public points (the last price level with activity, the "
    "nearest slot in use) at the end of every window.",
    protected="one event, which is one update of a point",
    known_as="nearest free slot, last price level",
    transform="points.predecessor_queries.PredecessorQueries",
    parameters="points.parameters.PredecessorParameters",
    row="NearestPoints",
    order=("window_start", "query"),
    title="answers",
    published="neighbours_published",
    prepare="questions.point_options.prepare_predecessor",
    epilog=f"""{POINT_QUERIES}
  {{"point": 50}}
""",
    planned=(Option("queries", "Path", "file with the queries, as privstream predecessor takes it", REQUIRED),),
    plan_epilog="""\
The error is a number of points. With probability 95%, in all answers together, at least one point and no more
points than the error lie between a query and the predecessor or successor in its answer; where an answer has none, no
more points than the error lie on that side. This error is for the worst data. Each answer has a bound of its own, which
is far smaller where points are only inserted: it counts the intervals between query and answer that are not known to
have points.
""",
    columns={"error_bound": "error bound (points)", "mechanism": "mechanism", "windows": "windows"},
    chart="predecessor",
    simulation=Part("simulate.worlds.PREDECESSOR", "trades at price levels, and queries about levels"),
    audit=Part("audit.attacks.PREDECESSOR", "one update of a point"),
)


WATCHED = "queries"

QUERIES = QuestionSpec(
    word="queries",
    summary="answer many counting queries about one data set, one after the other",
    description="Answers queries about how many people have which items, in the order in which they are asked, from a "
    "public hypothesis that learns from its errors.",
    protected="a person, over all queries together",
    known_as="shares of a population, a survey; `count(*) WHERE item IN (..)`",
    transform="queries.private_queries.PrivateQueries",
    parameters="queries.parameters.QueriesParameters",
    row="QueryAnswer",
    order=("time", "query"),
    title="answers",
    published="queries_answered",
    unanswered={
        "queries_malformed": "lines that are not queries on the domain",
        "queries_late": "queries that came after their time, or after a later query had been answered",
    },
    limits=(
        Excess(
            "items_over_limit",
            "items_before_limit",
            "items of people left out, because another item of their person counts",
            instead="a person counts with one item, the last one; ask counts --over start where people have several",
        ),
    ),
    beyond={"queries_refused": "queries refused, because the budget is spent"},
    extras=(
        Option(WATCHED, "Path", "file or folder with the public queries, see below", REQUIRED),
        Option(
            "planned",
            "int",
            "number of queries for which errors are bounded, 1,000 if it is not given",
        ),
    ),
    prepare="questions.readings.planned_queries",
    inputs="questions.queries_file.inputs",
    files=("domain", WATCHED),
    watched=WATCHED,
    epilog="""\
queries, one JSON object on each line, in the order in which they are asked, or with a time:
  {"name": "young", "items": ["0-9", "10-19"]}
  {"name": "points", "items": ["gold", "silver"], "time": "2024-01-01T12:00:00Z"}
The answer is the number of people who have one of the items. Queries and the domain are public.
Each person counts with one item.

With --watch, queries come as files into a folder; write a file elsewhere, and rename it into the folder when it is
complete. A query is asked when its file has come, or at its own time if that is later. With --watermark marks each
query has a time. A file named _END ends the run.
""",
    sizes={"domain": Option("items", "int", "number of items on the public list", REQUIRED)},
    unplanned=(WATCHED,),
    plan_epilog="""\
numbers in the answer:
  error bound       with probability 1 - beta, all answers together are within so many people of the truth
  alpha             as given, or the value with the smallest error bound
  measurements      number of answers that may be taken from the data before queries are refused
  people needed     with at least so many people no query is refused, with probability 1 - beta; 1 if every query could
                    be measured
""",
    columns={
        "error_bound": "error bound (people)",
        "alpha": "alpha",
        "max_measurements": "measurements",
        "records_needed": "people needed",
    },
    chart="queries",
    simulation=Part("simulate.worlds.COUNTRY", "region and age of people, and questions about them"),
)


QUESTIONS = {
    spec.word: spec
    for spec in (
        *(HEAVY_HITTERS, COUNTS, TOP_K, ALERTS, HISTOGRAM, QUANTILES, FLAGS, CARDINALITY),
        *(RANGES, PREDECESSOR, QUERIES),
    )
}
"""The questions, in the order of help pages."""

WORDS = tuple(QUESTIONS)


def question(word: str) -> QuestionSpec:
    """Return the description of a question."""
    return QUESTIONS[word]
