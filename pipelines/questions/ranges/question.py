"""`privstream ranges`: from events to how many points lie in public ranges, at the end of every window."""

from privstream.pipelines.questions.about_points import ANSWERS, QUERIES, about_points
from privstream.pipelines.questions.spec import Option

SPEC = about_points(
    word="ranges",
    summary="count points in public ranges, while points come and go",
    description="Counts the points in public ranges (slots, prices, ages, addresses) at the end of every window, while "
    "points come and go. One guarantee holds for each event over the whole run.",
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
        Option("ranges", "int", "number of ranges that are counted in every window, whatever they are; or"),
        Option("queries", "Path", "file with the ranges, as privstream ranges takes it"),
        Option("answers", "int", ANSWERS),
    ),
    plan_epilog="""\
With --queries, the error is what a run with these ranges promises. With --ranges, it bounds the error of any ranges; a
run, which knows its ranges, promises no more, and mostly less.
""",
    columns={"error_bound": "all counts are within", "windows": "windows"},
    picture="how many points lie in each range, with error bounds, and the true numbers",
    simulation="cars in a car park, and parts of it to ask for",
)
