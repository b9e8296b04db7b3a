"""The pictures of views of a monitor: alerts with their states, ratios and totals with their intervals, rises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from privstream.pipelines.pictures import counts
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import window_of
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.simulate.simulation import ItemHolders
from privstream.transforms.rows import ALERT, AlertState, KeyCount

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
    "estimate": "Totals",
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
    found, levels = _bands(rows, number), ()
    windows = len({row.window_start for row in rows})
    text = f"{_number_of(len(found), 'line')} in {_number_of(windows, 'window')}.{tell_bounds(found, MEANING)}"
    if any(np.isnan(band.estimates).any() for band in found):
        text += GAPS
    if isinstance(rows[0], AlertState):
        alerts = _number_of(sum(row.state == ALERT for row in rows), "window")
        found += _bands([row if row.state == ALERT else row._replace(value=None) for row in rows], number, ALERT)
        levels = tuple({row.threshold for row in rows})
        text += f" Dotted: the threshold. There is an alert in {alerts}, with a line of that name."
    return partial(
        draw_bands,
        found,
        values=number,
        title=given.title(TITLES[number]),
        caption=text,
        top=given.top,
        levels=levels,
        whole=number in ("rise", "estimate", "count"),
    )


def _bands(rows: Sequence[Any], number: str, name: str = "") -> list[Band]:
    """Return a line for each item, with a band for its interval; or one of another name, without a band."""
    of_item: dict[str, dict[int, Any]] = defaultdict(dict)
    for row in rows:
        of_item[name or getattr(row, "item", "") or number][int(row.window_end.micros)] = row
    moments = np.array(sorted({moment for each in of_item.values() for moment in each}), np.int64)

    def band(item: str) -> Band:
        points = [of_item[item].get(moment) for moment in moments.tolist()]
        found, lower, upper = (
            np.array([np.nan if point is None else getattr(point, field) for point in points], np.float64)
            for field in (number, *NUMBERS[number])
        )
        reach = np.zeros(len(found)) if name else np.fmax(upper - found, found - lower)
        return Band(item, moments, found, reach, window=window_of(rows))

    ranked = sorted(of_item, key=lambda item: -max(abs(getattr(row, number) or 0) for row in of_item[item].values()))
    return [band(item) for item in ranked[: counts.MOST_LINES]]


def _number_of(number: int, what: str) -> str:
    """Return a number of things."""
    return f"{number:,} {what}{'s' * (number != 1)}"


PICTURE = PictureSpec(
    description="Draws the rows of a view of a monitor.",
    truth=ItemHolders,
    shows="nothing",
    prepare=prepare,
    top=8,
)
