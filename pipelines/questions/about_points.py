"""What the questions about points have in common. Imports no Beam."""

from functools import partial

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Option, QuestionSpec

QUERIES = """\
queries, one JSON object on each line. A query with a time (and a stream) is answered at the end of the window in which
the time lies; a query without a time is answered at the end of every window of every stream:
"""
ANSWERS = "number of answers to queries with a time for which errors are bounded"

about_points = partial(
    QuestionSpec,
    user="point, a whole number",
    item="action",
    unusable={
        "points_outside_universe": "events of points that are not in 1 .. --universe",
        "events_of_other_actions": "events of actions that neither insert nor delete",
    },
    unanswered={
        "queries_malformed": "queries that break a rule",
        "queries_outside_run": "queries outside of the windows of the run",
        "queries_late": "queries that came after their window had been answered",
    },
    extras=(
        Option("queries", "Path", "file with the public queries, see below", REQUIRED),
        Option("answers", "int", f"{ANSWERS}; without it, as many as there are in --queries"),
    ),
    hidden=("standing",),
    unplanned=("insert_values", "streams", "consistent"),
    files=("queries",),
    error_unit="points",
)
