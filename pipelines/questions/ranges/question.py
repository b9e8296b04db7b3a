"""`privstream ranges`: from events to how many points lie in public ranges, at the end of every window."""

from privstream.pipelines.questions.about_points import ANSWERS, QUERIES, about_points
from privstream.pipelines.questions.spec import Option

SPEC = about_points(
    word="ranges",
    summary="count the points in ranges of numbers (slots, prices), while points come and go",
    description="Counts the points in public ranges (slots, prices, ages, addresses) at the end of every window, "
    "while points come and go.",
    protected="one event, which is one update of a point",
    known_as="`count(*) WHERE x BETWEEN a AND b`; no percentiles of x",
    transform="points.range_counts.RangeCounts",
    row="RangeCount",
    order=("stream", "window_start", "low", "high"),
    title="counts",
    published="counts_published",
    prepare="ranges.inputs.prepare",
    inputs="ranges.inputs.inputs",
    epilog=f"""{QUERIES}\
  {{"low": 1, "high": 50}}
  {{"low": 1, "high": 50, "time": "2024-01-01T12:00:00Z", "stream": "north"}}
""",
    planned=(
        Option("ranges", "int", "number of ranges that are counted in every window, if their file is not given"),
        Option("queries", "Path", "file with the ranges, of the form that privstream ranges takes"),
        Option("answers", "int", ANSWERS),
    ),
    plan_epilog="""\
With --queries, the error is the one that a run with these ranges promises. With --ranges, it is a bound for any ranges;
a run, which knows its ranges, promises at most this error, and mostly a smaller one.
""",
    columns={"error_bound": "error bound of all counts", "windows": "windows"},
    picture="how many points lie in each range, with error bounds, and the true numbers",
    simulation="cars in a car park, and queries about parts of it",
    audit="one update of a point",
)
