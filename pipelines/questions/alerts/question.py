"""`privstream alerts`: from events to the windows in which public rules about numbers of people are met."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Option, QuestionSpec

RULES = """\
rules, one JSON object on each line:
  {"name": "flu", "at_least": 500, "items": ["fever", "cough"]}
  {"name": "outage", "at_most": 100}
A rule is about the number of different people who have, within a window, an event of one of its items; without items,
any event. Rules, and the file with them, are public.
"""

NUMBERS = """\
numbers in the answer:
  margin                by which a number of people must pass its threshold to be sure of an alert: with probability
                        1 - beta, in all tests of a run together, while it lasts, a number that passes its threshold by
                        more gives an alert, and none that misses it by more does
  alerts                that are paid for in any case, and at most, if all of them are clear
  standard deviation    of the noise on the number in an alert: of a narrow one, and of a clear one
Set thresholds lower than what must be noticed by the margin, and higher than what is usual by the margin. Tests without
an alert cost nothing: more windows raise the margin with their logarithm only.
"""

SPEC = QuestionSpec(
    word="alerts",
    summary="report in which windows public rules about numbers of people are met",
    description="Reports in which windows public rules about numbers of people are met, and by how much. Tests without "
    "an alert cost nothing; when alerts have spent the budget, the run stops and says so. The guarantee holds for each "
    "person over the whole run.",
    transform="alerts.sparse_vector_alerts.SparseVectorAlerts",
    row="Alert",
    order=("window_start", "stream", "rule"),
    title="alerts",
    published="alerts_published",
    beyond={
        "runs_stopped": "runs of tests have stopped: their budget is spent",
        "holdings_over_limit": "times a person was left out for being in enough streams already",
    },
    files=("rules",),
    epilog=RULES,
    plan_epilog=NUMBERS,
    unplanned=("quiet",),
    sizes={
        "rules": Option("rules", "int|Path", "number of rules that all say at_least; or the file with them", REQUIRED),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    columns={
        "margin": "margin (people)",
        "min_alerts": "alerts at least",
        "max_alerts": "alerts at most",
        "gap_stddevs": "standard deviation",
    },
    picture="alerts with their bounds, and the true numbers",
    simulation="what people report to a clinic, with an outbreak and an outage",
)
