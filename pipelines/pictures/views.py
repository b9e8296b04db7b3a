"""The pictures of views of a monitor: alerts with their states, ratios and totals with their intervals, rises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.pictures import counts
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import plural
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.transforms.row_types import AlertState, KeyCount

NUMBERS = {
    "value": ("lower", "upper"),
    "rise": ("rise_lower", "rise_upper"),
    "ratio": ("lower", "upper"),
    "estimate": ("lower", "upper"),
    "count": ("lower", "upper"),
}
"""Numbers that rows may have, and the ends of their intervals; the first that a view has is drawn."""

TITLES = {
    "value": "What alerts watch",
    "rise": "By how much items rose",
    "ratio": "Ratios",
    "count": "Counts",
}
MEANING = "Bands: intervals of 95%, each by itself; where numbers are smoothed, if counts stay near moving levels."
GAPS = " Where a line has a gap, the view has no number."


def prepare(given: Given) -> Drawing:
    """Return what draws the rows of a view."""
    rows = given.rows
    risers = given.promise is not None and given.promise.maybe("parameters", "against") is not None
    if rows and isinstance(rows[0], KeyCount) and not risers:
        return counts.prepare(given)
    names = [name for name in NUMBERS if name in rows[0]._fields]
    number = next((name for name in names if any(getattr(row, name) is not None for row in rows)), names[0])
    levels = tuple(sorted({row.threshold for row in rows if isinstance(row, AlertState)}))
    found = _bands(rows, number, levels)
    windows = len({row.window_start for row in rows})
    text = f"{plural(len(found), 'line')} in {plural(windows, 'window')}.{tell_bounds(found, MEANING)}"
    if any(np.isnan(band.estimates).any() for band in found):
        text += GAPS
    alarms: Sequence[tuple[int, int]] = ()
    if isinstance(rows[0], AlertState):
        alarms = tuple((row.window_start.micros, row.window_end.micros) for row in rows if row.state == ALERT)
        text += f" Dotted: the threshold. Shaded: {plural(len(alarms), 'window')} with an alert; days: when they begin."
    return partial(
        draw_bands,
        found,
        values=number,
        title=given.title(TITLES[number]),
        caption=text,
        top=given.top,
        alarms=alarms,
        whole=number in ("rise", "estimate", "count"),
        clocks=given.clocks,
    )


def _bands(rows: Sequence[Any], number: str, levels: tuple[float, ...]) -> list[Band]:
    """Return a line for each item, with a band for its interval, near levels to mark."""
    of_item: dict[str, dict[int, Any]] = defaultdict(dict)
    for row in rows:
        of_item[getattr(row, "item", "") or number][int(row.window_end.micros)] = row
    begins = {int(row.window_end.micros): int(row.window_start.micros) for row in rows}
    moments = np.array(sorted(begins), np.int64)
    starts = np.array([begins[moment] for moment in moments.tolist()], np.int64)

    def band(item: str) -> Band:
        points = [of_item[item].get(moment) for moment in moments.tolist()]
        found, *ends = (
            np.array([np.nan if point is None else getattr(point, field) for point in points], np.float64)
            for field in (number, *NUMBERS[number])
        )
        signed = number == "rise"
        half = ends[1] - found
        return Band(item, moments, found, half, starts=starts, ends=np.array(ends), signed=signed, levels=levels)

    ranked = sorted(of_item, key=lambda item: -max(abs(getattr(row, number) or 0) for row in of_item[item].values()))
    return [band(item) for item in ranked[: counts.MOST_LINES]]


PICTURE = PictureSpec(
    description="Draws the rows of a view of a monitor.",
    truth=ItemHolders,
    shows="nothing",
    prepare=prepare,
    top=8,
)
