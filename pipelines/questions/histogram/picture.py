"""`privstream plot histogram`: live counts as lines with error bands, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.questions.histogram.simulation import CategoryCount
from privstream.transforms.histograms.questions import questions
from privstream.transforms.rows import HistogramEstimate

MEANINGS = {
    "quantile": "quantile:Q is the count that a part Q of all categories does not exceed.",
    "max": "max is the largest count.",
    "min": "min is the least count.",
    "median": "median is the middle count.",
}


def prepare(given: Given) -> Drawing:
    """Return what draws the counts, or the answers to a query."""
    rows = _chosen(given.rows, given.options["query"])
    found = bands(rows, given.truth or [])
    quantiles = bool(rows) and not any(row.category for row in rows)
    title = given.title("Quantiles of the counts since the start" if quantiles else "Counts since the start")
    text = caption(rows, found, given.sure("Bands"))
    values = given.counted("events so far", "that count")
    return partial(draw_bands, found, values=values, title=title, caption=text, top=given.top)


def _chosen(rows: Sequence[HistogramEstimate], query: str | None) -> list[HistogramEstimate]:
    """Return the rows of the query, or of all queries that are not about categories."""
    names = list(dict.fromkeys(row.query for row in rows))
    if query is None and "histogram" in names:
        query = "histogram"
    if query is not None and rows and query not in names:
        raise ValueError(f"query must be one of {', '.join(names)}, got {query!r}")
    return [row for row in rows if query is None or row.query == query]


def bands(rows: Sequence[HistogramEstimate], truth: Sequence[CategoryCount]) -> list[Band]:
    """Return one band for each category and query, at the ends of windows."""
    true: dict[int, dict[str, int]] = defaultdict(dict)
    for count in truth:
        true[int(count.window_end.micros)][count.category] = count.events
    lines: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    for row in rows:
        moment = int(row.window_end.micros)
        known = _true_answer(row, true[moment]) if true[moment] else np.nan
        lines[row.category or row.query].append((moment, row.estimate, row.error_bound, known))
    found = []
    for name, points in lines.items():
        times, estimates, bounds, counts = np.array(sorted(points), dtype=np.float64).T
        has_truth = counts if np.isfinite(counts).any() else None
        found.append(Band(name, times.astype(np.int64), estimates, bounds, has_truth))
    return found


def _true_answer(row: HistogramEstimate, counts: dict[str, int]) -> float:
    """Return what a row would say without noise; NaN if the truth is not known."""
    if row.category:
        return counts.get(row.category, np.nan)
    asked = questions((row.query,), len(counts))[0]
    return float(asked.query.values(np.array([list(counts.values())], np.int64))[0, 0])


def caption(rows: Sequence[HistogramEstimate], found: list[Band], meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    categories = len({row.category for row in rows} - {""})
    asked = {row.query.partition(":")[0] for row in rows if not row.category}
    parts = [f"{categories:,} categories."] * (categories > 0) + [MEANINGS[name] for name in MEANINGS if name in asked]
    text = " ".join(parts) + tell_bounds(found, meaning)
    known = [(band, np.abs(band.estimates - band.truth)) for band in found if band.truth is not None]
    if not known:
        return text
    errors = np.concatenate([error[np.isfinite(error)] for _, error in known])
    outside = sum(int((error > band.error_bounds).sum()) for band, error in known)
    inside = "all estimates are" if not outside else f"all but {outside:,} of {len(errors):,} estimates are"
    return f"{text} Dashed: the truth. The largest error is {errors.max():,.0f}; {inside} within their bands."


PICTURE = PictureSpec(
    description="Draws live counts with bands for their error and, given the truth, true counts.",
    truth=CategoryCount,
    shows="draws true counts, dashed",
    prepare=prepare,
    top=8,
    query=True,
)
