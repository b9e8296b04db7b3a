"""`privstream predecessor`: from events to what is near to public points, at the end of every window."""

from privstream.pipelines.questions.about_points import ANSWERS, QUERIES, about_points
from privstream.pipelines.questions.spec import Option

SPEC = about_points(
    word="predecessor",
    summary="find the nearest points below and above public points, while points come and go",
    description="Finds the nearest points below and above public points (the last price level with activity, the "
    "nearest slot in use) at the end of every window.",
    protected="one event, which is one update of a point",
    known_as="nearest free slot, last price level",
    transform="points.predecessor_queries.PredecessorQueries",
    row="NearestPoints",
    order=("stream", "window_start", "query"),
    title="answers",
    published="neighbours_published",
    prepare="predecessor.inputs.prepare",
    inputs="predecessor.inputs.inputs",
    epilog=f"""{QUERIES}\
  {{"point": 50}}
  {{"point": 50, "time": "2024-01-01T12:00:00Z", "stream": "north"}}
""",
    planned=(
        Option("queries", "Path", "file with the queries, of the form that privstream predecessor takes"),
        Option("answers", "int", f"{ANSWERS}; without it and --queries, all points in all windows"),
    ),
    plan_epilog="""\
The error is a number of points. With probability 1 - beta, in all answers together, at least one point and no more
points than the error lie between a query and the predecessor or successor in its answer; where an answer has none, no
more points than the error lie on that side. This error is for the worst data. Each answer has a bound of its own, which
is far smaller where points are only inserted: it counts the intervals between query and answer that are not known to
have points.
""",
    columns={"error_bound": "error bound (points)", "mechanism": "mechanism", "windows": "windows"},
    picture="the nearest points of each query, as reported and in truth",
    simulation="trades at price levels, and queries about levels",
    audit="one update of a point",
)
