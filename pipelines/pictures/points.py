"""`privstream plot ranges` and `predecessor`: points in ranges, what is near to points, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import plural
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec, row_intervals
from privstream.pipelines.plot.promise import percent
from privstream.pipelines.simulate.truths import NearestTrue, PointsInRange
from privstream.transforms.row_types import NearestPoints, RangeCount


def prepare_ranges(given: Given) -> Drawing:
    """Return what draws the ranges."""
    bands = range_bands(given.rows, given.truth or [])
    text = caption_of_ranges(bands, given.sure_of_rows(given.bands))
    return partial(
        draw_bands, bands, values="points", title=given.title("Points in ranges"), caption=text, clocks=given.clocks
    )


def range_bands(rows: Sequence[RangeCount], truth: Sequence[PointsInRange]) -> list[Band]:
    """Return a line for each range; without an error bound there is no band."""
    true = {(row.window_end, row.low, row.high): float(row.points) for row in truth}
    ranges: dict[tuple[int, int], list[RangeCount]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        ranges[row.low, row.high].append(row)
    bands = []
    for (low, high), found in ranges.items():
        ends, estimates = row_intervals(found), np.array([row.estimate for row in found], np.float64)
        bands.append(
            Band(
                f"{low:,} to {high:,}",
                np.array([row.window_end.micros for row in found], np.int64),
                estimates,
                ends[1] - estimates,
                np.array([true.get((row.window_end, low, high), np.nan) for row in found]) if truth else None,
                ends=ends,
            )
        )
    return bands


def caption_of_ranges(bands: Sequence[Band], meaning: str) -> str:
    """Say what is seen."""
    if not bands:
        return "There are no rows."
    text = f"{plural(len(bands), 'range')}.{tell_bounds(bands, meaning)}"
    errors = np.concatenate([np.abs(band.estimates - band.truth) for band in bands if band.truth is not None] or [[]])
    if not np.isfinite(errors).any():
        return text
    return f"{text} Dashed: the truth. The largest error is {np.nanmax(errors):,.0f}."


RANGES = PictureSpec(
    description="Draws how many points lie in each range, with a band for the error and, given the truth, the true "
    "numbers.",
    truth=PointsInRange,
    shows="draws the true numbers, dashed",
    prepare=prepare_ranges,
)


SIDES = ("predecessor", "successor")


def prepare_nearest(given: Given) -> Drawing:
    """Return what draws the nearest points."""
    bands = nearest_bands(given.rows, given.truth or [])
    text = caption_of_nearest(given.rows, bool(given.truth), percent(given.promise))
    title = given.title("Nearest points below and above")
    empty = "no answer has a point" if given.rows else "no rows"
    return partial(draw_bands, bands, values="point", title=title, caption=text, clocks=given.clocks, empty=empty)


def nearest_bands(rows: Sequence[NearestPoints], truth: Sequence[NearestTrue]) -> list[Band]:
    """Return two lines for each query, its predecessors and its successors; gaps where an answer has none."""
    true = {(row.window_end, row.query): row for row in truth}
    queries: dict[int, list[NearestPoints]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        queries[row.query].append(row)
    bands = []
    for query, found in queries.items():
        times = np.array([row.window_end.micros for row in found], np.int64)
        known = [true.get((row.window_end, query)) for row in found]
        for side in SIDES:
            near = _points([getattr(row, side) for row in found])
            if np.isfinite(near).any():
                right = _points([0 if row is None else getattr(row, side) for row in known]) if truth else None
                name = f"{'below' if side == SIDES[0] else 'above'} {query:,}"
                bands.append(Band(name, times, near, np.zeros(len(times)), right, levels=(query,)))
    return bands


def _points(numbers: Sequence[int]) -> np.ndarray:
    """Return points as real numbers, NaN where there is none."""
    points = np.array(numbers, np.float64)
    points[points == 0] = np.nan
    return points


def caption_of_nearest(rows: Sequence[NearestPoints], truth: bool, certainty: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    sure = (
        f"With probability {certainty}, all of them together, at most {max(row.error_bound for row in rows):,} points"
    )
    if not any(row.predecessor or row.successor for row in rows):
        return f"No answer has a point below or above its query. {sure} lie on either side of a query."
    windows = len({row.window_end for row in rows})
    line = "line" if windows > 1 else "point"
    text = (
        f"Dotted: the points of the queries. {line.capitalize()}s: the nearest points below and above, as reported. "
        f"{sure} lie between a query and its {line}; where there is no {line}, at most as many lie on that side."
    )
    return text + (" Dashed: the nearest points in truth." if truth else "")


PREDECESSOR = PictureSpec(
    description="Draws the nearest points below and above each query and, given the truth, the true ones.",
    truth=NearestTrue,
    shows="draws what was nearest, dashed",
    prepare=prepare_nearest,
)
