"""`privstream counts`: from events to the number of people who have each item, by window or over many of them."""

from privstream.pipelines.questions.spec import Excess, Option, QuestionSpec

CLIPPED = "Sums and means are of what is left: a larger --max_value changes fewer, for more noise."

SPEC = QuestionSpec(
    word="counts",
    summary="count the people who have each item, by window, in the last days or since the start; no list of items is "
    "needed",
    description="Counts the people who have each item: in each window, in the last windows, or since the start. The "
    "items need not be known before. With --start and --end, an item is found when enough people have it in one window "
    "or in several, and then has a row in every window; with --forget, in each window in which enough people have it.",
    protected="a person over the whole run, or an event",
    known_as="daily visitors of each page; `SELECT item, count(DISTINCT user), sum(value) GROUP BY day, item`",
    transform="counts.keyed_counts.KeyedCounts",
    row="KeyCount",
    order=("stream", "window_start", "-count", "item"),
    title="counts",
    published="counts_published",
    user="person, not read with --unit event",
    value="whole number to add up for each item, such as a price in cents (default: value); read with --max_value",
    whole_values=True,
    values_with="max_value",
    units_without_users=("event",),
    silence="no item reached a threshold, so nothing is published",
    limits=(
        Excess(
            "items_over_limit",
            "items_before_limit",
            "times an item of a person was left out, whose --max_contributions are used up",
            ("max_contributions",),
        ),
        Excess(
            "contributions_over_limit",
            "contributions_before_limit",
            "times an item of a person was left out, who has contributed --max_contributions times",
            ("max_contributions",),
            lasting=True,
        ),
    ),
    clipped=(
        Excess(
            "values_clipped",
            "events_usable",
            "values were beyond the limits of --max_value, and count as the nearest limit",
            instead=CLIPPED,
        ),
        Excess(
            "contributions_clipped",
            "contributions_before_limit",
            "times the values of a person for an item in a window added up to a sum beyond the limits of --max_value, "
            "which counts as the nearest limit",
            instead=CLIPPED,
        ),
    ),
    prepare="counts.spans.prepare",
    settle="counts.spans.settle",
    below="counts.risers.below",
    unplanned=("streams", "top", "rising", "at_least"),
    sizes={"domain": Option("items", "int", "number of items on a public list, if there is one")},
    planned=(Option("window", "Seconds", "length of a window in seconds; needed where --over is a duration"),),
    columns={
        "detection_threshold": "surely found in one window",
        "threshold": "threshold",
        "stddev": "standard deviation of counts",
        "sum_stddev": "of sums",
        "error_bound": "error bound",
    },
    picture="the items that most people have, and the true counts",
    simulation="searches of a city, with the people who search for each item in a window or since the start",
    audit="noise of counts, limits of a person, items that nobody else has",
)
