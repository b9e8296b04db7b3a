"""`privstream quantiles`: from events to live quantiles of how often public categories occur."""

from dataclasses import replace

from privstream.pipelines.questions.histogram.question import SPEC as HISTOGRAM
from privstream.pipelines.questions.spec import Option

SPEC = replace(
    HISTOGRAM,
    word="quantiles",
    summary="find the median or other quantiles of how often categories occur",
    description="Reports how events are spread over public categories: after every window, the count that a "
    "given part of all categories does not exceed, such as the median. These are not quantiles of a number in "
    "the events.",
    known_as="median and quartiles over categories; no percentiles of a value",
    order=("stream", "window_start", "estimate", "query"),
    extras=(
        Option(
            "quantiles",
            "tuple[str, ...]",
            "parts of all categories, in (0, 1]; 0.5 is the median, 1 the maximum",
            ("0.25", "0.5", "0.75"),
        ),
    ),
    hidden=("queries",),
    prepare="quantiles.queries.prepare",
    shared={"picture": "histogram", "simulation": "histogram"},
)
