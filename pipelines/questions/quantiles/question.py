"""`privstream quantiles`: from events with a number to medians and percentiles, by window or over many of them."""

from privstream.pipelines.questions.spec import Excess, Option, QuestionSpec

SPEC = QuestionSpec(
    word="quantiles",
    summary="find the median and other percentiles of a number (latencies, prices, ages), each with an interval",
    description="Finds quantiles of a number in the events, such as a latency, a price or an age: in each window, in "
    "the last windows, or since the start. Each has an interval that contains it, for the values that count.",
    protected="a person over the whole run, or an event",
    known_as="p50, p90 and p99 of a dashboard; `percentile_cont(0.9)`, `approx_quantiles(latency, 100)`",
    transform="quantiles.numeric_quantiles.NumericQuantiles",
    row="QuantileEstimate",
    order=("stream", "window_start", "quantile"),
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
            "values left out, because another one of their person counts in their window",
            instead="a person counts with one value in a window, so that a shorter --window leaves out fewer, and "
            "--unit event none",
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
    prepare="counts.spans.prepare",
    unplanned=("streams",),
    planned=(Option("window", "Seconds", "length of a window in seconds; needed where --over is a duration"),),
    assumed={"low": 1.0, "high": 2.0, "scale": "linear"},
    columns={
        "rank_error": "error bound",
        "rank_stddev": "largest standard deviation",
        "levels": "levels of the tree of bins",
    },
    error_unit="values",
    plan_epilog="""\
The error is one of ranks: the number of values below an edge of a bin is off by at most so many. An edge inside of an
interval is at most twice as many values away from the true quantile.
""",
    picture="quantiles with their intervals, and the true ones",
    simulation="requests to a service, with their latencies and a slow hour",
    audit="a value more",
)
