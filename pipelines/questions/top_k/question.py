"""`privstream top-k`: from events to the items that most people have, and how far each is ahead."""

from privstream.pipelines.questions.spec import ITEMS, WINDOWS, Option, QuestionSpec

NUMBERS = """\
numbers in the answer, for a list of so many --items:
  ranking error         with probability 1 - beta, no item that is left out of a window belongs to over so many more
                        people than an item that is published
  least error bound     each count comes with an error bound of its own, which holds with probability 1 - beta and is
                        never smaller than this one
  standard deviation    of a count that stands clear of the counts of the items that are left out. Where the noise
                        decides which items are published, counts are too high on average, and their standard deviation
                        may be larger than this one
numbers in the answer without --items, where items have to be found:
  needed to be found    each of 10,000 items is found, with probability 1 - beta in all, that so many people have in a
                        window
  even chance           an item that so many people have in one window, or in each of several, is found with
                        probability one half
  least error bound     of an estimate, as above; those of all items of a window hold together
"""

SPEC = QuestionSpec(
    word="top-k",
    summary="rank items by numbers of people (top pages, top products); no list of items is needed",
    description="Ranks items by the number of people who have them, in every window, and publishes by how much each "
    "item is ahead of the next one. With --domain all items of a public list compete, and every window has --top rows. "
    "Without it an item is found when enough people have it in one window or in several, and stays found; that needs "
    "--delta, and --end or --renew_every.",
    protected="a person, over the whole run or in one window",
    known_as="top pages, top products; `ORDER BY count(DISTINCT user) DESC LIMIT k`",
    transform="top_k.top_k_with_gap.TopKWithGap",
    row="RankedItem",
    order=("stream", "window_start", "rank"),
    title="ranks",
    published="ranks_published",
    silence="no item was found, so nothing is published",
    limits=(ITEMS, WINDOWS),
    one_stream=True,
    sizes={
        "domain": Option("items", "int", "number of items on the public list, if there is one"),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    plan_epilog=NUMBERS,
    columns={
        "selection_error": "ranking error (people)",
        "least_error_bound": "least error bound of a count (people)",
        "estimate_stddev": "standard deviation of a clear count",
        "detection_threshold": "needed to be found",
        "stddev": "standard deviation of noise",
    },
    picture="the leading items of each window, and the true numbers",
    simulation="searches of a city, and the list of everything that can be searched for",
    audit="ties, and counts of the items on top",
)
