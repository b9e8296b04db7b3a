"""`privstream top-k`: from events to the items of a public list that most people have, and how far each is ahead."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Option, QuestionSpec

SPEC = QuestionSpec(
    word="top-k",
    summary="rank public items by how many people have them, window by window",
    description="Ranks the items of a public list by the number of people who have them, in every window, and says by "
    "how much each is ahead of the next.",
    transform="top_k.top_k_with_gap.TopKWithGap",
    row="RankedItem",
    order=("stream", "window_start", "rank"),
    title="ranks",
    published="ranks_published",
    beyond={
        "items_over_limit": "times an item of a person was left out: --items_per_step others of the window count",
        "holdings_over_limit": "times a person was left out for having taken part often enough",
    },
    one_stream=True,
    sizes={
        "domain": Option("items", "int", "number of items on the public list", REQUIRED),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    columns={
        "selection_error": "mixed up within",
        "least_error_bound": "count within",
        "estimate_stddev": "standard deviation",
    },
    picture="the items on top of each window, and the true numbers",
    simulation="what a city searches for, and the list of all that it could",
)
