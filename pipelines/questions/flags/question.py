"""`privstream flags`: from events to flags that say which public categories have passed their thresholds."""

from dataclasses import replace

from privstream.pipelines.questions.histogram.question import SPEC as HISTOGRAM

SPEC = replace(
    HISTOGRAM,
    word="flags",
    summary="report which public categories have passed their thresholds",
    description="Reports, live, which public categories have been counted more often than their thresholds: after "
    "every window, a flag for each category, which stays up.",
    transform="histograms.threshold_flags.ThresholdFlags",
    row="CategoryFlag",
    order=("stream", "window_start", "-raised", "category"),
    title="flags",
    published="flags_published",
    files=("domain", "thresholds"),
    assumed={"thresholds": 1},
    columns={"error_bound": "counts off by"},
    picture="when flags went up, and when counts passed their thresholds",
    simulation=None,
)
