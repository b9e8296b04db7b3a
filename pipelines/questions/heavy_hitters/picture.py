"""`privstream plot heavy-hitters`: the timeline of heavy hitters as a picture; the curves of those that stay found."""

from __future__ import annotations

from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import draw_bands
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.timeline import Timeline, draw
from privstream.pipelines.plot.truth import Verdict, detection_threshold, judge
from privstream.pipelines.questions.counts.picture import bands, by_model, caption, is_smoothed
from privstream.pipelines.simulate.event_writers import ItemHolders

UNSURE = " Where a line has a gap, the item's smoothed count was not surely above 0: it is not reported."


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    threshold = detection_threshold(given.promise)
    verdict = None if given.truth is None or threshold is None else judge(given.rows, given.truth, threshold)
    if is_smoothed(given.rows):
        return _curves(given, verdict, threshold)
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


def _curves(given: Given, verdict: Verdict | None, threshold: int | None) -> Drawing:
    """Return what draws smoothed counts, as those of `counts`, and says what was missed."""
    found = bands(given.rows, given.truth or [], each=True)
    text = caption(given.rows, found, by_model(given.promise)) + given.when
    if any(np.isnan(band.estimates).any() for band in found):
        text += UNSURE
    if verdict is not None and threshold is not None:
        text = f"{text} {verdict.of_heavy(threshold)}"
    title, values = given.title("Heavy hitters: items of many people"), f"{given.counted('people')} in a window"
    return partial(draw_bands, found, values=values, title=title, caption=text, top=given.top)


PICTURE = PictureSpec(
    description="Draws the heavy hitters of each window with bars for the error of their counts, or their smoothed "
    "counts with bands, and, given the truth, says what was found and what was missed.",
    truth=ItemHolders,
    shows="shows what was missed",
    prepare=prepare,
    top=10,
)
