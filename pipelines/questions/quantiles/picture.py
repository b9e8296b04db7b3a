"""`privstream plot quantiles`: a line for each quantile with its interval, and the truth beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from matplotlib.ticker import AutoLocator, FuncFormatter
from privstream.pipelines.plot.bands import MARKS
from privstream.pipelines.plot.chart import (
    COLOURS,
    DAY,
    GREY,
    INK,
    MARKERS,
    chart,
    freeze_layout,
    moment,
    note,
    style_axes,
)
from privstream.pipelines.plot.labels import Label, place
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.questions.quantiles.simulation import TrueQuantile
from privstream.transforms.rows import QuantileEstimate

WIDE = 20.0
"""Values that span a larger ratio are drawn on a logarithmic axis."""


@dataclass(frozen=True, eq=False)
class Line:
    """A quantile over time: all columns float64, shape (n,), times in days; `truth` is NaN where it is not known.

    An interval from end to end of what values can be says nothing: `unknown` marks these rows, bool, shape (n,).
    """

    name: str
    days: np.ndarray
    starts: np.ndarray
    estimates: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    truth: np.ndarray
    unknown: np.ndarray

    @property
    def notes(self) -> Iterator[tuple[float, float, str]]:
        """What its points mean."""
        columns = (self.days, self.starts, self.estimates, self.lower, self.upper, self.unknown)
        for day, start, value, low, high, unknown in zip(*(column.tolist() for column in columns), strict=True):
            said = "too few values to say anything" if unknown else f"{value:,.6g} (between {low:,.6g} and {high:,.6g})"
            yield day, value, f"{moment(start * DAY)}: {said}"


def prepare(given: Given) -> Drawing:
    """Return what draws the quantiles."""
    low, high = (None if given.promise is None else given.promise.maybe("parameters", end) for end in ("low", "high"))
    found = lines(given.rows, given.truth or [], each=given.of_windows, low=low, high=high)
    text = caption(given.rows, found, given.sure("Bands", together=True)) + given.when
    if given.promise is not None and given.promise.maybe("parameters", "unit") != "event":
        text += " Each person counts with one value in a window, chosen at random."
    return partial(draw_lines, found, title=given.title("Quantiles"), caption=text)


def lines(
    rows: Sequence[QuantileEstimate],
    truth: Sequence[TrueQuantile],
    *,
    each: bool,
    low: float | None = None,
    high: float | None = None,
) -> list[Line]:
    """Return a line for each quantile, the largest first.

    Args:
        rows: what was published.
        truth: what is known of true quantiles.
        each: whether values are those of each window.
        low, high: least and largest value that there can be, if they are known.
    """
    true = {(row.window_end, row.quantile): row.value for row in truth}
    points: dict[float, list[tuple[float, ...]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        known = true.get((row.window_end, row.quantile), np.nan)
        start, end = ((row.window_start if each else row.window_end).micros / DAY, row.window_end.micros / DAY)
        points[row.quantile].append(((start + end) / 2, start, row.estimate, row.lower, row.upper, known))
    found = []
    for quantile in sorted(points, reverse=True):
        days, starts, estimates, lower, upper, known = np.array(points[quantile], np.float64).T
        unknown = (lower <= (-np.inf if low is None else low)) & (upper >= (np.inf if high is None else high))
        found.append(Line(f"{100 * quantile:g}%", days, starts, estimates, lower, upper, known, unknown))
    return found


def draw_lines(found: Sequence[Line], stream: BinaryIO, format: str, *, title: str, caption: str) -> None:
    """Draw lines with their intervals."""
    with chart(stream, format) as (figure, axes):
        labels = []
        for rank, line in enumerate(found):
            colour = COLOURS[rank % len(COLOURS)]
            lower, upper = (np.where(line.unknown, np.nan, column) for column in (line.lower, line.upper))
            axes.fill_between(line.days, lower, upper, color=colour, alpha=0.15, linewidth=0)
            style: dict[str, Any] = {
                "marker": MARKERS[rank % len(MARKERS)],
                "markevery": max(1, len(line.days) // MARKS),
            }
            known = np.where(line.unknown, np.nan, line.estimates)
            axes.plot(line.days, known, color=colour, linewidth=1.5, markersize=4, **style)
            nothing = np.flatnonzero(line.unknown)
            axes.plot(line.days[nothing], line.estimates[nothing], color=GREY, marker="x", markersize=4, linewidth=0)
            note(axes, line.name, line.notes)
            axes.plot(line.days, line.truth, color=colour, alpha=0.6, linewidth=1, linestyle=(0, (4, 2)))
            some = slice(None) if line.unknown.all() else ~line.unknown
            points = zip(line.days[some].tolist(), line.estimates[some].tolist(), strict=True)
            labels.append(Label(line.name, list(points), colour))
        ends = [day for line in found for day in (*line.starts, *(2 * line.days - line.starts))]
        moments = [round(day * DAY) for day in ends]
        span = (min(moments), max(moments)) if moments else None
        if not moments:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        style_axes(figure, axes, span=span, values="value", title=title, caption=caption)
        axes.yaxis.set_major_locator(AutoLocator())
        if _is_wide(found):
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        freeze_layout(figure)
        place(axes, labels)


def _is_wide(found: Sequence[Line]) -> bool:
    """Tell whether values are > 0 and span several orders of magnitude."""
    if not found:
        return False
    least, most = min(line.lower.min() for line in found), max(line.upper.max() for line in found)
    return bool(least > 0 and most > WIDE * least)


def caption(rows: Sequence[QuantileEstimate], found: Sequence[Line], meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    text = f"{len(found):,} quantiles in {len(found[0].days):,} windows. {meaning}"
    if unknown := sum(int(line.unknown.sum()) for line in found):
        points = sum(len(line.days) for line in found)
        text += f" Grey crosses, {unknown:,} of {points:,}: too few values to say anything between --low and --high."
    known = [line for line in found if np.isfinite(line.truth).any()]
    if not known:
        return text
    judged = sum(int(np.isfinite(line.truth).sum()) for line in known)
    outside = sum(int(((line.truth < line.lower) | (line.truth > line.upper)).sum()) for line in known)
    inside = "all of them are" if not outside else f"all but {outside:,} of {judged:,} are"
    return f"{text} Dashed: quantiles of all values, before any limits; {inside} in their intervals."


PICTURE = PictureSpec(
    description="Draws quantiles over time with their intervals and, given the truth, the true quantiles.",
    truth=TrueQuantile,
    shows="draws true quantiles, dashed",
    prepare=prepare,
)
