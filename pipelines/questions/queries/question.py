"""`privstream queries`: from events and linear queries, in a file or a folder, to private answers."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Option, QuestionSpec

WATCHED = "queries"

SPEC = QuestionSpec(
    word="queries",
    summary="answer linear queries about a data set, one after the other",
    description="Answers linear queries about how many people have which items, in the order in which they are asked, "
    "from a public hypothesis that learns from its errors. One guarantee holds for each person over all queries.",
    transform="queries.private_queries.PrivateQueries",
    row="QueryAnswer",
    order=("time", "query"),
    title="answers",
    published="queries_answered",
    unanswered={
        "queries_malformed": "lines that are no queries on the domain",
        "queries_late": "queries that came after their time, or after a later one had been answered",
    },
    beyond={
        "events_beyond_one_record": "events left out: their person counts with another one",
        "queries_refused": "queries refused: the budget is spent",
    },
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

With --watch, queries come in files into a folder, each renamed into it whole, and are asked when their file has come,
or at their own time, if that is later. With --watermark marks each has a time. A file _END ends the run.
""",
    sizes={"domain": Option("items", "int", "number of items on the public list", REQUIRED)},
    unplanned=(WATCHED,),
    plan_epilog="""\
numbers in the answer:
  within            with probability 1 - beta, all answers are within so many people of the truth
  alpha             as it is given, or the one for which the error bound is least
  measurements      answers that may be taken from the data before queries are refused
  people needed     from which number of people on no query is refused, with probability 1 - beta; 1 if each of them
                    could be measured
""",
    columns={
        "error_bound": "within (people)",
        "alpha": "alpha",
        "max_measurements": "measurements",
        "records_needed": "people needed",
    },
    picture="answers with their error bounds, or their errors",
    simulation="where people live and how old they are, and questions about that",
)
