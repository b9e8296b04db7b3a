"""`privstream cardinality`: from events to how many people are in a set now, at the end of every window."""

from privstream.pipelines.questions.spec import Option, QuestionSpec

SPEC = QuestionSpec(
    word="cardinality",
    summary="estimate how many people are in a set now, while they come and go",
    description="Estimates how many people are in a set now (in the building, subscribed, online), at the end of every "
    "window, from events of people who enter and leave, or from sessions with a time-out. One guarantee holds for the "
    "whole run, however often people come and go.",
    transform="cardinality.set_cardinality.SetCardinality",
    row="CardinalityEstimate",
    order=("stream", "window_start"),
    title="estimates",
    published="estimates_published",
    item="value that says whether a person enters or leaves",
    unusable={"events_of_other_values": "events that neither enter nor leave"},
    beyond={
        "entries_over_limit": "entries beyond a person's limits, which do not count",
        "estimates_without_bound": "estimates without a bound: --max_updates was passed, they stay what they are",
    },
    files=(),
    unplanned=("enter_values", "timeout"),
    assumed={"leave_values": ("leave",)},
    sizes={"streams": Option("streams", "int", "number of streams, if events have one")},
    columns={"error_bound": "all estimates within (people)"},
    picture="how many people are in a set, with error bounds, and the true numbers",
    simulation="people who enter and leave a building",
)
