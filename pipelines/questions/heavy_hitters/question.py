"""`privstream heavy-hitters`: from events to the items that many people have, window by window."""

from privstream.pipelines.questions.spec import CHARGES, ITEMS, WINDOWS, Option, QuestionSpec

SPEC = QuestionSpec(
    word="heavy-hitters",
    summary="find trending items: those that many people have in a window; no list of items is needed",
    description="Reports the items that many people have in each window, such as trending searches. The items "
    "need not be known before.",
    protected="a person over the whole run",
    known_as="trending searches; `GROUP BY hour, item HAVING count(DISTINCT user) > n`",
    transform="heavy_hitters.shifting_heavy_hitters.ShiftingHeavyHitters",
    row="HeavyHitter",
    order=("stream", "window_start", "-count", "item"),
    title="heavy hitters",
    published="hits_published",
    limits=(ITEMS, WINDOWS, CHARGES),
    settle="heavy_hitters.spans.settle",
    all_streams=True,
    one_stream=True,
    sizes={
        "domain": Option("items", "int", "number of items on a public list, if there is one"),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    columns={
        "detection_threshold": "enough people in a window, in all tests",
        "lasting_windows": "windows until the same people fade",
        "threshold": "threshold",
        "noise_scale": "noise scale",
        "count_stddev": "standard deviation of counts",
        "ends_with": "people with whom an item ends",
    },
    error_means="how many people are enough for a report in the window itself, in all tests together",
    picture="the items of each window, and those that were missed",
    simulation="searches of a city, with trends that rise and fall",
    audit="reports that one person more makes likelier, items that nobody else has",
)
