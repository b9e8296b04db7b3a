"""`privstream queries`: from events and linear queries, in a file or a folder, to private answers."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Excess, Option, QuestionSpec

WATCHED = "queries"

SPEC = QuestionSpec(
    word="queries",
    summary="answer many counting queries about one data set, one after the other",
    description="Answers linear queries about how many people have which items, in the order in which they are "
    "asked: from counts of all items with noise, or from a public hypothesis that learns from its errors.",
    protected="a person, over all queries together",
    known_as="shares of a population, a survey; `count(*) WHERE item IN (..)`",
    transform="queries.private_queries.PrivateQueries",
    row="QueryAnswer",
    order=("time", "query"),
    title="answers",
    published="queries_answered",
    unanswered={
        "queries_malformed": "lines that are not queries on the domain",
        "queries_late": "queries that came after their time, or after a later query had been answered",
    },
    limits=(
        Excess(
            "items_over_limit",
            "items_before_limit",
            "items of people left out, because another item of their person counts",
            instead="a person counts with one item, the --selection one; ask counts --over start where people have "
            "several",
        ),
    ),
    beyond={"queries_refused": "queries refused, because the budget is spent"},
    extras=(
        Option(WATCHED, "Path", "file or folder with the public queries, see below", REQUIRED),
        Option("planned", "int", "number of queries for which errors are bounded", 1000),
    ),
    prepare="queries.inputs.prepare",
    inputs="queries.inputs.inputs",
    files=("domain", WATCHED),
    watched=WATCHED,
    epilog="""\
queries, one JSON object on each line, in the order in which they are asked, or with a time:
  {"name": "young", "items": ["0-9", "10-19"]}
  {"name": "points", "items": ["gold", "silver"], "weights": [1, 0.5], "time": "2024-01-01T12:00:00Z"}
The answer is the number of people who have one of the items, or a weighted number with --real_weights. Queries and
the domain are public. Each person counts with one item.

With --watch, queries come as files into a folder; write a file elsewhere, and rename it into the folder when it is
complete. A query is asked when its file has come, or at its own time if that is later. With --watermark marks each
query has a time. A file named _END ends the run.
""",
    sizes={"domain": Option("items", "int", "number of items on the public list", REQUIRED)},
    unplanned=(WATCHED,),
    plan_epilog="""\
numbers in the answer:
  error bound       with probability 1 - beta, all answers together are within so many people of the truth
  of one item       the same where each query is about one item; a query of n items has up to sqrt(n) times this bound
  alpha             as given, or the value with the smallest error bound
  measurements      number of answers that may be taken from the data before queries are refused
  people needed     with at least so many people no query is refused, with probability 1 - beta; 1 if every query could
                    be measured
""",
    columns={
        "error_bound": "error bound (people)",
        "item_error_bound": "of one item",
        "alpha": "alpha",
        "max_measurements": "measurements",
        "records_needed": "people needed",
    },
    picture="answers with their error bounds, or their errors",
    simulation="region and age of people, and questions about them",
    audit="noise of answers, several records of a person",
)
