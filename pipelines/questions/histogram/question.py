"""`privstream histogram`: from events to live counts of public categories."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Excess, Option, QuestionSpec

SPEC = QuestionSpec(
    word="histogram",
    summary="count the events of each category since the start, after every window",
    description="Counts the events of public categories: after every window, how many there have been since the start.",
    protected="an event, or a person over the whole run",
    known_as="running totals of a dashboard; `count(*) GROUP BY category`",
    transform="histograms.continual_histogram.ContinualHistogram",
    row="HistogramEstimate",
    order=("stream", "window_start", "query", "-estimate", "category"),
    title="estimates",
    published="estimates_published",
    user="person, read with --unit user alone",
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
    prepare="histogram.assumptions.prepare",
    unplanned=("streams", "separator", "max_per_window"),
    sizes={"domain": Option("categories", "int", "number of categories on the public list", REQUIRED)},
    columns={"error_bound": "error bound of all counts", "largest": "while no count exceeds"},
    error_unit="events",
    picture="counts or quantiles with their error bounds, and the true counts",
    simulation="trips in a city, by means of transport",
    audit="noise of counts, limits of a person, by an adaptive adversary",
)
