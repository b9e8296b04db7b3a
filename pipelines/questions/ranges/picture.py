"""`privstream plot ranges`: how many points lie in each range, as lines with error bands, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.questions.ranges.simulation import PointsInRange
from privstream.transforms.rows import RangeCount


def prepare(given: Given) -> Drawing:
    """Return what draws the ranges."""
    bands = make_bands(given.rows, given.truth or [])
    text = caption(bands, given.sure("Bands"))
    return partial(draw_bands, bands, values="points", title=given.title("Points in ranges"), caption=text)


def make_bands(rows: Sequence[RangeCount], truth: Sequence[PointsInRange]) -> list[Band]:
    """Return a line for each range; without an error bound there is no band."""
    true = {(row.window_end, row.low, row.high): float(row.points) for row in truth}
    ranges: dict[tuple[int, int], list[RangeCount]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        ranges[row.low, row.high].append(row)
    bands = []
    for (low, high), found in ranges.items():
        bounds = np.array([row.error_bound for row in found], np.float64)
        bounds[bounds < 0] = np.nan
        bands.append(
            Band(
                f"{low:,} to {high:,}",
                np.array([row.window_end.micros for row in found], np.int64),
                np.array([row.estimate for row in found], np.float64),
                bounds,
                np.array([true.get((row.window_end, low, high), np.nan) for row in found]) if truth else None,
            )
        )
    return bands


def caption(bands: Sequence[Band], meaning: str) -> str:
    """Say what is seen."""
    if not bands:
        return "There are no rows."
    text = f"{len(bands):,} ranges.{tell_bounds(bands, meaning)}"
    errors = np.concatenate([np.abs(band.estimates - band.truth) for band in bands if band.truth is not None] or [[]])
    if not np.isfinite(errors).any():
        return text
    return f"{text} Dashed: the truth. The largest error is {np.nanmax(errors):,.0f}."


PICTURE = PictureSpec(
    description="Draws how many points lie in each range, with a band for the error and, given the truth, the true "
    "numbers.",
    truth=PointsInRange,
    shows="draws the true numbers, dashed",
    prepare=prepare,
)
