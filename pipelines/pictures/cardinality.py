"""`privstream plot cardinality`: how many people are in a set as a line with an error band, and the truth beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import plural
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.simulate.truths import SetSize
from privstream.transforms.row_types import CardinalityEstimate


def prepare(given: Given) -> Drawing:
    """Return what draws the estimates."""
    found = band(given.rows, given.truth or [])
    text = caption(given.rows, found, given.sure("Band" if len(given.rows) > 1 else "Bar"))
    return partial(
        draw_bands,
        [found] if given.rows else [],
        values=given.counted("people"),
        title=given.title("People in the set now"),
        caption=text,
        renewals=given.renewals,
        clocks=given.clocks,
    )


def band(rows: Sequence[CardinalityEstimate], truth: Sequence[SetSize]) -> Band:
    """Return the line; where nothing is known of the error, the band ends."""
    true = {row.window_end: row.size for row in truth}
    known = sorted(rows, key=lambda row: row.window_end)
    times = np.array([row.window_end.micros for row in known], np.int64)
    estimates, bounds = (np.array([row[place] for row in known], np.float64) for place in (3, 4))
    bounds[bounds < 0] = np.nan
    sizes = np.array([true.get(row.window_end, np.nan) for row in known], np.float64)
    return Band("people", times, estimates, bounds, sizes if truth else None)


def caption(rows: Sequence[CardinalityEstimate], found: Band, meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    changes = int(np.count_nonzero(np.diff(found.estimates)))
    text = f"{plural(len(rows), 'window')}, in which the estimate changes {plural(changes, 'time')}."
    text += tell_bounds([found], meaning)
    used_up = int(np.isnan(found.error_bounds).sum())
    if used_up:
        text += (
            f" The last {used_up:,} rows have none: the budget for changes is used up, and the estimate no "
            "longer changes."
        )
    if found.truth is None or not np.isfinite(found.truth).any():
        return text
    errors = np.abs(found.estimates - found.truth)
    judged = np.isfinite(errors) & np.isfinite(found.error_bounds)
    if not judged.any():
        return text
    outside = int((errors[judged] > found.error_bounds[judged]).sum())
    inside = "all estimates are" if not outside else f"all but {outside:,} of {int(judged.sum()):,} estimates are"
    where = " where there is a bound" if used_up else ""
    return (
        f"{text} Dashed: the truth. The largest error{where} is {errors[judged].max():,.0f}; {inside} within the band."
    )


PICTURE = PictureSpec(
    description="Draws how many people are in a set, with a band for the error and, given the truth, the true numbers.",
    truth=SetSize,
    shows="draws the true numbers, dashed",
    prepare=prepare,
)
