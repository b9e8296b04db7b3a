"""`privstream flags`: from events to flags that say which public categories have passed their thresholds."""

from dataclasses import replace

from privstream.pipelines.questions.histogram.question import SPEC as HISTOGRAM

SPEC = replace(
    HISTOGRAM,
    word="flags",
    summary="report which categories have been counted more often than their thresholds",
    description="Reports which public categories have been counted more often than their thresholds since the "
    "start: after every window, a flag for each category. A flag that is up stays up.",
    known_as="milestones: more than n events since the start",
    transform="histograms.threshold_flags.ThresholdFlags",
    row="CategoryFlag",
    order=("stream", "window_start", "-raised", "category"),
    title="flags",
    published="flags_published",
    files=("domain", "thresholds"),
    assumed={"thresholds": 1},
    columns={"error_bound": "error bound of counts"},
    picture="when flags went up, and when counts passed their thresholds",
    audit="flags that one event more raises earlier",
    shared={"simulation": "histogram"},
)
