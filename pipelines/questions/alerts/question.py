"""`privstream alerts`: from events to the windows in which public rules about numbers of people are met."""

from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import CHARGES, WINDOWS, Option, QuestionSpec

RULES = """\
rules, one JSON object on each line:
  {"name": "flu", "at_least": 500, "items": ["fever", "cough"]}
  {"name": "outage", "at_most": 100, "until": 150}
  {"name": "three days of flu", "at_least": 300, "windows": 3}
A rule is about the number of different people who have, within a window, an event of one of its items; without items,
any event. With --method status, "until" is the number at which an alert ends; without it that is the threshold. With
--method counts, "windows" is the number of windows in a row over which the mean of the numbers is compared: so many on
average, not in each of them. One rule with "windows" leaves counts as the only method of its run: put such rules into
a run of their own, and the others can have status. Rules, and the file with them, are public.
"""

NUMBERS = """\
numbers in the answer:
  start margin          with probability 1 - beta, in all tests of a run together, while it lasts, every number of
                        people that passes its threshold by more than the margin gives an alert, and none that misses
                        its threshold by more than the margin does. Of rules about several windows that is the mean
                        over them; their own margins, about sqrt(n) smaller for n windows, are in the sentence below
  end margin            by status, with the same probability: every alert ends whose number of people misses "until" by
                        more than the margin, and none ends while the number passes it by more. The other methods
                        decide each window by itself, and do not report ends
  fewest alerts         number of alerts that the budget pays for in any case
  most alerts           number of alerts that the budget pays for if all of them pass their thresholds clearly
  standard deviation    of the noise on the count of an alert: for a threshold passed narrowly, and clearly
Choose a threshold that is higher than usual numbers by the margin, and lower by the margin than the numbers that must
be noticed. More windows raise the margins of status and sparse_vector only with their logarithm; that of counts grows
with the square root of their number (with delta above 0). Status and counts have no number of alerts: they never stop,
and --method auto takes one of them.
The margins of status are for people who have been charged fewer than --max_hits times.
"""

MET = "Reports the windows in which numbers of people pass the thresholds of public rules, and by how much."
BY_METHOD = {
    "status": f"{MET} An alert starts, continues and ends: people are charged, and counted, only where it starts and "
    "ends. Who has been charged as often as the run allows no longer counts. No run stops.",
    "sparse_vector": f"{MET} Tests without an alert cost nothing. Alerts spend the budget; when it is spent, the run "
    "stops, and its last row says so.",
    "counts": f"{MET} Every number gets noise in every window, which is paid for before the run, and is compared with "
    "its threshold. No alert costs anything, and no run stops.",
}
"""What a page says, of the method that ran."""

SPEC = QuestionSpec(
    word="alerts",
    summary="report the windows in which numbers of people pass the thresholds of public rules",
    description="Reports the windows in which numbers of people pass the thresholds of public rules, and by how "
    "much. By status, an alert starts, continues and ends; only starts and ends charge people, and no run stops. By "
    "sparse vector, tests without an alert cost nothing, and when alerts have spent the budget, the run stops and "
    "reports it. By counts, every window is paid for before, and no run stops.",
    protected="a person over the whole run",
    known_as="outbreaks, outages, unusual numbers of unique users",
    transform="alerts.sparse_vector_alerts.SparseVectorAlerts",
    row="Alert",
    order=("window_start", "stream", "rule"),
    title="alerts",
    published="alerts_published",
    unusable={"events_outside_domain": "events of items that no rule names"},
    limits=(
        WINDOWS._replace(
            text="times a person was left out, who is in --streams_per_person other streams",
            options=("streams_per_person",),
        ),
        CHARGES,
    ),
    beyond={"runs_stopped": "runs of tests have stopped, because their budget is spent"},
    only_by={"runs_stopped": "sparse_vector"},
    by_method=BY_METHOD,
    files=("rules",),
    by_name=("sparse_vector",),
    epilog=RULES,
    plan_epilog=f"{RULES}\n{NUMBERS}",
    sizes={
        "rules": Option(
            "rules", "int|Path", "number of rules, all with at_least; or the file with the rules", REQUIRED
        ),
        "streams": Option("streams", "int", "number of streams, if events have one"),
    },
    columns={
        "margin": "start margin (people)",
        "end_margin": "end margin (people)",
        "min_alerts": "fewest alerts",
        "max_alerts": "most alerts",
        "gap_stddevs": "standard deviation of counts",
    },
    picture="how long alerts last, their bounds, and the true numbers",
    simulation="what people report to a clinic, with an outbreak and an outage",
    audit="alerts that one person more makes likelier, and their numbers",
)
