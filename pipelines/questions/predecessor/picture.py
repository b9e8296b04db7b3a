"""`privstream plot predecessor`: what is near to each point that was asked for, and what was nearest in truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import Band, draw_bands
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import percent
from privstream.pipelines.questions.predecessor.simulation import NearestTrue
from privstream.transforms.rows import NearestPoints

SIDES = ("predecessor", "successor")


def prepare(given: Given) -> Drawing:
    """Return what draws the nearest points."""
    bands = make_bands(given.rows, given.truth or [])
    text, queries = (
        caption(given.rows, bool(given.truth), percent(given.promise)),
        sorted({row.query for row in given.rows}),
    )
    title = given.title("Nearest points below and above")
    return partial(draw_bands, bands, values="point", title=title, caption=text, levels=queries)


def make_bands(rows: Sequence[NearestPoints], truth: Sequence[NearestTrue]) -> list[Band]:
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
                bands.append(Band(name, times, near, np.zeros(len(times)), right))
    return bands


def _points(numbers: Sequence[int]) -> np.ndarray:
    """Return points as real numbers, NaN where there is none."""
    points = np.array(numbers, np.float64)
    points[points == 0] = np.nan
    return points


def caption(rows: Sequence[NearestPoints], truth: bool, certainty: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    worst = max(row.error_bound for row in rows)
    text = (
        "Dotted: the points of the queries. Lines: the nearest points below and above, as reported. With "
        f"probability {certainty}, all of them together, at most {worst:,} points lie between a query and its line; "
        "where there is no line, at most as many lie on that side."
    )
    return text + (" Dashed: the nearest points in truth." if truth else "")


PICTURE = PictureSpec(
    description="Draws the nearest points below and above each query and, given the truth, the true ones.",
    truth=NearestTrue,
    shows="draws what was nearest, dashed",
    prepare=prepare,
)
