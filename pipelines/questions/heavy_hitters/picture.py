"""`privstream plot heavy-hitters`: the timeline of heavy hitters as a picture."""

from __future__ import annotations

from functools import partial

from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.timeline import Timeline, draw
from privstream.pipelines.plot.truth import detection_threshold, judge
from privstream.pipelines.simulate.event_writers import ItemHolders


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    threshold = detection_threshold(given.promise)
    verdict = None if given.truth is None or threshold is None else judge(given.rows, given.truth, threshold)
    error = None if given.promise is None else given.promise.maybe("accuracy", "count_error")
    timeline = Timeline(
        stream=given.stream,
        rows=given.rows,
        truth=given.truth or [],
        detection_threshold=threshold,
        verdict=verdict,
        meaning=given.sure("Bars"),
        people=given.counted("people"),
        error=error if isinstance(error, int) else None,
        empty=given.empty("No heavy hitters were published."),
    )
    return partial(draw, timeline, top=given.top)


PICTURE = PictureSpec(
    description="Draws the heavy hitters of each window with bars for the error of their counts and, given the "
    "truth, what was found and what was missed.",
    truth=ItemHolders,
    shows="shows what was missed",
    prepare=prepare,
    top=10,
)
