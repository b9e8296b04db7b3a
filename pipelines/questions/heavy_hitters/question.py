"""`privstream heavy-hitters`: from events to the items that many people have, window by window."""

from privstream.pipelines.questions.spec import Option, QuestionSpec

SPEC = QuestionSpec(
    word="heavy-hitters",
    summary="report the items that many people have, window by window",
    description="Reports the items that many people have in each window. The guarantee holds for each person over the "
    "whole run.",
    transform="heavy_hitters.shifting_heavy_hitters.ShiftingHeavyHitters",
    row="HeavyHitter",
    order=("stream", "window_start", "-count", "item"),
    title="heavy hitters",
    published="hits_published",
    beyond={
        "items_over_limit": "times an item of a person was left out: --items_per_step others of the window count",
        "holdings_over_limit": "times a person was left out for having taken part often enough",
    },
    all_streams=True,
    one_stream=True,
    sizes={
        "domain": Option("items", "int", "number of items on a public list, if there is one"),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    columns={
        "detection_threshold": "reported from (people)",
        "threshold": "threshold",
        "noise_scale": "noise scale",
        "count_stddev": "standard deviation of counts",
    },
    picture="the items of each window, and what was missed",
    simulation="what a city searches for, with trends that rise and fall",
)
