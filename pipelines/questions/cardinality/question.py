"""`privstream cardinality`: from events to how many people are in a set now, at the end of every window."""

from privstream.pipelines.questions.spec import Excess, Option, QuestionSpec

SPEC = QuestionSpec(
    word="cardinality",
    summary="estimate how many people are present (in a building, online), while they come and go",
    description="Estimates how many people are in a set now (in the building, subscribed, online), at the end of "
    "every window, from events of people who enter and leave, or from sessions with a time-out. People may come "
    "and go as often as they like.",
    protected="a person over the whole run, or an event",
    known_as="daily active users, unique users online, occupancy",
    transform="cardinality.set_cardinality.SetCardinality",
    row="CardinalityEstimate",
    order=("stream", "window_start"),
    title="estimates",
    published="estimates_published",
    item="value for entering or leaving",
    unusable={"events_of_other_values": "events that neither enter nor leave"},
    limits=(
        Excess(
            "entries_over_limit",
            "entries_before_limit",
            "entries that do not count, because their person had reached the limits of visits and streams",
            ("visits_per_person", "streams_per_person"),
            lasting=True,
            of="entries",
            repeats=True,
        ),
    ),
    beyond={
        "estimates_without_bound": "estimates without a bound, which no longer follow the set, because "
        "--max_updates was passed",
    },
    files=(),
    unplanned=("enter_values", "timeout"),
    assumed={"leave_values": ("leave",)},
    sizes={"streams": Option("streams", "int", "number of streams, if events have one")},
    columns={"error_bound": "error bound of all estimates (people)"},
    picture="how many people are in a set, with error bounds, and the true numbers",
    simulation="people who enter and leave a building",
    audit="a person in the set, and an event",
)
